"""Placement of what the allocator's ledger grants: own CPUs one-to-one, a VM's spare CPUs for the rest, the others on
the pool."""

from __future__ import annotations

from decided import EIGHT, box, node, vcpus

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.granted_cpus import GrantedCpus
from vmpin.domain.kubelet_cpus import CpuManagerState, effective_containers
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadRole
from vmpin.placement.ownership import claims_of, find_collisions, is_exclusive, ownership
from vmpin.placement.policy import Policy
from vmpin.placement.rules import PlacementRequest, Verdict, place
from vmpin.reconcile.placement_cache import PlacementCache

VM, OTHER = SandboxId("vm"), SandboxId("other")


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def sandbox(name: SandboxId, *containers: Container) -> SandboxState:
    return SandboxState(name, containers={each.id: ContainerRecord(each, Source.NRI, 1) for each in containers})


GRANTED = GrantedCpus({ContainerId("main"): cpus("2-3")}, {ContainerId("main"): cpus("4")},
                      {ContainerId("side"): None, ContainerId("web"): cpus("0")}, cpus("0-1,4-7"))


def test_own_cpus_are_one_to_one_and_the_spare_ones_are_for_the_rest() -> None:
    """|E ∪ X| = vCPUs: two of the container's quota, one of default_vcpus."""
    machine = node("0-7", "0-1,4-7")
    state = sandbox(VM, box("main", "2-4"))
    containers = effective_containers(state, None, GRANTED)
    own = ownership({VM: claims_of(containers, machine)}, machine)
    found = place(PlacementRequest(VM, vcpus(0, 1, 2), containers), machine, own, Policy())
    assert (found.verdict, found.mask, found.reasons) == (Verdict.PINNED, cpus("2-4"), ())
    assert [(each.id, str(each.cpus)) for each in found.vcpus] == [(0, "4"), (1, "2"), (2, "3")]
    assert {found.others[role] for role in (ThreadRole.EMULATOR, ThreadRole.IOTHREAD)} == {cpus("4")}
    assert found.containers == {"main": (1, 2)}
    assert own.exclusive == cpus("2-3")
    assert find_collisions(own) == []


def test_a_vms_container_without_a_cpuset_is_kept_on_the_ledgers_pool() -> None:
    machine = node("0-7", "0-1,4-7")
    state = sandbox(VM, box("side", None))
    containers = effective_containers(state, None, GRANTED)
    own = ownership({VM: claims_of(containers, machine), OTHER: claims_of(
        effective_containers(sandbox(OTHER, box("main", "2-4")), None, GRANTED), machine)}, machine)
    found = place(PlacementRequest(VM, vcpus(0), containers), machine, own, Policy())
    assert (found.verdict, found.mask) == (Verdict.FLOATING, cpus("0-1,4-7"))


def test_what_the_ledger_has_as_shared_owns_nothing() -> None:
    """Reserved CPUs of a container with the policy infra are none of the pool's with strict_reserved."""
    web, other = GRANTED.apply((box("web", "0"), box("unknown", "2")))
    assert not is_exclusive(web, cpus("4-7"))
    assert is_exclusive(other, cpus("4-7")), "the ledger does not have it: the rules are as without one"


def test_a_static_checkpoint_decides_alone() -> None:
    kubelet = CpuManagerState("static", cpus("0-7"))
    (found,) = effective_containers(sandbox(VM, box("main", "2-4")), kubelet, GRANTED)
    assert (found.exclusive, found.cpuset, found.spare) == (False, cpus("2-4"), CpuSet())


def test_what_a_grant_concerns_is_placed_again_and_nothing_else() -> None:
    cache = PlacementCache(settings.load(None, {}, {}), EIGHT, None, {})
    state = DesiredState({VM: sandbox(VM, box("main", "2-4")), OTHER: sandbox(OTHER, box("web", "0"))})
    cache.grant(GRANTED, state)
    assert (cache.dirty, cache.node.shared_pool) == ({VM, OTHER}, cpus("0-1,4-7"))
    cache.dirty = set()
    cache.grant(GRANTED._replace(), state)
    assert cache.dirty == set()
    cache.grant(GRANTED._replace(exclusive={ContainerId("main"): cpus("2")}, pool=cpus("0-1,3-7")), state)
    assert (cache.dirty, cache.node.shared_pool) == ({VM}, cpus("0-1,3-7"))
    cache.grant(None, state)
    assert (cache.dirty, cache.node.shared_pool) == ({VM, OTHER}, None)
