"""The result of a check: its level, one sentence, the evidence and a remedy.

Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from vmpin.domain.facts import NodeFacts
from vmpin.named_tuple import NamedTuple

_DENIED = ("Permission denied", "Operation not permitted")  #: As strerror() has EACCES and EPERM.


class Level(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"  #: It works, but less than it could, or only until a certain event.
    BAD = "bad"  #: Threads are not kept where they belong, or will not be.
    UNKNOWN = "unknown"  #: It could not be read, or this node does not have it.


class CheckResult(NamedTuple):
    """`what` is the finding in one sentence; `evidence` are the facts behind it, each with its file or number;
    `remedy` is the action to take, "" for none."""

    level: Level
    what: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""


class Check(NamedTuple):
    """`name` is the argument of `vmpin doctor`; `about` is its subject, for the help."""

    name: str
    about: str
    judge: Callable[[NodeFacts], CheckResult]


class Finding(NamedTuple):
    check: str
    verdict: CheckResult

    def data(self) -> dict[str, object]:
        return {"check": self.check, "level": str(self.verdict.level), "what": self.verdict.what,
                "evidence": list(self.verdict.evidence), "remedy": self.verdict.remedy}


def ok(what: str, *evidence: str) -> CheckResult:
    return CheckResult(Level.OK, what, evidence)


def warn(what: str, remedy: str, *evidence: str) -> CheckResult:
    return CheckResult(Level.WARN, what, evidence, remedy)


def bad(what: str, remedy: str, *evidence: str) -> CheckResult:
    return CheckResult(Level.BAD, what, evidence, remedy)


def unknown(what: str, *evidence: str, remedy: str = "") -> CheckResult:
    return CheckResult(Level.UNKNOWN, what, evidence, remedy)


def denied(trouble: str) -> bool:
    """True if reading failed for lack of privileges: the check is then `unknown`."""
    return any(text in trouble for text in _DENIED)


def several(items: Iterable[str], most: int = 3) -> str:
    """The first items for a sentence, and the number of the others."""
    names = list(items)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
