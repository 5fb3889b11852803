"""What a check says: how bad it is, in one sentence, with what was seen and what to do."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vmpin.domain.facts import Facts

#: As strerror() has EACCES and EPERM.
_DENIED = ("Permission denied", "Operation not permitted")


class Level(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    #: It works, with less than could be had, or only as long as nothing more happens.
    WARN = "warn"
    #: Threads are not kept where they belong, or will not be.
    BAD = "bad"
    #: It could not be looked at, or there is nothing here to look at.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """A check's answer. `evidence` are the facts behind it, each with where it stands; `remedy` says what to do, ""
    where nothing has to be done."""

    level: Level
    what: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """`name` is what an operator types; `about` says what it looks at, for the help."""

    name: str
    about: str
    judge: Callable[[Facts], Verdict]


@dataclass(frozen=True)
class Finding:
    check: str
    verdict: Verdict

    def data(self) -> dict[str, object]:
        return {"check": self.check, "level": str(self.verdict.level), "what": self.verdict.what,
                "evidence": list(self.verdict.evidence), "remedy": self.verdict.remedy}


def ok(what: str, *evidence: str) -> Verdict:
    return Verdict(Level.OK, what, evidence)


def warn(what: str, remedy: str, *evidence: str) -> Verdict:
    return Verdict(Level.WARN, what, evidence, remedy)


def bad(what: str, remedy: str, *evidence: str) -> Verdict:
    return Verdict(Level.BAD, what, evidence, remedy)


def unknown(what: str, *evidence: str, remedy: str = "") -> Verdict:
    return Verdict(Level.UNKNOWN, what, evidence, remedy)


def denied(trouble: str) -> bool:
    """Whether a thing could not be read for want of rights: then nothing is known of it, good or bad."""
    return any(words in trouble for words in _DENIED)


def several(items: Iterable[str], most: int = 3) -> str:
    """The first of them in a sentence, and how many more there are."""
    names = list(items)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
