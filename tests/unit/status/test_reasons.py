"""Why a sandbox has less than was asked: only what its threads' cgroups bear out is said of them."""

from __future__ import annotations

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId, ThreadRole, VmThread
from vmpin.domain.sandbox_placement import Placement, Verdict
from vmpin.status.document import ThreadStatus, judge, thread_data

POD = SandboxId("pod")


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def seen(wanted: str, actual: str, limit: str | None = None, tid: int = 10) -> ThreadStatus:
    thread = VmThread(ThreadId(tid, 1), ThreadRole.EMULATOR, "qemu", 10)
    return ThreadStatus(thread, cpus(wanted), cpus(actual), None if limit is None else cpus(limit))


def state(**containers: str | None) -> SandboxState:
    """By name, with their cpusets."""
    return SandboxState(POD, containers={
        ContainerId(name): ContainerRecord(Container(ContainerId(name), name, None if text is None else cpus(text)),
                                 Source.BUNDLE, 1) for name, text in containers.items()})


PINNED = Placement(POD, cpus("0-1,4-5"), Verdict.PINNED, (), (), {}, {})


def reasons(threads: list[ThreadStatus], **containers: str | None) -> list[str]:
    verdict, found = judge(state(**containers), PINNED, {}, threads)
    assert verdict is Verdict.DEGRADED
    return found


@pytest.mark.parametrize(("actual", "limit", "why"), [
    ("0-1", "0-1,8", "have fewer CPUs than decided: their cpuset cgroup has no others"),
    # Its cgroup has more than the thread, or it is not known what that has: another hand narrowed the mask.
    ("0", "0-1,8", "are misplaced"),
    ("0-1", "0-7", "are misplaced"),
    ("0-1", None, "are misplaced"),
    ("6", "0-7", "are misplaced"),
    # The cgroup has none of them; what the thread has instead has to be the cgroup's.
    ("6", "6-7", "belong on 0-3, but their cpuset cgroup has only 6-7"),
    ("5-6", "6-7", "are misplaced"),
    ("", "0-1", "are misplaced"),
])
def test_the_cgroup_is_named_only_where_it_says_so(actual: str, limit: str | None, why: str) -> None:
    thread = seen("0-3", actual, limit)
    assert reasons([thread, seen("2", "2", tid=11)]) == [f"1 of 2 threads {why}"]
    assert thread_data(thread)["cgroup"] == (None if "misplaced" in why else limit)


def test_each_kind_is_counted_for_itself() -> None:
    found = reasons([seen("0-1", "0", "0,4"), seen("0-1", "4", "4-5"), seen("0-1", "1", "0-1"), seen("0-1", "0-1")])
    assert found == ["1 of 4 threads belong on 0-1, but their cpuset cgroup has only 4-5",
                     "1 of 4 threads have fewer CPUs than decided: their cpuset cgroup has no others",
                     "1 of 4 threads are misplaced"]


def test_threads_that_have_a_part_of_their_cpus_are_not_called_unmoved() -> None:
    """A cgroup that the kubelet has yet to rewrite lets them on the CPUs that it has."""
    waits = PINNED._replace(waiting="waits for the kubelet")
    part, stuck, right = seen("0-1", "1", tid=10), seen("0-1", "4", tid=11), seen("0-1", "0-1", tid=12)
    for threads, text in (([part, right], "1 of 2 threads have only a part of the CPUs"),
                          ([stuck, right], "1 of 2 threads are not moved"),
                          ([part, stuck, right], "1 of 3 threads are not moved, and 1 of 3 threads have only a part "
                                                 "of the CPUs")):
        assert judge(state(), waits, {}, threads) == (Verdict.WAITING, [f"waits for the kubelet: until then {text}"])


def test_a_container_without_a_cpuset_beside_an_exclusive_one_is_named_with_the_way_out() -> None:
    """Kata's sandbox cgroup is the union of the cpusets that there are: on cgroup v2 the whole VMM is in it."""
    threads = [seen("0-1", "4-5", "4-5"), seen("0-1", "4-5", "4-5"), seen("4", "4"), seen("5", "5")]
    (why,) = reasons(threads, main="4-5", side=None)
    assert why == ("2 of 4 threads belong on 0-1, but their cpuset cgroup has only 4-5: that is the union of its "
                   "containers' cpusets, and side has none; give it a cpuset (under the kubelet's static policy "
                   "shared containers have one)")
    # With cpusets of all, or of none, it is something else.
    for containers in ({"main": "4-5", "side": "0-1"}, {"side": None}):
        (why,) = reasons(threads, **containers)
        assert why == "2 of 4 threads belong on 0-1, but their cpuset cgroup has only 4-5"
