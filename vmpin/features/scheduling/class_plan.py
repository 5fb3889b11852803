"""The classes that are to be set and given back, given those that the kernel shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.scheduling.sched_class import FIFO, RR, SchedClass
from vmpin.named_tuple import NamedTuple


class LoneVcpu(NamedTuple):
    """A vCPU's thread that should have a class, on the CPU that it has to itself. `main`: its process's main thread.
    """

    sandbox: SandboxId
    main: ThreadId
    vcpu: int
    cpu: int
    wanted: SchedClass


class ClassRecord(NamedTuple):
    """The class that a thread had before vmpin's; in `written` the one that vmpin had set, and the next one, that it
    set or was about to. `main`: its process's main thread, whose id and start time the thread has, with its own class,
    once it has executed another program (fs/exec.c: de_thread)."""

    sandbox: SandboxId
    main: ThreadId
    original: SchedClass
    written: tuple[SchedClass, ...] = ()


class SetClass(NamedTuple):
    """A class to set. `vcpu` is None where it is given back."""

    sandbox: SandboxId
    thread: ThreadId
    vcpu: int | None
    wanted: SchedClass
    was: SchedClass

    def describe(self) -> str:
        what = "give back the class of" if self.vcpu is None else f"set the class of vCPU {self.vcpu},"
        return f"sandbox {self.sandbox}: {what} thread {self.thread.tid}: {self.wanted}, was {self.was.describe()}"


class ClassPlan(NamedTuple):
    """`records` are to be kept before a class is set."""

    sets: tuple[SetClass, ...]
    backs: tuple[SetClass, ...]
    records: Mapping[ThreadId, ClassRecord]


def lost_record(sandbox: SandboxId, main: ThreadId, current: SchedClass | None) -> ClassRecord | None:
    """The record of a thread that has none, by its class; None where that is not vmpin's. No VMM sets a real-time
    class with RESET_ON_FORK: it is vmpin's, and its record was lost."""
    if current is None or current.policy not in (FIFO, RR) or not current.reset:
        return None
    return ClassRecord(sandbox, main, SchedClass(0), (current,))


def plan_classes(wanted: Mapping[ThreadId, LoneVcpu], now: Mapping[ThreadId, SchedClass | None],
                 before: Mapping[ThreadId, ClassRecord]) -> ClassPlan:
    """Compare the classes of threads with what they should have.
    :param now: the classes that the kernel shows, None for a thread that has ended; of a recorded thread that has none
        of vmpin's also that of its process's main thread. A thread that is not in it is left as it is.
    :param before: the records. One ends with its thread, as its class is given back, and where the class of a thread
        that is to be given back is none of vmpin's: another program's choice stays. If the thread has executed a
        program, its record is the main thread's."""
    records = {thread: record for thread, record in before.items() if thread not in now}
    sets, backs = [], []
    for thread, current in now.items():
        record, lone = before.get(thread), wanted.get(thread)
        if lone is not None and current is not None:
            if current != lone.wanted:
                sets.append(SetClass(lone.sandbox, thread, lone.vcpu, lone.wanted, current))
            record = record or lost_record(lone.sandbox, lone.main, current) or ClassRecord(
                lone.sandbox, lone.main, current)
            # Setting it may fail: the class that is set now has to stay in the record.
            last = (current,) if current in record.written else record.written[-1:]
            records[thread] = record._replace(written=tuple(dict.fromkeys((*last, lone.wanted))))
        elif record is not None:
            holder = thread if current in record.written else record.main
            its = now.get(holder)
            if holder not in now:
                records[thread] = record
            elif its is not None and its in record.written and its != record.original and holder not in records:
                records[holder] = record
                backs.append(SetClass(record.sandbox, holder, None, record.original, its))
    return ClassPlan(tuple(sets), tuple(backs), records)
