"""Which sandboxes of a status document a listing shows: by a pattern of their pods' names, a namespace, or a problem.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from vmpin.domain.terminal import RIGHTLY_ABSENT, short_id
from vmpin.named_tuple import NamedTuple

Document = Mapping[str, Any]

#: The rank of a sandbox without a problem.
_GOOD = 4


class Selection(NamedTuple):
    """A sandbox is selected if all of these hold for it; "" and False hold for every sandbox."""

    #: Of NAMESPACE/POD, or without a slash of POD; also of the id of a sandbox whose pod is unknown (shell wildcards).
    pattern: str = ""
    namespace: str = ""
    problems: bool = False

    def of(self, document: Document) -> list[dict[str, Any]]:
        """The selected sandboxes in the document's order; with `problems` the worst first."""
        chosen = [sandbox for sandbox in document["sandboxes"] if self._holds(sandbox)]
        if not self.problems:
            return chosen
        conflicts = _in_conflict(document["node"])
        ranks = [(_rank(sandbox, conflicts), at) for at, sandbox in enumerate(chosen)]
        return [chosen[at] for rank, at in sorted(ranks) if rank < _GOOD]

    def _holds(self, sandbox: Document) -> bool:
        pod = sandbox["pod"] or {"namespace": "", "name": short_id(sandbox["id"])}
        name = f"{pod['namespace']}/{pod['name']}" if "/" in self.pattern else pod["name"]
        return (not self.namespace or pod["namespace"] == self.namespace) and (
            not self.pattern or fnmatchcase(name, self.pattern))

    def describe(self) -> str:
        """The conditions, to follow the word "sandbox"."""
        texts = [f"named {self.pattern!r}"] * bool(self.pattern)
        texts += [f"in namespace {self.namespace!r}"] * bool(self.namespace)
        return " ".join(texts + ["with a problem"] * self.problems)


def is_pattern(text: str) -> bool:
    """Whether an argument has a wildcard of the shell: `*`, `?`, or a set in brackets."""
    return "*" in text or "?" in text or "]" in text.partition("[")[2]


def _rank(sandbox: Document, conflicts: Collection[str]) -> int:
    """0 for the worst. A sandbox that the operator has unpinned or switched off has no problem for that."""
    if sandbox["verdict"] == "degraded" or not all(thread["ok"] for thread in sandbox["threads"]):
        return 0
    if sandbox["id"] in conflicts:
        return 1
    if not RIGHTLY_ABSENT.isdisjoint(sandbox["reasons"]):
        return _GOOD
    if sandbox["vmm"] is None or sandbox["verdict"] in ("waiting", "unmanaged"):
        return 2
    return 3 if sandbox["reasons"] and sandbox["verdict"] != "off" else _GOOD


def _in_conflict(node: Document) -> set[str]:
    """The sandboxes that collide, or about which sources, authorities or processes disagree."""
    several = (id for key in ("rivals", "collisions") for entry in node.get(key, ()) for id in entry["sandboxes"])
    return {*several, *(entry["sandbox"] for key in ("disagreements", "impostors") for entry in node[key])}
