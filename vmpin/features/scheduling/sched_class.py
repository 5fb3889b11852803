"""Scheduling classes of threads, as sched_setscheduler(2) takes them and as text. Pure."""

from __future__ import annotations

import re

from vmpin.bounded import parse_whole
from vmpin.named_tuple import NamedTuple

#: include/uapi/linux/sched.h
NAMES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}
FIFO, RR, DEADLINE = 1, 2, 6
RESET_ON_FORK = 0x40000000
#: The kernel's threads for interrupts have 50 (kernel/sched/syscalls.c: sched_set_fifo).
HIGHEST = 49
_CHOICE = re.compile(r"(fifo|rr)(?::([0-9]{1,2}))?")


class SchedClass(NamedTuple):
    """`policy` is a key of NAMES. `reset`: new threads of the thread begin with the class other (RESET_ON_FORK)."""

    policy: int
    priority: int = 0
    reset: bool = False

    def __str__(self) -> str:
        """The class as `scheduling.vcpu_class` has it."""
        name = NAMES.get(self.policy, str(self.policy))
        return f"{name}:{self.priority}" if self.policy in (FIFO, RR) else name

    def describe(self) -> str:
        """Describe it, with what distinguishes it from the class that vmpin would set."""
        return f"{self}, which its new threads inherit" if self.policy in (FIFO, RR) and not self.reset else str(self)


def parse_class(value: object) -> SchedClass | None:
    """Parse a value of `scheduling.vcpu_class` or of the annotation; None for other. Without a priority it is 1. The
    class is not inherited by threads that a vCPU's thread creates.
    :raises ValueError: it is none."""
    if value == "other":
        return None
    match = _CHOICE.fullmatch(value) if isinstance(value, str) else None
    priority = None if match is None else parse_whole(match[2] or "1", HIGHEST, 1)
    if match is None or priority is None:
        raise ValueError(f"is none of other, fifo:N and rr:N with N from 1 to {HIGHEST}: the kernel's threads for "
                         f"interrupts have {HIGHEST + 1}, and a vCPU must not keep them from running")
    return SchedClass(FIFO if match[1] == "fifo" else RR, priority, reset=True)
