"""Ownership that follows from the cpusets of all containers: it errs towards sharing, at once, and does not flap."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.authorities.observed_authority import SHARED_FOR, ObservedAuthority
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.desired_state import (
    MAX_CONTAINERS,
    MAX_SANDBOXES,
    ContainerRecord,
    DesiredState,
    SandboxState,
)
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId

ONLINE = CpuSet(range(8))


def record(name: str, cpuset: str | None, state: ContainerState = ContainerState.RUNNING, coming: str | None = None,
           requested: bool = False, pause: bool = False) -> ContainerRecord:
    cpus, update = (None if text is None else CpuSet.parse(text) for text in (cpuset, coming))
    container = Container(ContainerId(name), name, cpus, None, state, pause, requested_cpuset=update)
    return ContainerRecord(container, Source.NRI, 1, requested=requested)


def state_of(pods: Mapping[str, list[ContainerRecord]]) -> DesiredState:
    return DesiredState({SandboxId(name): SandboxState(
        SandboxId(name), "nri", Pod("default", name, f"uid-{name}"),
        {record.container.id: record for record in records}) for name, records in pods.items()})


class Node:
    """An authority with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.authority = ObservedAuthority(lambda: ONLINE, lambda: self.now)

    def owned(self, state: DesiredState) -> dict[str, str]:
        assignments = self.authority.assignments(state)
        assert assignments is not None
        return {container: str(cpus) for (_, container), cpus in assignments.exclusive.items()}


@pytest.mark.parametrize(("pods", "owned"), [
    ({"a": [record("a1", "2-3")], "b": [record("b1", "0-1,4-7")]}, {"a1": "2-3", "b1": "0-1,4-7"}),
    ({"a": [record("a1", "2-5")], "b": [record("b1", "0-1,4-7")]}, {"a1": "2-3", "b1": "0-1,6-7"}),
    # Two containers of one pod share: the CPUs are that pod's.
    ({"a": [record("a1", "2-3"), record("a2", "3-4")], "b": [record("b1", "0")]},
     {"a1": "2-3", "a2": "3-4", "b1": "0"}),
    # Two pods in one balloon.
    ({"a": [record("a1", "2-3")], "b": [record("b1", "2-3")]}, {}),
    # A container without a cpuset may use all CPUs, and owns none; a cpuset of every CPU restricts nothing.
    ({"a": [record("a1", "2-3")], "b": [record("b1", None)]}, {}),
    ({"a": [record("a1", "0-7")]}, {}),
    ({"a": [record("a1", "0-9")], "b": [record("b1", None, ContainerState.STOPPED)]}, {}),
    # Ended containers, the sandbox's own one, and one that is not created yet use no CPU.
    ({"a": [record("a1", "2-3")], "b": [record("b1", "2-3", ContainerState.STOPPED), record("b", None, pause=True),
                                        record("b2", None, requested=True)]}, {"a1": "2-3"}),
    # An update counts from the request on.
    ({"a": [record("a1", "2-3")], "b": [record("b1", "4-5", coming="3-5")]}, {"a1": "2", "b1": "4-5"}),
])
def test_a_container_owns_the_cpus_that_no_other_pods_container_may_use(
        pods: dict[str, list[ContainerRecord]], owned: dict[str, str]) -> None:
    assert Node().owned(state_of(pods)) == owned


def test_an_unchanged_answer_is_the_same_object() -> None:
    node = Node()
    first = node.authority.assignments(state_of({"a": [record("a1", "2-3")]}))
    assert node.authority.assignments(state_of({"a": [record("a1", "2-3")], "b": []})) is first


def test_a_newcomer_takes_a_cpu_at_once_and_its_owner_has_it_back_only_after_a_while() -> None:
    node, alone = Node(), state_of({"a": [record("a1", "2-3")]})
    beside = state_of({"a": [record("a1", "2-3")], "b": [record("b1", "3")]})
    assert node.owned(alone) == {"a1": "2-3"}
    changes, before = 0, node.owned(alone)
    for second in range(60):  # a container that is created and removed each second
        node.now = float(second)
        for state in (beside, alone):
            after = node.owned(state)
            changes, before = changes + (after != before), after
            assert after == {"a1": "2"}
    assert changes == 1
    node.now += SHARED_FOR
    assert node.owned(alone) == {"a1": "2-3"}  # the state is that of before: time has passed
    assert node.owned(beside) == {"a1": "2"}


@pytest.mark.parametrize("cpuset", ["3", None])
def test_a_container_that_comes_and_goes_since_before_the_first_look_moves_no_vcpu(cpuset: str | None) -> None:
    """Its end alone gives no CPU to another pod at once, also a CPU that had no owner before."""
    node, alone = Node(), state_of({"a": [record("a1", "3")]})
    beside = state_of({"a": [record("a1", "3")], "b": [record("b1", cpuset)]})
    ended = state_of({"a": [record("a1", "3")], "b": [record("b1", cpuset, ContainerState.STOPPED)]})
    for second in range(30):
        for state in (beside, ended if second % 2 else alone):
            assert node.owned(state) == {}
            node.now += 0.5
    node.now += SHARED_FOR
    assert node.owned(alone) == {"a1": "3"}


def test_an_owner_has_its_cpu_back_ten_seconds_after_the_newcomer_left_however_long_that_was_there() -> None:
    node, alone = Node(), state_of({"a": [record("a1", "2-3")]})
    assert node.owned(alone) == {"a1": "2-3"}
    assert node.owned(state_of({"a": [record("a1", "2-3")], "b": [record("b1", "3")]})) == {"a1": "2"}
    node.now = 104.9
    assert node.owned(alone) == {"a1": "2"}
    node.now += SHARED_FOR - 0.1
    assert node.owned(alone) == {"a1": "2"}
    node.now += 0.1
    assert node.owned(alone) == {"a1": "2-3"}


def test_where_containers_may_be_missing_nothing_is_owned() -> None:
    full = {"a": [record(f"a{number}", "2-3") for number in range(MAX_CONTAINERS)], "b": [record("b1", "4")]}
    assert Node().authority.assignments(state_of(full)) is None
    many = {f"p{number}": [record(f"c{number}", "2")] for number in range(MAX_SANDBOXES)}
    assert Node().authority.assignments(state_of(many)) is None


def test_a_cpu_that_nobody_lost_is_owned_at_once() -> None:
    node = Node()
    assert node.owned(state_of({"a": [record("a1", "0-5")], "b": [record("b1", "0-5")]})) == {}
    assert node.owned(state_of({"a": [record("a1", "0-3")], "b": [record("b1", "4-5")]})) == {"a1": "0-3", "b1": "4-5"}


CPUSETS = st.one_of(st.none(), st.sets(st.integers(0, 7), max_size=6).map(lambda cpus: str(CpuSet(cpus))))
PODS = st.dictionaries(st.sampled_from("abcd"), st.lists(CPUSETS, max_size=3), max_size=4)


@given(st.lists(st.tuples(PODS, st.floats(0, 12)), min_size=1, max_size=8))
def test_no_cpu_is_owned_that_another_pods_container_may_use(
        steps: list[tuple[dict[str, list[str | None]], float]]) -> None:
    """In whichever order containers come and go, after each step; a pod that stays as it was is the same object."""
    node, before = Node(), DesiredState()
    for pods, wait in steps:
        node.now += wait
        state = state_of({name: [record(f"{name}{number}", cpuset) for number, cpuset in enumerate(cpusets)]
                          for name, cpusets in pods.items()})
        before = DesiredState({name: old if (old := before.sandboxes.get(name)) == new else new
                               for name, new in state.sandboxes.items()})
        owned = node.owned(before)
        for name, cpusets in pods.items():
            others = union((CpuSet.parse(cpuset) if cpuset else ONLINE) for other, theirs in pods.items()
                           if other != name for cpuset in theirs)
            for number, cpuset in enumerate(cpusets):
                own = CpuSet.parse(owned.get(f"{name}{number}", ""))
                assert own.isdisjoint(others)
                assert own <= (CpuSet.parse(cpuset) if cpuset else EMPTY)
