"""A container that comes and goes on CPUs of its own moves no other pod's threads every time: neither its vCPUs on
exclusive CPUs nor those that `spare_vcpus: shared` puts on the shared pool."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from vmpin.authorities.authority import Authorities
from vmpin.authorities.observed_authority import SHARED_FOR, ObservedAuthority
from vmpin.config import loading
from vmpin.cpuset import CpuSet, union
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VcpuState
from vmpin.domain.sandbox_placement import Placement
from vmpin.domain.topology import Topology
from vmpin.reconcile.placement_cache import PlacementCache
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

ONLINE = CpuSet(range(8))
VCPUS = tuple(Vcpu(VcpuId(number)) for number in range(3))
#: Two VMs with CPUs of their own, and a spare vCPU on the pool.
LASTING = {"web": "2-3", "batch": "0-1"}


class Node:
    """VMs of three vCPUs under the authority `observed`, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        authorities = Authorities(None, [ObservedAuthority(lambda: ONLINE, lambda: self.now)])
        config = loading.load(None, {}, {"policy.spare_vcpus": "shared", "policy.emulator": "shared"})
        self.cache = PlacementCache(config, Topology.build(ONLINE), authorities, DesiredState(), {})

    def place(self, pods: Mapping[str, str]) -> dict[str, Placement]:
        """One pass with these pods, each with a container of its name and this cpuset."""
        state = DesiredState({SandboxId(name): SandboxState(
            SandboxId(name), "nri", Pod("default", name, f"uid-{name}"), {ContainerId(name): ContainerRecord(
                Container(ContainerId(name), name, CpuSet.parse(cpus)), Source.NRI, 1)})
            for name, cpus in pods.items()})
        self.cache.dirty |= state.sandboxes.keys() | self.cache.placements.keys()
        vms = {name: Vm(name, QEMU, Process(at, ThreadId(at, 1), ThreadRole.EMULATOR, ["qemu", "-smp", "3"]))
               for at, name in enumerate(state.sandboxes, 10)}
        for vm in vms.values():
            vm.vcpu_state, vm.vcpus = VcpuState.IDENTIFIED, VCPUS
        self.cache.place_changed(state, vms, lambda sandbox: None, _raise)
        return {str(name): placement for name, placement in self.cache.placements.items()}


def _raise(sandbox: SandboxId, err: Exception) -> None:
    raise err


def masks(placement: Placement) -> tuple[object, ...]:
    """The masks of a VM's vCPUs and other threads."""
    return tuple(vcpu.cpus for vcpu in placement.vcpus), tuple(sorted(placement.others.items()))


def changes(lives: Sequence[tuple[str, str, float, float]], until: float = 0.0) -> tuple[list[float], list[str]]:
    """The times at which the masks of `web` changed, and those last. :param lives: a pod that comes and goes: its name
    and cpuset, the seconds that it is there, and those until the next."""
    node = Node()
    last, times = masks(node.place(LASTING)["web"]), []
    states = [(wait, pods) for name, cpus, stays, pause in lives
              for wait, pods in ((0.0, {**LASTING, name: cpus}), (stays, LASTING), (pause, LASTING))]
    for wait, pods in (*states, (until, LASTING)):
        node.now += wait
        placements = node.place(pods)
        _no_foreign_cpu(pods, placements)
        if masks(placements["web"]) != last:
            last = masks(placements["web"])
            times.append(node.now)
    return times, [str(vcpu.cpus) for vcpu in placements["web"].vcpus]


def _no_foreign_cpu(pods: Mapping[str, str], placements: Mapping[str, Placement]) -> None:
    """No vCPU is pinned on a CPU that another pod may use, and none is on another pod's exclusive CPU."""
    for name, placement in placements.items():
        others = union(CpuSet.parse(cpus) for other, cpus in pods.items() if other != name)
        for vcpu in placement.vcpus:
            if vcpu.pinned:
                assert (vcpu.cpus or others).isdisjoint(others)
        pinned = union(vcpu.cpus or CpuSet() for vcpu in placement.vcpus if vcpu.pinned)
        for other, theirs in placements.items():
            for vcpu in theirs.vcpus if other != name else ():
                assert (vcpu.cpus or pinned).isdisjoint(pinned)


def test_a_container_that_comes_each_second_on_cpus_of_its_own_moves_a_spare_vcpu_once() -> None:
    times, _ = changes([("job", "6-7", 0.5, 0.5)] * 60)
    assert times == [0.0]


def test_the_pool_has_the_cpus_back_ten_seconds_after_the_last_owner() -> None:
    times, vcpus = changes([("job", "6-7", 0.5, 0.5)] * 3, SHARED_FOR)
    assert (times, vcpus) == ([0.0, 3.0 + SHARED_FOR], ["4-7", "2", "3"])


def test_a_cpu_that_two_pods_share_for_long_is_in_the_pool_until_it_has_an_owner_again() -> None:
    """The newcomer shares CPU 5 with `job`, which had it alone, and stays."""
    node = Node()
    node.place({**LASTING, "job": "5-7"})
    node.now = 1.0
    assert node.place({**LASTING, "job": "5-7", "more": "5"})["web"].vcpus[0].cpus == CpuSet.parse("4")
    node.now += SHARED_FOR
    assert node.place({**LASTING, "job": "5-7", "more": "5"})["web"].vcpus[0].cpus == CpuSet.parse("4-5")
    node.now += 5
    assert node.place({**LASTING, "job": "5-7"})["web"].vcpus[0].cpus == CpuSet.parse("4-5")
    node.now += SHARED_FOR
    assert node.place({**LASTING, "job": "5-7"})["web"].vcpus[0].cpus == CpuSet.parse("4")


CPUSETS = st.sets(st.integers(0, 7), min_size=1, max_size=5).map(lambda cpus: str(CpuSet(cpus)))
SOON = st.floats(0, SHARED_FOR - 0.1)


@given(CPUSETS, st.lists(st.tuples(st.floats(0, 30), SOON), min_size=1, max_size=12))
def test_a_container_that_comes_again_and_again_moves_other_pods_once(
        cpus: str, lives: list[tuple[float, float]]) -> None:
    """However long it stays, as long as it is never away for ten seconds; on its own CPUs, on the pool, or on those of
    others. While it stays for long on others' CPUs these join the pool, ten seconds later."""
    times, _ = changes([("job", cpus, *life) for life in lives])
    assert all(later - earlier >= SHARED_FOR for earlier, later in itertools.pairwise(times))
    assert len(times) <= 2


@given(st.tuples(CPUSETS, CPUSETS, CPUSETS),
       st.lists(st.tuples(st.integers(0, 2), st.floats(0, 30), st.floats(0, 30)), min_size=1, max_size=10))
def test_each_container_moves_other_pods_at_most_when_it_comes_and_once_after_it_has_gone(
        cpusets: tuple[str, ...], lives: list[tuple[int, float, float]]) -> None:
    """In any ten seconds, whatever the history: a CPU can be given back once, and taken once."""
    times, _ = changes([(f"job{job}", cpusets[job], stays, pause) for job, stays, pause in lives])
    for start in times:
        assert sum(start <= time < start + SHARED_FOR for time in times) <= 2 * len(cpusets)
