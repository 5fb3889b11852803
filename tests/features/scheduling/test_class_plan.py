"""Which classes are set and given back: in any order of events, and killed at any point, no original is lost and no
other thread is touched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.scheduling.class_plan import ClassRecord, LoneVcpu, plan_classes
from vmpin.features.scheduling.sched_class import SchedClass

SHOP = SandboxId("shop")
OTHER, BATCH, FIFO1, RR2 = SchedClass(0), SchedClass(3), SchedClass(1, 1, True), SchedClass(2, 2, True)
A, B, MAIN = ThreadId(10, 1), ThreadId(11, 1), ThreadId(9, 1)


def lone(wanted: SchedClass = FIFO1, main: ThreadId = MAIN) -> LoneVcpu:
    return LoneVcpu(SHOP, main, 0, 4, wanted)


def main_of(thread: ThreadId) -> ThreadId:
    """The main thread of the process of a thread of `Machine`."""
    return ThreadId(thread.tid + 100, thread.starttime)


def test_a_thread_is_set_recorded_and_given_back() -> None:
    plan = plan_classes({A: lone()}, {A: BATCH}, {})
    assert [change.wanted for change in plan.sets] == [FIFO1]
    assert plan.records == {A: ClassRecord(SHOP, MAIN, BATCH, (FIFO1,))}
    assert plan.sets[0].describe() == "sandbox shop: set the class of vCPU 0, thread 10: fifo:1, was batch"
    same = plan_classes({A: lone()}, {A: FIFO1}, plan.records)
    assert (same.sets, same.backs, same.records) == ((), (), plan.records)
    back = plan_classes({}, {A: FIFO1}, plan.records)
    assert [(change.wanted, change.was) for change in back.backs] == [(BATCH, FIFO1)]
    assert back.backs[0].describe() == "sandbox shop: give back the class of thread 10: batch, was fifo:1"
    assert plan_classes({}, {A: BATCH, MAIN: OTHER}, back.records).records == {}


def test_another_programs_class_is_replaced_while_it_is_wanted_and_kept_afterwards() -> None:
    records = {A: ClassRecord(SHOP, MAIN, OTHER, (FIFO1,))}
    assert [change.was for change in plan_classes({A: lone()}, {A: RR2}, records).sets] == [RR2]
    assert plan_classes({A: lone()}, {A: RR2}, records).records == records
    after = plan_classes({}, {A: RR2, MAIN: OTHER}, records)
    assert (after.backs, after.records) == ((), {})


def test_a_class_of_vmpins_without_a_record_had_the_class_other_before() -> None:
    same = plan_classes({A: lone()}, {A: FIFO1}, {})
    assert (same.sets, same.records) == ((), {A: ClassRecord(SHOP, MAIN, OTHER, (FIFO1,))})
    other = plan_classes({A: lone(RR2)}, {A: FIFO1}, {})
    assert other.records == {A: ClassRecord(SHOP, MAIN, OTHER, (FIFO1, RR2))}
    inherited = SchedClass(1, 1)  # as chrt sets it
    assert plan_classes({A: lone()}, {A: inherited}, {}).records == {A: ClassRecord(SHOP, MAIN, inherited, (FIFO1,))}


def test_a_thread_that_was_not_read_is_left_as_it_is() -> None:
    records = {A: ClassRecord(SHOP, MAIN, OTHER, (FIFO1,)), B: ClassRecord(SHOP, MAIN, OTHER, (FIFO1,))}
    plan = plan_classes({A: lone()}, {}, records)
    assert (plan.sets, plan.backs, plan.records) == ((), (), records)


def test_the_record_of_a_thread_that_has_ended_ends() -> None:
    records = {A: ClassRecord(SHOP, MAIN, OTHER, (FIFO1,)), B: ClassRecord(SHOP, MAIN, OTHER, (FIFO1,))}
    assert plan_classes({A: lone()}, {A: None, B: None, MAIN: OTHER}, records).records == {}
    assert plan_classes({}, {A: None, B: None, MAIN: None}, records).records == {}


def test_a_thread_that_has_executed_a_program_has_the_main_threads_id() -> None:
    records = {A: ClassRecord(SHOP, MAIN, BATCH, (FIFO1,)), B: ClassRecord(SHOP, MAIN, BATCH, (FIFO1,))}
    plan = plan_classes({A: lone()}, {A: None, B: OTHER, MAIN: FIFO1}, records)
    assert [(change.thread, change.wanted, change.was) for change in plan.backs] == [(MAIN, BATCH, FIFO1)]
    assert (plan.sets, plan.records) == ((), {MAIN: records[A]})
    assert plan_classes({}, {MAIN: FIFO1}, plan.records) == plan
    unread = plan_classes({A: lone()}, {A: None, B: OTHER}, records)
    assert (unread.backs, unread.records) == ((), records)


class Machine:
    """Threads with classes, and a vmpin that may be killed between any two steps."""

    def __init__(self) -> None:
        self.classes: dict[ThreadId, SchedClass] = {}
        self.originals: dict[ThreadId, SchedClass] = {}
        self.foreign: set[ThreadId] = set()  #: Threads whose class another program set last.
        self.file: dict[ThreadId, ClassRecord] = {}
        self.wanted: dict[ThreadId, LoneVcpu] = {}

    def begin(self, tid: int, its: SchedClass) -> None:
        old = next((thread for thread in self.classes if thread.tid == tid), ThreadId(tid, 0))
        self.classes.pop(old, None)
        self.foreign.discard(old)
        self.wanted.pop(old, None)
        new = ThreadId(tid, old.starttime + 1)
        self.classes[new] = self.originals[new] = its

    def execute(self, thread: ThreadId) -> None:
        """Have a thread execute a program, in a process of its own."""
        main = main_of(thread)
        for old in [other for other in self.classes if other.tid == main.tid]:
            del self.classes[old], self.originals[old]
            self.foreign.discard(old)
        self.classes[main], self.originals[main] = self.classes.pop(thread), self.originals.pop(thread)
        self.wanted.pop(thread, None)
        if thread in self.foreign:
            self.foreign.remove(thread)
            self.foreign.add(main)

    def shown(self, thread: ThreadId) -> SchedClass | None:
        """By tid, as the kernel shows it."""
        return next((its for other, its in self.classes.items() if other.tid == thread.tid), None)

    def make_pass(self, steps: int) -> None:
        """:param steps: after so many it is killed."""
        mains = {record.main for record in self.file.values()}
        now = {thread: self.shown(thread) for thread in {*self.wanted, *self.file, *mains}}
        plan = plan_classes(self.wanted, now, self.file)
        records = dict(plan.records)
        for change in plan.backs:
            if (steps := steps - 1) < 0:
                return
            self.set(change.thread, change.wanted)
            del records[change.thread]
        if (steps := steps - 1) < 0:
            return
        self.file = records
        for change in plan.sets:
            if (steps := steps - 1) < 0:
                return
            self.set(change.thread, change.wanted)

    def set(self, thread: ThreadId, its: SchedClass) -> None:
        """With the identity checked: another thread with that tid is not touched."""
        if thread in self.classes:
            self.classes[thread] = its
            self.foreign.discard(thread)


CLASSES = st.sampled_from([OTHER, BATCH, FIFO1, RR2, SchedClass(1, 1)])
TIDS = st.sampled_from([1, 2])
EVENTS = st.one_of(
    st.tuples(st.just("begin"), TIDS, st.sampled_from([OTHER, BATCH])),
    st.tuples(st.just("want"), TIDS, st.sampled_from([FIFO1, RR2])),
    st.tuples(st.just("float"), TIDS, st.just(OTHER)),
    st.tuples(st.just("execute"), TIDS, st.just(OTHER)),
    st.tuples(st.just("chrt"), TIDS, CLASSES),
    st.tuples(st.just("pass"), st.integers(0, 4), st.just(OTHER)))


@given(st.lists(EVENTS, max_size=25))
def test_in_any_order_of_events_originals_come_back_and_other_programs_classes_stay(
        events: list[tuple[str, int, SchedClass]]) -> None:
    machine = Machine()
    for name, number, its in events:
        thread = next((thread for thread in machine.classes if thread.tid == number), None)
        if name == "begin":
            machine.begin(number, its)
        elif name == "pass":
            machine.make_pass(number)
        elif thread is None:
            continue
        elif name == "want":
            machine.wanted[thread] = lone(its, main_of(thread))
        elif name == "float":
            machine.wanted.pop(thread, None)
        elif name == "execute":
            machine.execute(thread)
        else:
            machine.classes[thread] = its
            machine.foreign.add(thread)
            if thread not in machine.file:
                machine.originals[thread] = OTHER if its.reset else its
    kept = {thread: machine.classes[thread] for thread in machine.foreign}
    machine.make_pass(100)
    for thread, wanted in machine.wanted.items():
        assert machine.classes[thread] == wanted.wanted
    machine.wanted.clear()
    machine.make_pass(100)
    for thread, its in machine.classes.items():
        if thread not in kept:
            assert its == machine.originals[thread]
    assert machine.file == {}
    before = dict(machine.classes)
    machine.make_pass(100)
    assert machine.classes == before
