"""`vmpin repin`: places every thread now, through the watcher or without one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from vmpin.cli.control_client import Document, ask, known_names, only, quiet_log, status_document
from vmpin.cli.output import print_data, print_lines, print_text
from vmpin.cli.verbs import Verbs, load_config, namespace_flag, output_flag, sandbox_argument, verb
from vmpin.config.settings import Config
from vmpin.domain.pod_names import by_sandbox, names_of, title_of
from vmpin.domain.terminal import number_of
from vmpin.errors import UsageError

if TYPE_CHECKING:
    from vmpin.domain.model import SandboxId

_ABOUT = """\
Read everything again and place every thread, in the watcher if one runs, else in this command. Sandboxes that
`vmpin unpin` suspended are managed again: all of them, or the named one.
"""

_EXAMPLES = """\
examples:
  vmpin repin                   every thread of the node
  vmpin repin demo/shop         one pod, also after `vmpin unpin demo/shop`
"""

_EXITS = "exit codes: 0 done, 1 a part failed, or the watcher does not answer, 2 the command cannot be used\n"


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "repin", "place every thread now, also after unpin", run, about=_ABOUT,
                  epilog=f"{_EXAMPLES}\n{_EXITS}")
    sandbox_argument(parser, "only this one (default: all)")
    namespace_flag(parser)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    config = load_config(args)
    sandbox = named_sandbox(config, args)
    outcome, read_names = _reconciled(config, sandbox)
    names = read_names() if outcome["operations"] and args.output != "json" else {}
    return finish(args, outcome, f"{number_of(outcome['vms'], 'VM')}, nothing to change", names)


def _reconciled(config: Config, sandbox: SandboxId | None) -> tuple[Document, Callable[[], Mapping[str, str]]]:
    """The operations of a pass over one sandbox, or all (None), through the watcher if one runs; and what reads the
    names of pods and containers by their ids."""
    if (answer := ask(config, {"op": "reconcile", "sandbox": sandbox})) is not None:
        return answer, lambda: known_names(config)
    from vmpin.reconcile import one_pass
    from vmpin.status import collector
    quiet_log(config)
    view, report = one_pass.reconcile(config, None if sandbox is None else [sandbox])
    return collector.outcome(report), lambda: names_of(collector.document(view))


def named_sandbox(config: Config, args: argparse.Namespace) -> SandboxId | None:
    """The whole id of the named sandbox; None for none. :raises UsageError: for -n without one, too: it would not
    keep the command off other namespaces."""
    if args.sandbox is None:
        if args.namespace:
            raise UsageError("-n goes with a SANDBOX: it names the namespace of the pod",
                             f"`vmpin status -n {args.namespace} -o name` lists those of the namespace")
        return None
    sandbox: SandboxId = only(status_document(config), args.sandbox, args.namespace)["id"]
    return sandbox


def finish(args: argparse.Namespace, outcome: Document, nothing: str,
           names: Mapping[str, str] = MappingProxyType({})) -> int:
    """Print the operations; exit code 1 if one failed, if a guest keeps its map, if a feature could not give back what
    it changed, or if vmpin's files were to be removed and stay.
    :param names: of pods and containers by their ids, for the text."""
    operations, guests, kept = outcome["operations"], outcome.get("guests", {}), outcome.get("kept", ())
    # A guest without an agent has no map.
    kept_maps = any(result.startswith(("no answer", "not all")) for result in guests.values())
    gone, refused = outcome.get("gone", True), any(operation["outcome"] == "refused" for operation in operations)
    settled = outcome.get("settled", True)
    code = int(bool(kept) or kept_maps or refused or not gone or not settled)
    if args.output == "json":
        print_data(outcome, "json")
        return code
    print_lines(outcome_lines(outcome, names))
    for sandbox in kept:
        print_text(f"{title_of(sandbox, names)}: not all of its threads have their original masks; try again")
    if not operations and not kept:
        print(nothing)
    if not gone and not kept:
        print("vmpin has not left this node: something is not given back, so that its files stay, or a file cannot be "
              "removed; standard error has the reasons; try again")
    if not settled:
        print("not all that vmpin changed besides masks of threads is given back: the watcher's log, or standard "
              "error without one, has the reasons; try again")
    for sandbox, result in guests.items():
        print_text(f"{title_of(sandbox, names)}: in its guest: {result}")
    return code


def outcome_lines(outcome: Document, names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """A line for each operation of a pass, with what came of it, below the title of its sandbox.
    :param names: of pods and containers by their ids."""
    lines = []
    for operation in outcome["operations"]:
        more = {"done": "", "gone": ": the thread has ended", "refused": f": {operation['why']}",
                "trimmed": f": the cpuset cgroup leaves {operation['got']}",
                "waiting": f": waits for the cpuset cgroup to be rewritten, which leaves {operation['got']}"}
        lines.append((operation["sandbox"], operation["what"] + more[operation["outcome"]]))
    return by_sandbox(lines, names)
