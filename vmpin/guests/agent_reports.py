"""What an agent said, why it said nothing, and for how long that is no news, in the words of the status. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from vmpin.domain.guest_report import APPLIED, ERROR, PENDING, ContainerReport
from vmpin.domain.model import ContainerId
from vmpin.guests.transport import NotListening
from vmpin.protocol.frames import ProtocolError, clean
from vmpin.protocol.messages import VERSION, ContainerOutcome


def container_report(outcome: ContainerOutcome) -> ContainerReport:
    """An agent's word on a container; its texts come out of guestproto printable and cut."""
    # Never better than it says itself: what is outside is not applied.
    state = PENDING if outcome.state == APPLIED and outcome.outside else outcome.state
    return ContainerReport(state, outcome.error, outcome.cgroup or "", outcome.wanted, outcome.effective,
                outcome.processes, outcome.threads, outcome.outside)


def summary(heard: Mapping[ContainerId, ContainerReport]) -> str:
    """One line for the log: how many are how, and what is wrong with the first few.

    >>> summary({ContainerId("a"): ContainerReport("applied"), ContainerId("b"): ContainerReport("error", "EIO")})
    'applied 1, error 1 (b: EIO)'
    """
    count = Counter(report.state for report in heard.values())
    wrong = [f"{container}: {report.error}" for container,
             report in heard.items() if report.error][:3]
    return ", ".join(f"{state} {number}" for state, number in sorted(count.items())) + (
        f" ({'; '.join(wrong)})" if wrong else "")


def log_level(heard: Mapping[ContainerId, ContainerReport]) -> int:
    """At which that line is logged."""
    return logging.WARNING if any(report.state == ERROR for report in heard.values()) else logging.INFO


#: Of a guest that boots, or whose agent creates a container: its sockets are there before it answers.
WAITING = "waiting for an answer"
#: Attempts in a row that time out before that is news: with the pauses between them (guest/attempts) a minute. A guest
#: that boots under nested virtualization on a busy machine has taken 22 s until its kernel refused a connection.
PATIENCE = 20


class TimeoutStreak:
    """How often in a row a guest did not answer in time."""

    def __init__(self) -> None:
        self._times = 0

    def waits(self, err: Exception) -> bool:
        """Count an attempt that failed; whether the guest is still waited for."""
        self._times = self._times + 1 if isinstance(err, TimeoutError) else 0
        return 0 < self._times < PATIENCE

    def over(self) -> None:
        """It has answered."""
        self._times = 0


def reason(err: Exception) -> str:
    """Why there is no connection any more, fit for a log line and a terminal: a path is the VMM's word."""
    if isinstance(err, NotListening):
        return "nobody listens"
    if isinstance(err, ProtocolError):
        return clean(f"what came is not version {VERSION} of the protocol: {err}")
    if isinstance(err, TimeoutError):
        return "no answer in time"
    if isinstance(err, OSError):
        return clean(f"{err.filename}: {err.strerror}" if err.filename else err.strerror or repr(err))
    return clean(str(err))
