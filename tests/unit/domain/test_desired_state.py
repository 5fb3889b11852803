"""Events into the wanted state: late, doubled, out of order, or wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import (
    MAX_CONTAINERS,
    MAX_REPLACED,
    MAX_SANDBOXES,
    ContainerRecord,
    CpusetReport,
    DesiredState,
    SandboxState,
    forget_stopped,
    is_full,
    outranks,
    reduce,
)
from vmpin.domain.events import (
    ContainerSeen,
    ContainerStopped,
    CpusetSeen,
    Event,
    SandboxGone,
    SandboxSeen,
    Source,
    SuspensionChanged,
)
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId

POD, MAIN = SandboxId("pod-a"), ContainerId("main")
NOTHING = DesiredState()


def seen(cpus: str | None = "2-3", source: Source = Source.BUNDLE, time: int = 10, name: str = "",
         container: str = MAIN, exclusive: bool | None = None, pause: bool = False, bundle: str = "",
         init: ThreadId | None = None, state: ContainerState = ContainerState.RUNNING,
         from_list: bool = False) -> ContainerSeen:
    cpuset = None if cpus is None else CpuSet.parse(cpus)
    made = Container(ContainerId(container), name, cpuset, exclusive, state, pause)
    return ContainerSeen(POD, made, source, time, bundle, init, from_list)


def listed(cpus: str, time: int = 50) -> ContainerSeen:
    """In a runtime's list."""
    return seen(cpus, Source.NRI, time, from_list=True)


def updated(cpus: str, time: int = 40) -> ContainerSeen:
    return seen(cpus, Source.NRI, time)


def cpuset_seen(cpus: str, source: Source, time: int = 30) -> CpusetSeen:
    return CpusetSeen(POD, MAIN, CpuSet.parse(cpus), source, time)


def after(events: Iterable[Event], state: DesiredState = NOTHING) -> DesiredState:
    for event in events:
        state = reduce(state, event)
    return state


def main(state: DesiredState) -> ContainerRecord:
    return state.sandboxes[POD].containers[MAIN]


def cpus_after(*events: Event) -> str | None:
    cpus = main(after(events)).container.cpuset
    return None if cpus is None else str(cpus)


def test_a_sandbox_is_known_by_its_runtime_or_its_first_container() -> None:
    assert after([SandboxSeen(POD, "kata-go")]).sandboxes[POD] == SandboxState(POD, "kata-go")
    assert after([SandboxSeen(POD, "oci")]).sandboxes[POD] == SandboxState(POD)
    assert after([seen()]).sandboxes[POD].live() == (Container(MAIN, "", CpuSet.parse("2-3")),)


@pytest.mark.parametrize("event", [
    cpuset_seen("2", Source.KATA), ContainerStopped(POD, MAIN, 1), SandboxGone(POD),
    SuspensionChanged(POD, True)])
def test_of_an_unreported_sandbox_nothing_else_is_taken(event: Event) -> None:
    assert reduce(NOTHING, event) is NOTHING


@pytest.mark.parametrize("event", [
    SandboxSeen(POD, "kata-go", Pod("ns", "name", "uid"), ThreadId(5, 6)), SandboxSeen(POD, "vmm"),
    SandboxSeen(POD, "oci"), seen(bundle="/b", init=ThreadId(3, 4)), seen(time=9), seen(cpus=""), seen(cpus=None),
    cpuset_seen("2-3", Source.BUNDLE),
    ContainerStopped(POD, ContainerId("gone"), 20), ContainerStopped(POD, ContainerId("gone"), 21),
    CpusetSeen(POD, ContainerId("unknown"), CpuSet.parse("1"), Source.KATA, 30), SuspensionChanged(POD, False)])
def test_what_says_nothing_new_gives_the_very_same_state(event: Event) -> None:
    state = after([SandboxSeen(POD, "kata-go", Pod("ns", "name", "uid"), ThreadId(5, 6)),
                   seen(bundle="/b", init=ThreadId(3, 4)), ContainerStopped(POD, ContainerId("gone"), 20)])
    assert reduce(state, event) is state


@pytest.mark.parametrize(("runtimes", "expect"), [
    (["oci", "vmm", "kata-rs"], "kata-rs"), (["kata-go", "vmm", "oci"], "kata-go"), (["vmm", "oci"], "vmm"),
    (["kata-go", "kata-rs"], "kata-go"), (["oci", "nonsense"], "oci")])
def test_the_runtimes_own_report_wins_in_whatever_order(runtimes: list[str], expect: str) -> None:
    assert after(SandboxSeen(POD, runtime) for runtime in runtimes).sandboxes[POD].runtime == expect


@pytest.mark.parametrize("before", ["", "oci", "nri", "vmm", "kata-rs", "kata-go", "new"])
@pytest.mark.parametrize("runtime", ["oci", "nri", "vmm", "kata-rs", "kata-go", "new"])
def test_a_runtime_outranks_where_its_report_changes_the_state(before: str, runtime: str) -> None:
    state = after([SandboxSeen(POD, before)] if before else [])
    assert outranks(runtime, state.sandboxes.get(POD)) == (reduce(state, SandboxSeen(POD, runtime)) is not state)


def test_a_reported_pod_and_vmm_stay_until_another_report() -> None:
    pod, vmm = Pod("ns", "name"), ThreadId(5, 6)
    state = after([SandboxSeen(POD, "oci", pod, vmm), SandboxSeen(POD, "kata-go")])
    assert state.sandboxes[POD] == SandboxState(POD, "kata-go", pod, vmm=vmm)
    other = reduce(state, SandboxSeen(POD, "oci", vmm=ThreadId(7, 8)))
    assert other.sandboxes[POD] == SandboxState(POD, "kata-go", pod, vmm=ThreadId(7, 8))


@pytest.mark.parametrize(("what", "events", "expect"), [
    ("a later word", [seen("2-3"), seen("4-5", time=11)], "4-5"),
    ("a late word", [seen("2-3"), seen("4-5", time=9)], "2-3"),
    ("empty is no change", [seen("2-3"), seen("", time=11)], "2-3"),
    ("none is no change", [seen("2-3"), seen(None, time=11)], "2-3"),
    ("an update that is empty is no change", [seen("2-3"), cpuset_seen("", Source.KATA)], "2-3"),
    ("the cgroup knows better than the bundle",
     [seen("2-3"), cpuset_seen("4", Source.CGROUP)], "4"),
    ("Kata knows better than the cgroup",
     [seen("2-3", Source.CGROUP), cpuset_seen("4", Source.KATA)], "4"),
    ("the bundle does not overrule the cgroup", [seen("2-3", Source.CGROUP), seen("4", time=11)], "2-3"),
    ("the cgroup does not overrule Kata",
     [seen("2-3", Source.KATA), cpuset_seen("4", Source.CGROUP)], "2-3"),
    ("nor after the bundle spoke again",
     [seen("2-3", Source.KATA), seen("5", time=11), cpuset_seen("4", Source.CGROUP)], "2-3"),
    ("equals overrule each other",
     [cpuset_seen("9", Source.CGROUP), seen("2-3", Source.CGROUP), cpuset_seen("4", Source.CGROUP)], "4"),
    ("the later of Kata and the runtime, when that is Kata",
     [seen("2", Source.NRI), cpuset_seen("4", Source.KATA)], "4"),
    ("and when it is the runtime", [seen("2", Source.KATA), cpuset_seen("4", Source.NRI)], "4"),
    ("a late word of Kata's, which does not count and is not lost",
     [seen("2", Source.KATA), seen("4", Source.NRI, time=40), seen("4", Source.KATA, time=39)], "4"),
    ("the cgroup that was read after the runtime's word stays",
     [seen("2", Source.NRI), cpuset_seen("6", Source.CGROUP, 50), cpuset_seen("4", Source.NRI, 40)], "6"),
    ("Kata that says the same again has not spoken later",
     [seen("2", Source.KATA), cpuset_seen("4", Source.NRI), cpuset_seen("2", Source.KATA, 40)], "4"),
    ("the runtime's word puts aside what was read from the cgroup before",
     [seen("2", Source.NRI), cpuset_seen("2", Source.CGROUP), cpuset_seen("4", Source.NRI, 40)], "4"),
    ("also where that comes late, or twice",
     [seen("2", Source.NRI), cpuset_seen("4", Source.NRI, 40), cpuset_seen("2", Source.CGROUP)], "4"),
    ("until it is read again",
     [seen("2", Source.NRI), cpuset_seen("4", Source.NRI, 40), cpuset_seen("6", Source.CGROUP, 50)], "6"),
    ("what an earlier life had is over",
     [seen("2", Source.KATA), ContainerStopped(POD, MAIN, 20), seen("4", time=21)], "4"),
    ("a source without a cpuset is overruled by any other", [seen(None, Source.KATA), seen("4", time=11)], "4"),
    ("and by an update", [seen(None, Source.KATA), cpuset_seen("4", Source.BUNDLE)], "4"),
    ("no source reported any", [seen(None, Source.KATA), seen("", time=11)], None),
])
def test_a_cpuset_is_the_last_report_of_the_best_source(what: str, events: list[Event], expect: str | None) -> None:
    assert cpus_after(*events) == expect, what


@pytest.mark.parametrize(("what", "events", "expect"), [
    ("nothing else is known", [listed("2-3")], "2-3"),
    ("what is new in it", [updated("2-3"), listed("4-5")], "4-5"),
    ("what an update has replaced", [updated("2-3", 10), updated("4-5"), listed("2-3")], "4-5"),
    ("what an update replaced after a list", [listed("2-3", 10), updated("4-5"), listed("2-3")], "4-5"),
    ("of creation, many updates ago",
     [updated("2-3", 10), *(updated(str(cpu), 20 + cpu) for cpu in range(4, 40)), listed("2-3", 99)], "39"),
    ("what has come back since", [updated("2-3", 10), updated("4-5", 20), updated("2-3", 30), listed("2-3")], "2-3"),
    ("what was updated away and back", [updated("2-3", 10), updated("4-5", 20), updated("2-3", 30), listed("4-5")],
     "2-3"),
    ("an update after it", [listed("2-3", 10), updated("4-5")], "4-5"),
    ("Kata's file", [seen("2-3", Source.KATA, 10), listed("4-5")], "2-3"),
    ("Kata's file, read later", [listed("4-5"), seen("2-3", Source.KATA, 10)], "2-3"),
    ("Kata's file that is older than what it replaces",
     [seen("2-3", Source.KATA, 10), updated("4-5", 20), listed("6-7")], "6-7"),
    ("Kata's file that is younger than that",
     [updated("4-5", 20), seen("2-3", Source.KATA, 30), listed("6-7")], "2-3"),
    ("Kata's file, and the update that it confirms", [seen("2-3", Source.KATA, 10), listed("4-5", 15), updated("4-5")],
     "4-5"),
    ("the cgroup", [seen("2-3", Source.NRI, 10), cpuset_seen("4-5", Source.CGROUP), listed("6-7")], "4-5"),
])
def test_a_list_counts_for_no_more_than_it_can_know(what: str, events: list[Event], expect: str) -> None:
    assert cpus_after(*events) == expect, what


def test_the_cpus_that_were_replaced_are_kept_within_a_bound() -> None:
    state = after(updated(str(cpu), cpu) for cpu in range(1, 200))
    replaced = main(state).reports[Source.NRI].replaced
    assert (len(replaced), str(replaced[0]), str(replaced[-1])) == (MAX_REPLACED, "1", "198")


def test_a_list_of_old_cpus_changes_nothing_at_all() -> None:
    state = after([updated("2-3", 10), updated("4-5", 50)])
    assert reduce(state, listed("2-3", 50)) is state


def test_the_source_of_a_cpuset_is_kept_with_it() -> None:
    assert main(after([seen("2", Source.KATA), seen("4", time=11)])).source is Source.KATA
    assert main(after([seen(None, Source.KATA), seen("4", time=11)])).source is Source.BUNDLE
    state = after([seen("2"), cpuset_seen("2", Source.CGROUP)])
    assert main(state).source is Source.CGROUP


def test_a_late_report_of_a_source_counts_all_the_same() -> None:
    """Kata writes its file before the runtime reports the update, and the file is read after that."""
    state = after([seen("2", Source.KATA), seen("4", Source.NRI, time=40), seen("4", Source.KATA, time=39)])
    assert {source: str(word.cpuset) for source, word in main(state).reports.items()} == {
        Source.KATA: "4", Source.NRI: "4"}


def test_reports_about_a_container_add_up() -> None:
    state = after([
        seen("2", name="app", exclusive=True, bundle="/b", init=ThreadId(3, 4), state=ContainerState.CREATED),
        seen(None, Source.KATA, time=11)])
    made = Container(MAIN, "app", CpuSet.parse("2"), True)
    assert main(state) == ContainerRecord(made, Source.BUNDLE, 11, "/b", ThreadId(3, 4),
                                {Source.BUNDLE: CpusetReport(CpuSet.parse("2"), 10)})
    paused = after([seen("2", pause=True), seen("2", time=11)])
    assert main(paused).container.pause


def test_declared_exclusive_can_be_taken_back_by_a_later_report() -> None:
    assert main(after([seen(exclusive=True), seen(exclusive=False, time=11)])).container.exclusive is False


# --- life and death --------------------------------------------------------------------------------------------------

def lives(*events: Event) -> bool:
    return bool(after([SandboxSeen(POD, "vmm"), *events]).sandboxes[POD].live())


@pytest.mark.parametrize(("what", "events", "alive"), [
    ("stopped", [seen(), ContainerStopped(POD, MAIN, 20)], False),
    ("stopped twice", [seen(), ContainerStopped(POD, MAIN, 20), ContainerStopped(POD, MAIN, 21)], False),
    ("its creation is reported late", [ContainerStopped(POD, MAIN, 20), seen(time=10)], False),
    ("and once more", [ContainerStopped(POD, MAIN, 20), seen(time=10), seen(time=19)], False),
    ("in the same nanosecond, in order", [seen(time=20), ContainerStopped(POD, MAIN, 20)], False),
    ("in the same nanosecond, out of order", [ContainerStopped(POD, MAIN, 20), seen(time=20)], False),
    ("an end from before its beginning", [seen(time=10), ContainerStopped(POD, MAIN, 9)], True),
    ("started again", [seen(), ContainerStopped(POD, MAIN, 20), seen(time=21)], True),
    ("an update does not raise the dead",
     [seen(), ContainerStopped(POD, MAIN, 20), cpuset_seen("7", Source.KATA)], False),
])
def test_a_container_lives_from_its_last_beginning_to_its_end(what: str, events: list[Event], alive: bool) -> None:
    assert lives(*events) is alive, what


@given(st.permutations([seen("2", time=1), seen("3", time=4), seen("3", Source.KATA, time=5),
                        cpuset_seen("7", Source.CGROUP), ContainerStopped(POD, MAIN, 6)]),
       st.lists(st.integers(0, 4)))
def test_whatever_the_order_and_however_often_the_end_is_the_end(events: list[Event], again: list[int]) -> None:
    assert not lives(*events, *(events[at] for at in again))


def test_a_late_beginning_does_not_change_what_lives_now() -> None:
    events: list[Event] = [seen("2", time=1), ContainerStopped(POD, MAIN, 6), seen("5", time=8)]
    for order in itertools.permutations(events):
        assert lives(*order)
        assert cpus_after(SandboxSeen(POD, "vmm"), *order) == "5"


def test_a_container_that_ended_has_no_first_process() -> None:
    state = after([seen(init=ThreadId(3, 4)), ContainerStopped(POD, MAIN, 20)])
    assert main(state).init is None
    assert main(state).container.state is ContainerState.STOPPED


def test_a_sandbox_that_is_gone_is_forgotten_with_all_of_it() -> None:
    state = after([seen(), SandboxSeen(SandboxId("other"), "vmm"), SandboxGone(POD)])
    assert list(state.sandboxes) == ["other"]
    assert reduce(state, SandboxGone(POD)) is state


def test_a_sandbox_can_be_taken_out_of_vmpins_hands_and_given_back() -> None:
    state = after([seen(), SuspensionChanged(POD, True)])
    assert state.sandboxes[POD].suspended
    assert after([seen("4", time=11)], state).sandboxes[POD].suspended
    assert after([SuspensionChanged(POD, False)], state) == after([seen()])


def test_the_ended_are_forgotten_after_a_while_and_the_living_never() -> None:
    state = after([seen(), seen(container="old"), seen(container="new"),
                   ContainerStopped(POD, ContainerId("old"), 20), ContainerStopped(POD, ContainerId("new"), 30)])
    sandbox = state.sandboxes[POD]
    assert list(forget_stopped(sandbox, 30).containers) == ["main", "new"]
    assert list(forget_stopped(sandbox, 1 << 62).containers) == ["main"]
    assert forget_stopped(sandbox, 20) is sandbox


def test_events_change_no_earlier_state() -> None:
    first = after([seen()])
    second = after([seen("4", time=11), ContainerStopped(POD, MAIN, 20)], first)
    assert main(first).container.cpuset == CpuSet.parse("2-3")
    assert main(first).container.state is ContainerState.RUNNING
    assert second != first


def test_a_flood_of_sandboxes_is_refused_and_those_known_go_on() -> None:
    full = DesiredState({SandboxId(f"s{at}"): SandboxState(SandboxId(f"s{at}")) for at in range(MAX_SANDBOXES)})
    assert reduce(full, SandboxSeen(POD, "kata-go")) is full
    assert reduce(full, seen()) is full
    known = reduce(full, SandboxSeen(SandboxId("s7"), "kata-go"))
    assert known.sandboxes[SandboxId("s7")].runtime == "kata-go"
    roomy = reduce(full, SandboxGone(SandboxId("s7")))
    assert POD in reduce(roomy, seen()).sandboxes


def test_a_flood_of_containers_is_refused_and_those_known_go_on() -> None:
    full = after(seen(container=f"c{at}") for at in range(MAX_CONTAINERS))
    assert len(full.sandboxes[POD].containers) == MAX_CONTAINERS
    assert reduce(full, seen()) is full
    assert reduce(full, ContainerStopped(POD, MAIN, 20)) is full
    stopped = reduce(full, ContainerStopped(POD, ContainerId("c7"), 20))
    assert len(stopped.sandboxes[POD].live()) == MAX_CONTAINERS - 1


def test_ended_containers_make_room_for_those_that_live() -> None:
    """A container that is created and removed each second must not hide the pod's others."""
    full = after(seen(container=f"c{at}") for at in range(MAX_CONTAINERS))
    for at, time in ((3, 21), (7, 20)):
        full = reduce(full, ContainerStopped(POD, ContainerId(f"c{at}"), time))
    assert not is_full(full)
    with_main = reduce(full, seen())
    assert {MAIN, ContainerId("c3")} <= with_main.sandboxes[POD].containers.keys()
    assert ContainerId("c7") not in with_main.sandboxes[POD].containers  # it ended first
    assert len(with_main.sandboxes[POD].containers) == MAX_CONTAINERS
    alive = after(seen(container=f"c{at}") for at in range(MAX_CONTAINERS))
    assert is_full(alive)
