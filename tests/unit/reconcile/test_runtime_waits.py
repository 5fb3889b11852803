"""Before the runtime has listed its containers, VMs that it alone knows stay where they are."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from newcomers import Machine, mask, sandbox

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.domain.sandbox_placement import Verdict
from vmpin.host import boottime
from vmpin.placement.rules import UNLISTED
from vmpin.reconcile.reconciler import Reconciler
from vmpin.reconcile.runtime_waits import AWAITED_FOR, WAITS, FirstList
from vmpin.status.document import judge

pytest_plugins = ["given_unit"]
ONE = SandboxId("one")
BARE = SandboxState(ONE)
RECORD = ContainerRecord(Container(ContainerId("main")), Source.BUNDLE, 1)
REPORTED = SandboxState(ONE, containers={RECORD.container.id: RECORD})


def test_a_socket_that_cannot_be_looked_at_is_not_awaited(tmp_path: Path) -> None:
    """As one in a directory of root's for another user (EACCES); root meets another error of the same call."""
    config = settings.load(None, {}, {"paths.nri": str(tmp_path / ("n" * 300))})
    assert not FirstList.of(config, DesiredState(), lambda sandbox: False).awaited


@pytest.mark.parametrize(("connects", "known", "in_file", "state", "held", "waits"), [
    (True, False, False, None, True, True),
    (True, False, False, BARE, True, True),
    (True, False, False, REPORTED, True, True),   # one of its containers may be all that the spool has
    (True, True, False, REPORTED, False, True),   # from the state file: its CPUs may be others by now
    (True, False, True, REPORTED, False, False),  # Kata's file is up to date
    (False, False, False, BARE, True, False),     # no list comes to `vmpin repin`
    (False, False, False, REPORTED, False, False),
])
def test_a_vm_is_held_until_the_list_unless_a_file_knows_its_containers(
        connects: bool, known: bool, in_file: bool, state: SandboxState | None, held: bool, waits: bool) -> None:
    first = FirstList(True, {ONE} if known else set(), lambda sandbox: in_file)
    if connects:
        first.connect(wanted=False)
    assert (first.defers(ONE, state), first.waits(ONE)) == (held, WAITS if waits else "")
    assert first.came()
    assert (first.defers(ONE, state), first.waits(ONE)) == (False, "")
    assert not first.came()  # a later list changes nothing


@pytest.mark.parametrize(("nri", "socket", "wanted", "awaited"), [
    ("auto", True, False, True), ("auto", False, False, False), ("on", False, True, True), ("off", True, False, False),
])
def test_a_list_is_awaited_where_there_is_a_runtime_to_send_it(tmp_path: Path, nri: str, socket: bool, wanted: bool,
                                                               awaited: bool) -> None:
    if socket:
        (tmp_path / "nri").touch()
    config = settings.load(None, {}, {"paths.nri": str(tmp_path / "nri"), "watch.nri": nri})
    first = FirstList.of(config, DesiredState({ONE: BARE}), lambda sandbox: False)
    if wanted:
        first.connect(wanted)
    assert first.awaited == awaited
    assert first.defers(ONE, BARE) == awaited  # a state file without its containers does not know it


def test_a_list_is_not_awaited_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    first = FirstList(True)
    assert not first.overdue()  # nothing connects
    first.connect(wanted=False, seconds=600.0)
    assert not first.overdue()
    first.connect(wanted=False, seconds=0.0)
    with caplog.at_level(logging.WARNING):
        assert first.overdue()
        assert not first.overdue()
    assert not first.awaited
    assert len(caplog.messages) == 1


def started(machine: Machine) -> Reconciler:
    """A watcher's, on a node whose runtime has NRI."""
    (machine.path / "nri").touch()
    machine.configure()
    machine.node_state.first_list.connect(wanted=False)
    return machine.reconciler


def test_without_a_state_no_vm_is_moved_to_the_pool_before_the_list(machine: Machine) -> None:
    """An exclusive VM of runtime-rs, whose containers only the runtime knows."""
    reconciler, vmm, name = started(machine), machine.vmm("a"), sandbox("a")
    os.sched_setaffinity(vmm.pid, machine.other.frozen())
    machine.resync()
    assert mask(vmm) == machine.other
    assert reconciler.view.unmanaged == {name: UNLISTED}
    assert judge(reconciler.view.sandboxes[name], None, {}, [], unmanaged=UNLISTED) == (Verdict.WAITING, [UNLISTED])
    machine.executed(born := machine.shim("a"))  # what is born meanwhile, too
    assert mask(born) == machine.both
    reconciler.node_state.nri_list_came()
    reconciler.node_state.apply_events([SandboxSeen(name, "nri", Pod("ns", "web", "u")), ContainerSeen(
        name, Container(ContainerId("main"), "main", machine.other, True), Source.NRI, boottime.now())])
    machine.resync()
    assert mask(vmm) == machine.other
    assert reconciler.node_state.placements[name].verdict is not Verdict.UNMANAGED
    assert reconciler.view.unmanaged == {}


def test_a_vm_without_containers_goes_on_the_pool_with_the_list(machine: Machine) -> None:
    reconciler, vmm = started(machine), machine.vmm("a")
    machine.resync()
    assert mask(vmm) == machine.both
    reconciler.node_state.nri_list_came()
    machine.resync()
    assert mask(vmm) == machine.pool


def test_what_a_state_file_has_is_placed_but_waits_for_the_list(machine: Machine,
                                                                caplog: pytest.LogCaptureFixture) -> None:
    """A pod of runtime-rs changed while the watcher was away: its cgroup refuses the CPUs from before."""
    name = sandbox("a")
    machine.report("a", machine.other)
    machine.node_state.save()
    reconciler, vmm = started(machine), machine.vmm("a")
    machine.resync()
    assert mask(vmm) == machine.other
    placement = reconciler.node_state.placements[name]
    assert placement.waiting == WAITS
    nowhere = CpuSet((8191,))  # no kernel sets that, as no cgroup does that lacks it
    reconciler.node_state.placement_cache.placements[name] = placement._replace(
        mask=nowhere, others=dict.fromkeys(placement.others, nowhere))
    reconciler.node_state.pinner.recheck(name)
    reconciler.reconcile([name])
    assert reconciler.node_state.pinner.refusals(name) == []
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
    reconciler.node_state.nri_list_came()
    machine.resync()
    assert reconciler.node_state.placements[name].waiting == ""


def test_the_last_list_counts_for_a_while_after_the_connection_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    first, complete = FirstList(), []
    for step, seconds in ((lambda: None, 0.0), (first.connection_lost, 0.0), (first.came, 1e6),
                          (first.connection_lost, AWAITED_FOR - 1), (first.connection_lost, 0.9), (lambda: None, 0.1),
                          (first.came, 1e6)):
        step()
        now[0] += seconds
        complete.append(first.complete)
    # Before any list; after one; with attempts to connect that fail meanwhile, 30 s after its end; and after the next.
    assert complete == [False, False, True, True, True, False, True]
