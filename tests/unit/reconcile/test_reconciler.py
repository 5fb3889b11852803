"""A reconciler on adapters of the test's own: a store in memory, a made /sys tree; processes and masks are real."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dra_socket import listening
from newcomers import Machine, mask, sandbox
from trees import make_tree

from vmpin.config import loading
from vmpin.cpuset import CpuSet
from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId
from vmpin.domain.policy import ThreadPolicy
from vmpin.feature import Feature
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.pinning.apply import Outcome
from vmpin.reconcile import node_state
from vmpin.reconcile.reconciler import Reconciler
from vmpin.reconcile.state_file import StateStore
from vmpin.reconcile.state_format import SavedState
from vmpin.runtime.kata import KataSandbox, KataState

pytest_plugins = ["given_unit"]


class Memory(StateStore):
    """Keeps what it is given, as long as `room` is left for it."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere/state"), Path("/nowhere/notes"), "boot", Path("/nowhere/originals"))
        self.kept = SavedState()
        self.room = True
        #: Called before anything is kept.
        self.saving: Callable[[], object] = lambda: None
        self.saves: list[SavedState] = []
        self.notes: list[tuple[SandboxId, CpuSet]] = []

    def load(self, set_aside: bool) -> SavedState:
        return self.kept

    def save(self, kept: SavedState) -> bool:
        self.saving()
        self.failing = "" if self.room else "no room"
        if self.room:
            self.kept = kept
            self.saves.append(kept._replace(originals=dict(kept.originals)))
        return self.room

    def note(self, sandbox: SandboxId, main: ThreadId, had: CpuSet) -> None:
        self.notes.append((sandbox, had))


class Short(Procfs):
    """There is no descriptor left to list the threads of the processes in `short`."""

    def __init__(self, root: str | Path) -> None:
        super().__init__(root)
        self.short: set[int | str] = set()

    def tids(self, pid: int | str) -> list[str]:
        if pid in self.short:
            raise OSError(24, "Too many open files")
        return super().tids(pid)


class Kata(KataState):
    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), Path("/nowhere"), lambda _: None)
        self.found: dict[SandboxId, KataSandbox] = {}

    def sandboxes(self) -> dict[SandboxId, KataSandbox]:
        self.listed = set(self.found)
        return dict(self.found)


class Given:
    """A node of the test's own processes."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        self.config = machine.node_state.config
        self.store, self.kata = Memory(), Kata()
        monkeypatch.setattr(node_state, "StateStore", lambda *_: self.store)
        monkeypatch.setattr(node_state, "KataState", lambda *_: self.kata)
        self.reconciler = self.again()

    def again(self, acts: bool = True) -> Reconciler:
        """As after a restart."""
        self.reconciler = Reconciler(self.config, acts)
        return self.reconciler

    def container(self, name: str, cpus: CpuSet) -> None:
        self.reconciler.node_state.apply_events([SandboxSeen(sandbox(name), "oci"), ContainerSeen(
            sandbox(name), Container(ContainerId(f"c-{name}"), cpuset=cpus), Source.BUNDLE, boottime.now(),
            bundle=str(self.machine.path))])


@pytest.fixture
def given(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(machine, monkeypatch)


def test_original_masks_are_saved_before_the_first_mask_is_set(given: Given) -> None:
    vmm = given.machine.vmm("a")
    masks: list[CpuSet] = []
    given.store.saving = lambda: masks.append(mask(vmm))
    given.reconciler.resync(full=True)
    assert masks == [given.machine.both]
    assert mask(vmm) == given.machine.pool
    (original,) = given.store.saves[0].originals[sandbox("a")].processes.values()
    assert original.main == given.machine.both


def test_a_pass_that_does_not_act_sets_and_saves_nothing_and_the_next_one_does(given: Given) -> None:
    vmm = given.machine.vmm("a")
    planned = given.reconciler.resync(act=False, full=True)
    assert [(each.operation.cpus, each.outcome) for each in planned.results] == [(given.machine.pool, Outcome.DONE)]
    assert (mask(vmm), given.store.saves) == (given.machine.both, [])
    assert given.reconciler.resync().count(Outcome.DONE) == 1
    assert mask(vmm) == given.machine.pool
    assert given.reconciler.resync().results == ()


def test_what_a_store_has_no_room_for_is_unsaved_until_it_has(given: Given) -> None:
    given.store.room = False
    given.machine.vmm("a")
    given.reconciler.resync(full=True)
    assert (bool(given.reconciler.view.save_trouble), given.reconciler.node_state.unsaved) == (True, True)
    given.store.room = True
    assert given.reconciler.node_state.save()
    assert (given.reconciler.view.save_trouble, given.reconciler.node_state.unsaved) == ("", False)


def test_a_restart_goes_on_with_what_the_store_has(given: Given) -> None:
    vmm = given.machine.vmm("a")
    given.container("a", given.machine.other)
    given.reconciler.resync(full=True)
    assert given.reconciler.node_state.save()
    again = given.again()
    assert again.view.sandboxes[sandbox("a")].live()[0].cpuset == given.machine.other
    assert again.resync(full=True).results == ()
    again.unpin([sandbox("a")])
    assert mask(vmm) == given.machine.both
    assert again.view.originals == {}


def test_leaving_suspends_sandboxes_in_this_process_alone(given: Given) -> None:
    given.machine.vmm("a")
    given.reconciler.resync(full=True)
    given.reconciler.unpin([sandbox("a")], leaving=True)
    assert given.reconciler.view.sandboxes[sandbox("a")].suspended
    assert not given.store.kept.state.sandboxes[sandbox("a")].suspended


def test_a_process_that_appears_is_noted_before_its_mask_is_set(given: Given) -> None:
    vmm = given.machine.vmm("a")
    found = given.reconciler.inspect_process(vmm.pid)
    assert found is not None
    placement = given.reconciler.view.placement_at_exec(sandbox("a"))
    assert placement is not None
    assert given.reconciler.assign_processes() == {sandbox("a")}
    given.reconciler.refresh()
    (main,) = given.reconciler.view.vms[sandbox("a")].threads()
    result = given.reconciler.pin_newborn(placement, main, given.machine.both)
    assert result is not None
    assert (result.outcome, mask(vmm)) == (Outcome.DONE, given.machine.pool)
    assert given.store.notes == [(sandbox("a"), given.machine.both)]
    assert given.reconciler.resync().results == ()


def test_kata_says_which_containers_a_sandbox_has(given: Given) -> None:
    vmm = given.machine.vmm("a")
    given.kata.found[sandbox("a")] = KataSandbox(
        sandbox("a"), "kata-go", vmm.pid, (Container(ContainerId("main"), cpuset=given.machine.other),), None, "",
        time.time_ns(), False)
    given.reconciler.resync(full=True)
    assert mask(vmm) == given.machine.other


def test_one_sandbox_that_fails_does_not_stop_another_and_is_logged_once(
        given: Given, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    one, other = given.machine.vmm("a"), given.machine.vmm("b")
    proc = Short(given.config.paths.proc)
    monkeypatch.setattr(node_state, "Procfs", lambda _: proc)
    given.again().resync(act=False, full=True)
    proc.short.add(one.pid)
    given.container("a", given.machine.other)
    given.container("b", given.machine.other)
    with caplog.at_level(logging.ERROR):
        given.reconciler.resync(full=True)
        given.reconciler.resync(full=True)
    assert mask(other) == given.machine.other
    assert [f"sandbox={sandbox('a')}: " in line for line in caplog.messages] == [True]
    proc.short.clear()
    given.reconciler.resync(full=True)
    assert mask(one) == given.machine.other
    given.reconciler.resync(full=True)
    proc.short.add(one.pid)
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        given.reconciler.resync(full=True)
        given.reconciler.resync(full=True)
    assert [f"sandbox={sandbox('a')}: " in line for line in caplog.messages] == [True], "it came back"


def test_the_last_topology_is_used_while_sys_cannot_be_read_and_an_online_cpu_places_again(
        given: Given, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cpus = sorted(given.machine.both)
    tree = make_tree(tmp_path / "sys", f"devices/system/cpu/online = {cpus[0]}\ndevices/system/cpu/possible = 0-63\n")
    given.config = given.config._replace(paths=given.config.paths._replace(sys=tree))
    reconciler = given.again()
    assert reconciler.view.node.online == CpuSet(cpus[:1])
    (tree / "devices/system/cpu/online").write_text(f"{cpus[0]},{cpus[1]}\n")
    reconciler.resync()
    assert reconciler.view.node.online == given.machine.both
    shutil.rmtree(tree)
    with caplog.at_level(logging.ERROR):
        reconciler.resync()
    assert reconciler.view.node.online == given.machine.both
    assert "topology not read" in caplog.text


def test_a_dra_driver_that_was_killed_rules_until_the_next_resync(given: Given) -> None:
    path = given.reconciler.node_state.config.paths.kubelet / "plugins_registry/dra.cpu-reg.sock"
    path.parent.mkdir(parents=True)
    with listening(path):
        os.utime(path, (1, 1))  # not fresh
        given.reconciler.resync()
    given.reconciler.reconcile(())
    assert "dra" in given.reconciler.view.rulings.authorities
    given.reconciler.resync()
    assert "dra" not in given.reconciler.view.rulings.authorities


@pytest.mark.parametrize("file", ["devices/system/cpu/isolated", "fs/cgroup/cpuset.cpus.isolated"])
def test_cpus_that_are_isolated_while_the_watcher_runs_are_read_at_the_next_resync(
        given: Given, tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture) -> None:
    tree = make_tree(tmp_path / "sys", f"devices/system/cpu/online = 0-7\n{file} =\n")
    given.config = given.config._replace(paths=given.config.paths._replace(sys=tree))
    reconciler = given.again()
    for isolated in ("4-5", "4-5,9", ""):
        (tree / file).write_text(f"{isolated}\n")
        with caplog.at_level(logging.INFO):
            reconciler.resync()
        assert reconciler.view.node.topology.isolated == CpuSet.parse(isolated) & CpuSet.parse("0-7")
    assert [line for line in caplog.messages if "isolated" in line] == [
        "isolated CPUs changed from none to 4-5", "isolated CPUs changed from 4-5 to none"]


def test_ended_vms_leave_nothing_behind_but_original_masks_of_processes_that_run(given: Given) -> None:
    vmm, other = given.machine.vmm("a"), given.machine.vmm("b")
    reconciler = given.reconciler
    reconciler.resync(full=True)
    assert reconciler.view.placements.keys() == {sandbox("a"), sandbox("b")}
    for process in (vmm, other):
        process.kill()
        process.wait()
    reconciler.resync(full=True)
    assert (reconciler.view.placements, reconciler.view.vms) == ({}, {})
    assert reconciler.node_state.unsaved


def test_the_configured_annotation_is_used_from_the_start_and_when_it_changes(tmp_path: Path) -> None:
    config = loading.load(None, {}, {"paths.run": str(tmp_path), "policy.exclusive_annotation": "x/y"})
    reconciler = Reconciler(config, acts=False)
    assert reconciler.node_state.sources.kata.exclusive_annotation == "x/y"
    reconciler.node_state.reconfigure(config._replace(policy=config.policy._replace(exclusive_annotation="")))
    assert reconciler.node_state.sources.kata.exclusive_annotation == ""


def test_a_finder_of_nics_is_made_when_the_policy_is_near_for_the_first_time(
        given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    state, finders = given.reconciler.node_state, list[str]()
    near = given.config._replace(policy=given.config.policy._replace(vhost=ThreadPolicy.NEAR))
    monkeypatch.setattr(node_state, "features", tuple)
    state.config = near
    assert state.moved_nics() == set(), "no feature has a finder"

    def make(proc: Procfs, sys_root: str) -> Any:
        finders.append(sys_root)
        return SimpleNamespace(refresh=lambda vms, turn, wanted: {sandbox("a")})

    monkeypatch.setattr(node_state, "features", lambda: (Feature("made", nic_finder=make),))
    for config, moved, count in (
            (given.config, set(), 0), (near, {sandbox("a")}, 1), (given.config, {sandbox("a")}, 1)):
        state.config = config
        assert (state.moved_nics(), len(finders)) == (moved, count)


@pytest.mark.parametrize(("reported", "event", "scans"), [
    (False, SandboxSeen(sandbox("pod"), "nri"), 1),
    (True, SandboxSeen(sandbox("pod"), "nri"), 0),
    (True, SandboxSeen(sandbox("pod"), "oci"), 0),
    (True, SandboxSeen(sandbox("pod"), "nri", handler="kata-qemu"), 1),
    (True, SandboxSeen(sandbox("pod"), "nri", vmm=ThreadId(1, 1)), 1),
    (True, SandboxSeen(sandbox("pod"), "vmm"), 1)])
def test_processes_are_listed_only_for_a_sandbox_that_may_get_a_vm(
        given: Given, reported: bool, event: SandboxSeen, scans: int) -> None:
    """Where the kernel reports every new program, that is one with a sign of a VM: QEMU's -daemonize forks it."""
    node_state = given.reconciler.node_state
    node_state.apply_events([event])
    node_state.forks_reported(reported)
    before = node_state.inventory.process_table.round
    given.reconciler.reconcile([sandbox("pod")])
    assert node_state.inventory.process_table.round - before == scans
