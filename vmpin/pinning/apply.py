"""Applies operations, one mask each. A thread that has ended is an outcome, not an error."""

import enum
import logging
from collections.abc import Iterable
from functools import lru_cache
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
    #: The kernel set a smaller mask: the cpuset cgroup does not have all of the CPUs.
    TRIMMED = "trimmed"
    #: The thread has ended; another thread may have its tid by now.
    GONE = "gone"
    REFUSED = "refused"
    #: Refused or trimmed by a cpuset cgroup that the kubelet has yet to rewrite. No fault; it is retried.
    WAITING = "waiting"


class Result(NamedTuple):
    """The result of an operation. `got` is the mask that the kernel shows now, None if it could not be read; `stat` is
    the thread's stat line from before, b"" if no mask was set; `why` is the error."""

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
        """The thread's mask if it is within the requested CPUs, possibly trimmed by the cgroup; None if the mask was
        refused."""
        if self.got is None or self.outcome is Outcome.REFUSED or not self.got <= self.operation.cpus:
            return None
        return self.got


@lru_cache(maxsize=1024)
def shared_cpuset(mask: frozenset[int]) -> CpuSet:
    """Convert a mask; equal masks give the same object, because thousands of threads share a few different masks."""
    return CpuSet(mask)


def carry_out(proc: Procfs, operations: Iterable[SetAffinity]) -> list[Result]:
    """Set each mask, in order. :returns: one result per operation."""
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
                logger.debug("not done: %s: %s sandbox=%s", operation.describe(), err, operation.sandbox)
        else:
            if debug:
                logger.debug("%s sandbox=%s", operation.describe(), operation.sandbox)
            wanted = operation.cpus
            outcome = did if got is wanted or got == wanted else trimmed
            results.append(named(Result, (operation, outcome, got, "", stat)))
    return results
