"""Changed masks as `vmpin reconcile` and `vmpin unpin` print them, and what both verbs have in common."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from vmpin.cli.control_client import Document, known_names, status_document
from vmpin.cli.output import print_data, print_text
from vmpin.config.settings import Config
from vmpin.domain.pod_names import title_of, titled

if TYPE_CHECKING:
    from vmpin.domain.model import SandboxId


def names_for_text(config: Config, args: argparse.Namespace) -> Mapping[str, str]:
    """Read the names for the text, before the change: after it, vmpin may have left the node."""
    return {} if args.output == "json" else known_names(config)


def named_sandbox(config: Config, args: argparse.Namespace) -> SandboxId | None:
    """The whole id of the named sandbox."""
    return None if args.sandbox is None else status_document(
        config, args.sandbox, namespace=args.namespace)["sandboxes"][0]["id"]


def finish(args: argparse.Namespace, outcome: Document, nothing: str,
           names: Mapping[str, str] = MappingProxyType({})) -> int:
    """Print the operations; exit code 1 if one failed, or if a guest keeps its map.
    :param names: of pods and containers by their ids, for the text."""
    operations, guests, kept = outcome["operations"], outcome.get("guests", {}), outcome.get("kept", ())
    # A guest without an agent has no map.
    kept_maps = any(result.startswith(("no answer", "not all")) for result in guests.values())
    code = int(bool(kept) or kept_maps or any(operation["outcome"] == "refused" for operation in operations))
    if args.output == "json":
        print_data(outcome, "json")
        return code
    for line in outcome_lines(outcome, names):
        print_text(line)
    for sandbox in kept:
        print_text(f"{title_of(sandbox, names)}: not all of its threads have their original masks; try again")
    if not operations and not kept:
        print(nothing)
    for sandbox, result in guests.items():
        print_text(f"{title_of(sandbox, names)}: in its guest: {result}")
    return code


def outcome_lines(outcome: Document, names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """A line for each operation of a pass, with what came of it. :param names: of pods and containers by their ids."""
    lines = []
    for operation in outcome["operations"]:
        more = {"done": "", "gone": ": the thread has ended", "refused": f": {operation['why']}",
                "trimmed": f": the cpuset cgroup leaves {operation['got']}",
                "waiting": f": waits for the cpuset cgroup to be rewritten, which leaves {operation['got']}"}
        lines.append(titled(operation["what"], operation["sandbox"], names) + more[operation["outcome"]])
    return lines
