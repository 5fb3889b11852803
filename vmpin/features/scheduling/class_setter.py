"""Sets the classes of vCPUs and gives them back: reads what the kernel shows, keeps the records, and leaves threads
alone whose class another program sets again and again, by the rules for masks (`drift.*`)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from vmpin.cpuset import CpuSet
from vmpin.domain.contention import Contention, ContentionRules
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.scheduling.class_file import ClassFile
from vmpin.features.scheduling.class_plan import ClassPlan, ClassRecord, LoneVcpu, SetClass, lost_record, plan_classes
from vmpin.features.scheduling.sched_class import DEADLINE, SchedClass
from vmpin.features.scheduling.thread_class import class_of, run_time_limit, set_class
from vmpin.host import affinity
from vmpin.host.procfs import Procfs
from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)

RESTING = "another program sets its class again and again (drift.on_contention)"
#: What may refuse it: seccomp, as systemd's RestrictRealtime uses it; kernel/sched/syscalls.c, for a lacking
#: capability (user_check_sched_setscheduler) and for a cgroup (rt_bandwidth).
NOT_PERMITTED = ("the kernel refuses it (EPERM): RestrictRealtime=yes in the watcher's unit, no CAP_SYS_NICE, or a "
                 "cgroup without real-time share (`vmpin doctor vcpu-class`)")

Records = Mapping[ThreadId, ClassRecord]
#: Threads with their sandboxes, and the main threads of their processes.
Vcpus = Mapping[ThreadId, tuple[SandboxId, ThreadId]]
Choose = Callable[[SandboxId], bool]
Keeps = Callable[[SandboxId, ThreadId], bool]


def vcpus_of(vms: Mapping[SandboxId, Vm]) -> Vcpus:
    """The threads of vCPUs."""
    return {thread.id: (sandbox, vm.vmm.id) for sandbox, vm in vms.items() for thread in vm.vmm.threads.values()
            if thread.vcpu is not None}


class ClassSetter:
    """:param file: the records; read at the first use.
    `why`: why threads have not the class that they should have; `waiting`: those whose masks are not as placed."""

    def __init__(self, proc: Procfs, file: ClassFile, rules: ContentionRules,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._file, self._clock = proc, file, clock
        self._records: Records | None = None
        self.contention: Contention[tuple[ThreadId, SchedClass]] = Contention(rules)
        #: The classes that this process has set.
        self._set: dict[ThreadId, SchedClass] = {}
        self._reported: set[str] = set()  #: Reasons of the kernel's that are in the log.
        self.why: dict[ThreadId, str] = {}
        self.waiting: set[ThreadId] = set()

    @property
    def records(self) -> Records:
        """The former classes. :raises OSError: the file cannot be read."""
        if self._records is None:
            self._records = self._file.load()
        return self._records

    def record_lost(self, threads: Vcpus, save: bool = True) -> None:
        """Keep records of those threads that have a class of vmpin's without one.
        :raises OSError: the records cannot be read."""
        lost = {thread: record for thread, its in self._classes(threads.keys() - self.records.keys()).items()
                if (record := lost_record(*threads[thread], its))}
        if lost:
            self._records = {**self.records, **lost}
            with contextlib.suppress(OSError):  # the classes that nothing needs any more are given back all the same
                if save:
                    self._file.save(dict(self._records))

    def retry_now(self) -> None:
        """End all rests: classes that were left to another program are set again."""
        self.contention.retry_now()

    def settle(self, wanted: Mapping[ThreadId, LoneVcpu], looked: Iterable[ThreadId],
               keeps: Keeps = lambda *_: False) -> None:
        """Set the classes of those wanted threads that are to be `looked` at, and give back those of all threads that
        are not wanted any more.
        :param keeps: chooses threads, by their sandbox and id, that keep what they have.
        :raises OSError: the records cannot be read or saved: then none is set."""
        looked = set(looked)
        self.why = {thread: why for thread, why in self.why.items() if thread in wanted and thread not in looked}
        self._set = {thread: choice for thread, choice in self._set.items() if thread in wanted}
        self.contention.keep_only({*self._set.items()}, self._clock())
        self.waiting &= self.why.keys()
        now = self._classes([*self._unwanted(wanted, keeps), *looked])
        may_have = {thread: wanted[thread] for thread in looked & now.keys()
                    if self._may_have(thread, wanted[thread], now)}
        decided = plan_classes(may_have, now, self.records)
        records = dict(decided.records)
        self._give_back(decided.backs, records)
        self._save(records)
        done: dict[tuple[SandboxId, SchedClass, SchedClass, bool], list[int | None]] = {}
        for change in decided.sets:
            if (repaired := self._sets(change, wanted[change.thread].cpu)) is not None:
                done.setdefault((change.sandbox, change.wanted, change.was, repaired), []).append(change.vcpu)
        for (sandbox, choice, was, repaired), vcpus in done.items():
            logger.info("class %s sandbox=%s vcpus=%s class=%s was=%s", "repaired" if repaired else "set", sandbox,
                        ",".join(map(str, vcpus)), choice, was.describe())

    def planned(self, wanted: Mapping[ThreadId, LoneVcpu], keeps: Keeps) -> ClassPlan:
        """The changes that `settle` would make, as if all masks were as placed. Changes nothing.
        :raises OSError: the records cannot be read."""
        return plan_classes(wanted, self._classes({*wanted, *self._unwanted(wanted, keeps)}), self.records)

    def give_back(self, chosen: Choose = lambda sandbox: True, vcpus: Vcpus = MappingProxyType({})) -> bool:
        """Give the threads of sandboxes their classes back.
        :param vcpus: threads that may have a class of vmpin's without a record.
        :returns: False where not all of that was possible: the file then has the rest, and a damaged one stays aside.
        """
        try:
            self.record_lost(vcpus)
            given = self._unwanted({}, lambda sandbox, _: not chosen(sandbox))
        except OSError as err:
            self._report(str(err), "not given back: the classes of vCPUs")
            return False
        decided = plan_classes({}, self._classes(given), self.records)
        records = dict(decided.records)
        self._give_back(decided.backs, records)
        with contextlib.suppress(OSError):  # the file still has them, and the next call finds nothing to do
            self._save(records)
        if damaged := self._file.damaged:
            self._report("vCPUs that it lists may still have a class of vmpin's: remove it when they are right",
                         str(damaged))
        return not damaged and not any(chosen(record.sandbox) for record in records.values())

    def _unwanted(self, wanted: Mapping[ThreadId, LoneVcpu], keeps: Keeps) -> list[ThreadId]:
        return [thread for thread, record in self.records.items()
                if thread not in wanted and not keeps(record.sandbox, thread)]

    def _classes(self, threads: Iterable[ThreadId]) -> dict[ThreadId, SchedClass | None]:
        """Read the classes of threads, and of the main threads of those that have not one of vmpin's any more. Those
        that cannot be read are left out, and `why` has the reason."""
        classes, threads = dict[ThreadId, SchedClass | None](), [*threads]
        for thread in threads:
            try:
                its = classes[thread] = class_of(thread.tid)
                record = self.records.get(thread)
                if record is not None and its not in record.written and record.main not in classes:
                    threads.append(record.main)
            except OSError as err:
                self.why[thread] = f"its class cannot be read: {err.strerror}"
                self._report(self.why[thread], f"not done: the class of thread {thread.tid}")
        return classes

    def _save(self, records: Records) -> None:
        if records != self.records or (records and not self._file.path.exists()):
            self._file.save(dict(records))
            self._records = records

    def _may_have(self, thread: ThreadId, lone: LoneVcpu, now: dict[ThreadId, SchedClass | None]) -> bool:
        """Decide whether a thread may have the wanted class. If not, `why` has the reason, and `now` loses one of the
        class deadline."""
        current, why = now[thread], ""
        if current is not None and current.policy == DEADLINE:
            self.why[thread] = "it has the class deadline, which vmpin leaves alone"
            del now[thread]
            return False
        if current is not None and affinity.get(thread.tid) != frozenset((lone.cpu,)):
            why = f"its mask is not CPU {lone.cpu} alone"
            self.waiting.add(thread)
        elif current not in (None, lone.wanted) and (limit := run_time_limit(self._proc, thread.tid)):
            why = f"the kernel would end its process after {limit} us without a pause (RLIMIT_RTTIME)"
        if why:
            self.why[thread] = why
        return not why

    def _sets(self, change: SetClass, cpu: int) -> bool | None:
        """Set a class, unless the thread is left to another program. :returns: None where it is not set, else whether
        that was a repair."""
        key, now = (change.thread, change.wanted), self._clock()
        turn = self.contention.turn(key, CpuSet((cpu,)), self._set.get(change.thread) == change.wanted, now)
        if turn.begins:
            logger.error("contention: %s: another program sets it again and again sandbox=%s", change.describe(),
                         change.sandbox)
        why = RESTING if turn.rests else self._refused(change)
        if why:
            self.why[change.thread] = why
        if why != "":
            return None
        self._set[change.thread] = change.wanted
        if turn.repairs:
            self.contention.add_repairs([key], now)
        return turn.repairs

    def _give_back(self, backs: Iterable[SetClass], records: dict[ThreadId, ClassRecord]) -> None:
        """Give classes back, and remove their records."""
        for change in backs:
            if why := self._refused(change):
                continue
            del records[change.thread]
            if why is not None:
                logger.info("class given back sandbox=%s thread=%d class=%s was=%s", change.sandbox,
                            change.thread.tid, change.wanted, change.was)

    def _refused(self, change: SetClass) -> str | None:
        """Set a class. :returns: why it is not set, "" if it is, None if the thread has ended. Each reason is logged
        once."""
        try:
            set_class(self._proc, change.thread, change.wanted)
        except ProcessLookupError:
            return None
        except OSError as err:
            why = NOT_PERMITTED if isinstance(err, PermissionError) else f"the kernel refuses it: {err.strerror}"
            self._report(why, f"not done: {change.describe()}", change.sandbox)
            return why
        return ""

    def _report(self, why: str, subject: str, sandbox: str = "") -> None:
        if why not in self._reported:
            self._reported.add(why)
            if sandbox:
                logger.error("%s: %s sandbox=%s", subject, why, sandbox)
            else:
                logger.error("%s: %s", subject, why)
