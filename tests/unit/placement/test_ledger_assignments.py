"""Placement of what the allocator's ledger grants: own CPUs one-to-one, a VM's spare CPUs for the rest, the others on
the pool."""

from __future__ import annotations

from decided import EIGHT, box, node, vcpus
from ruled import authorities, ruled

from vmpin.authorities.authority import GivenAuthority
from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Assignments, Rank
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, SandboxId, ThreadRole
from vmpin.domain.policy import Policy
from vmpin.domain.sandbox_placement import Verdict
from vmpin.placement.ownership import claims_of, find_collisions, is_exclusive, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.placement.rulings import effective_containers
from vmpin.reconcile.placement_cache import PlacementCache

VM, OTHER = SandboxId("vm"), SandboxId("other")


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def sandbox(name: SandboxId, *containers: Container) -> SandboxState:
    return SandboxState(name, containers={each.id: ContainerRecord(each, Source.NRI, 1) for each in containers})


GRANTED = Assignments({("", "main"): cpus("2-3"), ("", "side"): CpuSet(), ("", "web"): CpuSet()}, cpus("0-1,4-7"),
                      writes=True, spare={("", "main"): cpus("4")})
LEDGER = GivenAuthority(Rank.LEDGER, GRANTED)


def test_own_cpus_are_one_to_one_and_the_spare_ones_are_for_the_rest() -> None:
    """|E ∪ X| = vCPUs: two of the container's quota, one of default_vcpus."""
    machine = node("0-7", "0-1,4-7")
    state = sandbox(VM, box("main", "2-4"))
    containers = effective_containers(state, ruled(None, LEDGER))
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
    containers = effective_containers(state, ruled(None, LEDGER))
    own = ownership({VM: claims_of(containers, machine), OTHER: claims_of(
        effective_containers(sandbox(OTHER, box("main", "2-4")), ruled(None, LEDGER)), machine)}, machine)
    found = place(PlacementRequest(VM, vcpus(0), containers), machine, own, Policy())
    assert (found.verdict, found.mask) == (Verdict.FLOATING, cpus("0-1,4-7"))


def test_what_the_ledger_has_as_shared_owns_nothing() -> None:
    """Reserved CPUs of a container with the policy infra are none of the pool's with strict_reserved."""
    ledger = GivenAuthority(Rank.LEDGER, GRANTED._replace(pool=cpus("4-7")))
    web, other = effective_containers(sandbox(VM, box("web", "0"), box("unknown", "2")), ruled(None, ledger))
    assert not is_exclusive(web)
    assert is_exclusive(other), "the ledger does not have it: the rules are as without one"
    assert other.ruled_by == "pool"


def test_a_static_checkpoint_decides_alone() -> None:
    kubelet = CpuManagerState("static", cpus("0-7"))
    (found,) = effective_containers(sandbox(VM, box("main", "2-4")), ruled(kubelet, LEDGER))
    assert (found.exclusive, found.cpuset, found.spare) == (False, cpus("2-4"), CpuSet())


def test_what_a_grant_concerns_is_placed_again_and_nothing_else() -> None:
    on_node = authorities(None)
    cache = PlacementCache(settings.load(None, {}, {}), EIGHT, on_node, DesiredState(), {})

    def put(assignments: Assignments | None) -> None:
        on_node.put(GivenAuthority(Rank.LEDGER, assignments))
        cache.follow_authorities(state)

    state = DesiredState({VM: sandbox(VM, box("main", "2-4")), OTHER: sandbox(OTHER, box("web", "0"))})
    put(GRANTED)
    assert (cache.dirty, cache.node.shared_pool) == ({VM, OTHER}, cpus("0-1,4-7"))
    cache.dirty = set()
    put(GRANTED._replace())
    assert cache.dirty == set()
    put(GRANTED._replace(exclusive={**GRANTED.exclusive, ("", "main"): cpus("2")}, pool=cpus("0-1,3-7")))
    assert (cache.dirty, cache.node.shared_pool) == ({VM}, cpus("0-1,3-7"))
    put(None)
    assert (cache.dirty, cache.node.shared_pool) == ({VM, OTHER}, None)
