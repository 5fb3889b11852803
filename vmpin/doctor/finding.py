"""The result of a check: its level, one sentence, the evidence and a remedy.

Pure; made by the checks, printed by cli/doctor. What stays out: the table of checks (checks).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vmpin.domain.facts import NodeFacts

#: As strerror() has EACCES and EPERM.
_DENIED = ("Permission denied", "Operation not permitted")


class Level(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    #: It works, but less than it could, or only until a certain event.
    WARN = "warn"
    #: Threads are not kept where they belong, or will not be.
    BAD = "bad"
    #: It could not be read, or this node does not have it.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CheckResult:
    """`what` is the finding in one sentence; `evidence` are the facts behind it, each with its file or number;
    `remedy` is the action to take, "" for none."""

    level: Level
    what: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """`name` is the argument of `vmpin doctor`; `about` is its subject, for the help."""

    name: str
    about: str
    judge: Callable[[NodeFacts], CheckResult]


@dataclass(frozen=True)
class Finding:
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
