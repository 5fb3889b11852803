"""Applies operations, one mask each. A thread that has ended is an outcome, not an error."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from vmpin.cpuset import CpuSet
from vmpin.domain.model import named
from vmpin.errors import AffinityError, ThreadGone
from vmpin.host import affinity
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple
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
    """The result of an operation. `got` is the mask that the kernel shows now, None if it could not be read; `why` is
    the error."""

    operation: SetAffinity
    outcome: Outcome
    got: CpuSet | None
    why: str = ""

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
    done, trimmed = Outcome.DONE, Outcome.TRIMMED
    debug = logger.isEnabledFor(logging.DEBUG)
    for _, group in groupby(operations, key=attrgetter("thread.pid")):
        together = list(group)
        masks = affinity.pin_threads(proc, [(thread, cpus) for _, thread, cpus, _ in together])
        for operation, got in zip(together, masks, strict=True):
            if isinstance(got, AffinityError):
                results.append(_failed(operation, got))
            else:
                outcome = done if got is operation.cpus or got == operation.cpus else trimmed
                results.append(named(Result, (operation, outcome, got, "")))
            if debug:
                _log(results[-1])
    return results


def _failed(operation: SetAffinity, err: AffinityError) -> Result:
    if isinstance(err, ThreadGone):
        return Result(operation, Outcome.GONE, None)
    seen = affinity.get(operation.thread.id.tid)
    return Result(operation, Outcome.REFUSED, None if seen is None else CpuSet(seen), str(err))


def _log(result: Result) -> None:
    operation, outcome, _, why = result
    if outcome is Outcome.REFUSED:
        logger.debug("not done: %s: %s sandbox=%s", operation.describe(), why, operation.sandbox)
    elif outcome is not Outcome.GONE:
        logger.debug("%s sandbox=%s", operation.describe(), operation.sandbox)
