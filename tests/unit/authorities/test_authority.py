"""Which authority decides on a container, and that one which nothing knows yet needs no change elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ruled import authorities, ruled

from vmpin.authorities.authority import Authorities, GivenAuthority
from vmpin.authorities.observed_authority import ObservedAuthority
from vmpin.config import loading as settings
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Assignments, Owner, Rank
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId, ThreadRole
from vmpin.domain.sandbox_placement import Placement
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import find_collisions
from vmpin.placement.rulings import effective_containers
from vmpin.reconcile.placement_cache import PlacementCache
from vmpin.status.document import sandbox_data
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

EIGHT = CpuSet(range(8))
WEB, BATCH = SandboxId("sandbox-web"), SandboxId("sandbox-batch")


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def pod(name: str, cpuset: str | None, declared: bool | None = None) -> SandboxState:
    """A pod with one container, `main`, whose id is its pod's name."""
    container = Container(ContainerId(name), "main", (cpuset and cpus(cpuset)) or None, declared)
    return SandboxState(SandboxId(f"sandbox-{name}"), "nri", Pod("default", name, f"uid-{name}"),
                        {container.id: ContainerRecord(container, Source.NRI, 1)})


def state_of(*pods: SandboxState) -> DesiredState:
    return DesiredState({each.id: each for each in pods})


def claims(listed: Mapping[Owner, str], complete: bool = True, pool: CpuSet | None = None) -> GivenAuthority:
    """A DRA driver's claims."""
    return GivenAuthority(Rank.DRA, Assignments({owner: cpus(text) for owner, text in listed.items()}, pool,
                                                       complete))


def observed() -> ObservedAuthority:
    return ObservedAuthority(lambda: EIGHT)


class OnNode:
    """VMs of three vCPUs on a node with some authorities, as the reconciler has them placed."""

    def __init__(self, on_node: Authorities) -> None:
        self.authorities = on_node
        self.cache = PlacementCache(settings.load(None, {}, {}), Topology.build(EIGHT), on_node, DesiredState(), {})
        self.state = DesiredState()

    def place(self, state: DesiredState) -> dict[SandboxId, Placement]:
        """Place the sandboxes that differ from those of the last call."""
        before, self.state = self.state, state
        self.cache.dirty |= {name for name, pod in state.sandboxes.items() if before.sandboxes.get(name) != pod}
        vms = {name: Vm(name, QEMU, Process(at, ThreadId(at, 1), ThreadRole.EMULATOR, ["qemu", "-smp", "3"]))
               for at, name in enumerate(state.sandboxes, 10)}
        self.cache.place_changed(state, vms, lambda sandbox: None, self._failed)
        return self.cache.placements

    @staticmethod
    def _failed(sandbox: SandboxId, err: Exception) -> None:
        raise err

    def shown(self, sandbox: SandboxState) -> dict[str, Any]:
        """The sandbox's only container in the status document."""
        document = sandbox_data(sandbox, self.cache.placements.get(sandbox.id), None, "names", [],
                                rulings=self.cache.rulings)
        containers: Any = document["containers"]
        assert len(containers) == 1
        return dict(containers[0])


STATIC = CpuManagerState("static", cpus("0-5"), {("uid-web", "main"): cpus("6-7")})
CLAIMED = claims({("uid-web", "main"): "4-5"})


@pytest.mark.parametrize(("kubelet", "more", "declared", "by", "own"), [
    (STATIC, [CLAIMED], True, "kubelet", "6-7"),
    (STATIC._replace(entries={}), [CLAIMED], True, None, ""),  # complete: nothing weaker is asked
    (STATIC._replace(policy="none"), [CLAIMED], True, "dra", "4-5"),
    (None, [CLAIMED], True, "dra", "4-5"),
    (None, [claims({})], True, None, ""),
    (None, [claims({}, complete=False)], True, "declared", "2-3"),
    (None, [claims({("uid-web", "main"): ""}, complete=False)], True, None, ""),  # listed, and owns nothing
    (None, [], None, "pool", "2-3"),
    (None, [], False, None, ""),
    (None, [GivenAuthority(Rank.DRA, None)], None, "pool", "2-3"),  # it does not rule
    (None, [claims({("", "web"): "2"}), GivenAuthority(Rank.LEDGER, Assignments({("", "web"): cpus("3")}))],
     None, "ledger", "3"),
])
def test_the_strongest_authority_that_lists_a_container_or_is_complete_decides(
        kubelet: CpuManagerState | None, more: list[GivenAuthority], declared: bool | None, by: str | None,
        own: str) -> None:
    web = pod("web", "2-3", declared)
    (container,) = effective_containers(web, ruled(kubelet, *more, pool=cpus("0-1")))
    assert (container.ruled_by or None, str(container.own_cpus) if container.exclusive else "") == (by, own)


def test_an_authority_is_replaced_by_one_of_its_rank_whatever_the_order_they_come_in() -> None:
    on_node = authorities(None)
    on_node.put(observed())
    on_node.put(claims({}, complete=False))
    on_node.put(GivenAuthority(Rank.KUBELET, Assignments(complete=False)))
    on_node.put(claims({("", "web"): "1"}, complete=False))
    rulings = on_node.rulings(DesiredState())
    assert [ruling.authority for ruling in rulings.by_rank] == ["kubelet", "dra", "declared", "pool", "observed"]
    assert rulings.by_rank[1].assignments.exclusive == {("", "web"): cpus("1")}
    on_node.put(observed(), rules=False)
    assert on_node.rulings(DesiredState()).by_rank == rulings.by_rank[:-1]


def test_a_made_up_authority_decides_without_a_change_in_placement_or_reconcile() -> None:
    """DRA's claims, between the kubelet and declarations: own CPUs, mixed ones, stale ones, and the reason."""
    node = OnNode(authorities(None, pool=cpus("0-1")))
    web, batch = pod("web", "4-6"), pod("batch", "0-7")
    state = state_of(web, batch)
    node.place(state)
    assert (node.shown(web)["exclusive_by"], node.shown(batch)["exclusive"]) == ("pool", False)
    node.authorities.put(CLAIMED)
    placed = node.place(state)
    assert (placed[WEB].mask, placed[BATCH].mask) == (cpus("4-6"), cpus("0-3,6-7"))
    shown = node.shown(web)
    assert (shown["exclusive_by"], shown["own_cpus"], shown["kubelet"]) == ("dra", "4-5", None)
    assert (node.shown(batch)["exclusive_by"], node.shown(batch)["stale_cpuset"]) == (None, "0-7")
    assert {each.what for each in find_collisions(node.cache.own)} == {
        "exclusive to web of sandbox-web, but in the cpuset, which the DRA driver has yet to rewrite, of batch of "
        "sandbox-batch"}
    # Another claim concerns every sandbox, and none at all leaves it to the weaker ones.
    node.authorities.put(claims({("uid-web", "main"): "6"}))
    assert node.place(state)[BATCH].mask == cpus("0-5,7")
    node.authorities.put(GivenAuthority(Rank.DRA, None))
    node.place(state)
    assert node.shown(web)["exclusive_by"] == "pool"


def test_a_vm_waits_for_the_program_that_is_to_rewrite_its_cpuset() -> None:
    node = OnNode(authorities(None, CLAIMED, pool=cpus("0-1")))
    (placed,) = node.place(state_of(pod("batch", "4-5"))).values()
    assert (placed.mask, placed.waiting) == (
        cpus("0-1"), "waits for the DRA driver to rewrite the cpuset of main from 4-5 to 0-1")


def test_a_pod_as_a_whole_has_cpus_from_any_authority() -> None:
    """Pod-level: no container of it is listed, and its CPUs are no other pod's."""
    node = OnNode(authorities(None, claims({("uid-web", ""): "4-5"}, pool=EMPTY)))
    placed = node.place(state_of(pod("web", None), pod("batch", "0-7")))
    assert (placed[WEB].mask, placed[BATCH].mask) == (cpus("4-5"), cpus("0-3,6-7"))
    assert node.cache.own.rest_of_pod(WEB) == cpus("4-5")


def test_an_authority_may_follow_from_the_cpusets_of_all_containers() -> None:
    """Observed: it needs no list, and errs towards sharing."""
    node = OnNode(authorities(None, observed()))
    web, batch = pod("web", "2-4"), pod("batch", "0-1,4-7")
    node.place(state_of(web, batch))
    assert (node.shown(web)["exclusive_by"], node.shown(web)["own_cpus"]) == ("observed", "2-3")
    assert [(str(cpuset), owner) for owner, cpuset in node.cache.own.claims[WEB].exclusive] == [("2-3", "web")]
    # What another pod does concerns this one, although its own containers did not change.
    node.place(state_of(web, pod("batch", "0-2,4-7")))
    assert node.shown(web)["own_cpus"] == "3"
    node.place(state_of(web, pod("batch", None)))
    assert node.shown(web)["exclusive_by"] is None
