"""Who is placed again, and what is kept of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from ruled import authorities

from vmpin.authorities.authority import Authorities, GivenAuthority
from vmpin.config import loading as settings
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Assignments, Rank, Rulings
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId, ThreadRole
from vmpin.domain.topology import Topology
from vmpin.placement import rulings
from vmpin.placement.rules import UNMANAGED, PlacementRequest
from vmpin.reconcile import placement_cache
from vmpin.reconcile.placement_cache import PlacementCache
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

ONE, TWO = SandboxId("one"), SandboxId("two")


def vm(sandbox: SandboxId, pid: int) -> Vm:
    return Vm(sandbox, QEMU, Process(pid, ThreadId(pid, 1), ThreadRole.EMULATOR, ["qemu-system-x86_64"]))


def fail(sandbox: SandboxId, err: Exception) -> None:
    raise err


@pytest.fixture
def on_node() -> Authorities:
    return authorities(None)


@pytest.fixture
def cache(tmp_path: Path, on_node: Authorities) -> PlacementCache:
    made = PlacementCache(settings.load(None, {}, {"paths.run": str(tmp_path)}), Topology.build(CpuSet(range(4))),
                          on_node, DesiredState(), {})
    made.dirty = {ONE, TWO}
    return made


SIDE = ContainerRecord(Container(ContainerId("side")), Source.BUNDLE, 1)
STATE = DesiredState({sandbox: SandboxState(sandbox, containers={SIDE.container.id: SIDE}) for sandbox in (ONE, TWO)})
VMS = {ONE: vm(ONE, 10), TWO: vm(TWO, 20)}


def test_a_container_without_cpus_of_its_own_changes_no_ownership(cache: PlacementCache) -> None:
    """Readers that follow ownership compare the object alone; its claims are those of now."""
    cache.place_changed(STATE, VMS, lambda _: None, fail)
    before, three = cache.own, SandboxId("three")
    came = DesiredState({**STATE.sandboxes, three: SandboxState(three, containers={SIDE.container.id: SIDE})})
    cache.dirty = {three}
    assert cache.place_changed(came, VMS, lambda _: None, fail) == set()
    assert cache.own is before
    assert cache.own.claims[three].shared == ((SIDE.container.id, None),)
    own = SIDE._replace(container=SIDE.container._replace(cpuset=CpuSet((3,)), exclusive=True))
    cache.dirty = {three}
    cache.place_changed(DesiredState({**came.sandboxes, three: SandboxState(
        three, containers={SIDE.container.id: own})}), VMS, lambda _: None, fail)
    assert cache.own is not before
    assert (str(cache.own.exclusive), str(cache.own.pool)) == ("3", "0-2")


def test_an_assignment_without_cpus_changes_no_ownership_and_one_with_cpus_does(
        cache: PlacementCache, on_node: Authorities) -> None:
    """As a ledger lists each shared container."""
    cache.place_changed(STATE, VMS, lambda _: None, fail)
    before = cache.own

    def ledger(cpus: CpuSet) -> None:
        on_node.put(GivenAuthority(Rank.LEDGER, Assignments({("", SIDE.container.id): cpus}, writes=True)))
        cache.place_changed(STATE, VMS, lambda _: None, fail)

    ledger(EMPTY)
    assert cache.own is before
    ledger(CpuSet((3,)))
    assert (str(before.exclusive), str(cache.own.exclusive)) == ("", "3")


def test_a_container_that_the_ledger_does_not_list_owns_its_cpus_by_the_ledgers_pool(
        cache: PlacementCache, on_node: Authorities) -> None:
    """Whatever the pool was when it was reported: its owner is the same as for a watcher that has just started."""
    unlisted = SIDE._replace(container=SIDE.container._replace(cpuset=CpuSet((2,))))
    state = DesiredState({**STATE.sandboxes, TWO: SandboxState(TWO, containers={SIDE.container.id: unlisted})})
    for pool, owned in (("0-3", ""), ("0-1", "2"), ("2-3", ""), ("3", "2"), ("", ""), ("0", "2"), ("0-1", "2")):
        on_node.put(GivenAuthority(Rank.LEDGER, Assignments(pool=CpuSet.parse(pool), writes=True)))
        cache.place_changed(state, VMS, lambda _: None, fail)
        assert (pool, str(cache.own.exclusive)) == (pool, owned)


def test_ownership_has_the_pods_that_came_after_it(cache: PlacementCache) -> None:
    cache.place_changed(STATE, VMS, lambda _: None, fail)
    named = DesiredState({ONE: STATE.sandboxes[ONE]._replace(pod=Pod("shop", "web", "u1"))})
    cache.dirty = {ONE, TWO}
    cache.place_changed(named, VMS, lambda _: None, fail)
    assert cache.own.pods == {ONE: "u1"}


def test_a_sandbox_without_a_change_is_not_placed_again(cache: PlacementCache) -> None:
    moved: list[SandboxId] = []
    assert cache.place_changed(STATE, VMS, moved.append, fail) == {ONE, TWO}
    assert (set(moved), cache.unsaved) == ({ONE, TWO}, True)
    cache.unsaved = False
    assert cache.place_changed(STATE, VMS, moved.append, fail) == set()
    cache.dirty = {ONE}
    assert cache.place_changed(STATE, VMS, moved.append, fail) == set()  # it is where it was
    assert (len(moved), cache.unsaved) == (2, False)


def test_a_vm_is_unmanaged_until_a_container_of_it_is_known(cache: PlacementCache, on_node: Authorities,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    moved: list[SandboxId] = []
    bare = DesiredState({sandbox: SandboxState(sandbox) for sandbox in (ONE, TWO)})
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert cache.place_changed(bare, VMS, moved.append, fail) == set()
            cache.dirty = {ONE, TWO}
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"unmanaged sandbox={sandbox}: {UNMANAGED}" for sandbox in (ONE, TWO)]
    assert (cache.unmanaged, cache.placements, cache.previous) == (dict.fromkeys((ONE, TWO), UNMANAGED), {}, {})
    assert cache.at_exec(ONE, bare) is None
    cache.dirty = {ONE}
    assert cache.place_changed(STATE, VMS, moved.append, fail) == {ONE}
    assert (set(cache.unmanaged), list(cache.placements)) == ({TWO}, [ONE])
    # It has lost its container: the mask stays.
    cache.dirty = {ONE}
    cache.place_changed(bare, VMS, moved.append, fail)
    assert (set(cache.unmanaged), cache.placements[ONE].mask) == ({TWO}, CpuSet(range(4)))
    # A pool that becomes known takes the other in; what is unpinned by hand is not unmanaged.
    on_node.use_pool(CpuSet(range(4)))
    cache.place_changed(bare, VMS, moved.append, fail)
    assert not cache.unmanaged
    assert set(cache.placements) == {ONE, TWO}


@pytest.mark.parametrize("wrong", ["place", "effective_containers"])
def test_a_sandbox_that_cannot_be_placed_stays_dirty_and_the_others_are_placed(
        cache: PlacementCache, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """Whatever the order is: each of two fails once."""
    right = getattr(placement_cache, wrong)
    for bad, good in ((ONE, TWO), (TWO, ONE)):
        def failing(request: PlacementRequest | SandboxState, *args: object, bad: SandboxId = bad) -> object:
            if request.id == bad:
                raise ZeroDivisionError
            return right(request, *args)

        moved: list[SandboxId] = []
        failed: dict[SandboxId, str] = {}

        def keep(sandbox: SandboxId, err: Exception, failed: dict[SandboxId, str] = failed) -> None:
            failed[sandbox] = repr(err)

        cache.placements.clear()
        cache.dirty = {ONE, TWO}
        monkeypatch.setattr(placement_cache, wrong, failing)
        assert cache.place_changed(STATE, VMS, moved.append, keep) == {good}
        assert (moved, failed, cache.dirty) == ([good], {bad: "ZeroDivisionError()"}, {bad})
        monkeypatch.setattr(placement_cache, wrong, right)
        assert cache.place_changed(STATE, VMS, moved.append, keep) == {bad}
        assert (moved, cache.dirty) == ([good, bad], set())


def test_under_a_checkpoint_one_sandbox_that_fails_does_not_stop_the_others_either(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its pod keeps what the kubelet gives it."""
    kubelet = CpuManagerState("static", CpuSet((0, 1)), {("u", "db"): CpuSet((3,))})
    cache = PlacementCache(settings.load(None, {}, {"paths.run": str(tmp_path)}), Topology.build(CpuSet(range(4))),
                           authorities(kubelet), DesiredState(), {})
    state = DesiredState({ONE: SandboxState(ONE, pod=Pod("n", "p", "u")), TWO: SandboxState(TWO)})
    right, moved, failed = rulings.effective_containers, list[SandboxId](), list[SandboxId]()

    def failing(sandbox: SandboxState, *args: Rulings) -> object:
        if sandbox.id == ONE:
            raise ZeroDivisionError
        return right(sandbox, *args)

    for module in (rulings, placement_cache):
        monkeypatch.setattr(module, "effective_containers", failing)
    cache.dirty = {ONE, TWO}
    assert cache.place_changed(state, VMS, moved.append, lambda sandbox, _: failed.append(sandbox)) == {TWO}
    assert (moved, failed, cache.dirty, cache.own.exclusive) == ([TWO], [ONE], {ONE}, CpuSet((3,)))


@pytest.mark.parametrize(("kubelet", "pool", "unmanaged"), [
    (None, "", True), (CpuManagerState("none", EMPTY), "", True), (CpuManagerState("none", EMPTY), "0-1", False),
    (CpuManagerState("static", CpuSet((0, 1))), "", False),
    # Between the kubelet's two writes: CPUs that are in neither may be reserved.
    (CpuManagerState("static", EMPTY, {("u", "db"): CpuSet((2, 3))}), "", True),
    (CpuManagerState("static", EMPTY), "0-1", True),
])
def test_a_vm_is_unmanaged_where_neither_checkpoint_nor_configuration_give_a_pool(
        kubelet: CpuManagerState | None, pool: str, unmanaged: bool, tmp_path: Path) -> None:
    made = PlacementCache(settings.load(None, {}, {"paths.run": str(tmp_path)}), Topology.build(CpuSet(range(4))),
                          authorities(kubelet, pool=CpuSet.parse(pool)), DesiredState(), {})
    made.dirty = {ONE}
    made.place_changed(DesiredState({ONE: SandboxState(ONE)}), VMS, lambda _: None, fail)
    assert (ONE in made.unmanaged) == unmanaged == (ONE not in made.placements)
    if not unmanaged:
        assert made.placements[ONE].mask == CpuSet((0, 1))
