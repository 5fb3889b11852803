"""Carries out operations, one system call each; a thread that vanished is an outcome, not an error."""

import enum
import logging
from collections.abc import Iterable
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import named
from vmpin.errors import AffinityError, ThreadGone
from vmpin.host import affinity
from vmpin.host.procfs import Procfs, parse_stat
from vmpin.pinning.plan import SetAffinity

logger = logging.getLogger(__name__)


class Outcome(enum.StrEnum):
    DONE = "done"
    #: The kernel set less than was asked for: the cpuset cgroup has no more.
    TRIMMED = "trimmed"
    #: The thread has ended (or its tid is another thread's by now).
    GONE = "gone"
    REFUSED = "refused"
    #: Refused or trimmed by a cpuset cgroup that the kubelet has yet to rewrite: tried again, and no fault.
    WAITING = "waiting"


class Result(NamedTuple):
    """What became of an operation. `got` is the mask that the kernel shows now, None where it could not be read;
    `stat` the thread's stat line from before, b"" where no mask was set."""

    operation: SetAffinity
    outcome: Outcome
    got: CpuSet | None
    why: str = ""
    stat: bytes = b""

    @property
    def cpu(self) -> int | None:
        """The CPU that the thread was on before."""
        stat = parse_stat(self.stat)
        return None if stat is None else stat.processor

    @property
    def placed(self) -> CpuSet | None:
        """The thread's mask if it is in place now, else None. Where its cgroup has yet to be rewritten the mask was
        refused, or trimmed to a part of what was asked."""
        if self.got is None or self.outcome is Outcome.REFUSED or not self.got <= self.operation.cpus:
            return None
        return self.got


def carry_out(proc: Procfs, operations: Iterable[SetAffinity]) -> list[Result]:
    """Set each mask, in order."""
    results = []
    did, trimmed = Outcome.DONE, Outcome.TRIMMED
    debug = logger.isEnabledFor(logging.DEBUG)
    for operation in operations:
        try:
            got, stat = affinity.pin_seen(proc, operation.thread, operation.cpus)
        except ThreadGone:
            results.append(Result(operation, Outcome.GONE, None))
        except AffinityError as err:
            seen = affinity.get(operation.thread.id.tid)
            results.append(Result(operation, Outcome.REFUSED, None if seen is None else CpuSet(seen), str(err)))
            if debug:
                logger.debug("not done: %s: %s", operation.describe(), err)
        else:
            if debug:
                logger.debug("%s", operation.describe())
            wanted = operation.cpus
            outcome = did if got is wanted or got == wanted else trimmed
            results.append(named(Result, (operation, outcome, got, "", stat)))
    return results
