"""Pods that the kubelet gives CPUs and of which nothing else is known: a finding when that lasts."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from kubelet_processes import doubted_checkpoint, proc_tree, process
from newcomers import Machine, sandbox

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.events import SandboxSeen
from vmpin.domain.kubelet_cpus import CpuManagerState, UnknownOwner, orphaned, unknown_pods
from vmpin.domain.model import Pod, SandboxId
from vmpin.placement.ownership import Collision
from vmpin.reconcile.unknown_owners import RESYNCS, UnknownOwners
from vmpin.sources.kubelet_process import KubeletProcess
from vmpin.status import collector
from vmpin.status.document import with_doubts

pytest_plugins = ["given_unit"]
UID = "11111111-0000-0000-0000-000000000001"
KUBELET = CpuManagerState("static", CpuSet((0,)), {(UID, "app"): CpuSet((1,)), (UID, "init"): CpuSet((1,))})
EMPTY_STATE = DesiredState()
KNOWN = DesiredState({SandboxId("s"): SandboxState(SandboxId("s"), pod=Pod("ns", "web", UID))})
TEXT = f"the kubelet gives CPU 1 to pod {UID}, of which no container is known"


def test_a_pod_is_known_with_its_sandbox_whatever_its_containers_are() -> None:
    """They may wait for an image, or for the end of a back-off."""
    assert unknown_pods(EMPTY_STATE, KUBELET) == {UID: CpuSet((1,))}
    assert unknown_pods(KNOWN, KUBELET) == {}
    assert unknown_pods(EMPTY_STATE, KUBELET._replace(policy="none")) == {}
    assert unknown_pods(EMPTY_STATE, None) == {}
    whole = CpuManagerState("static", CpuSet((0,)), pods={"p": CpuSet((2, 3))})
    assert unknown_pods(EMPTY_STATE, whole) == {"p": CpuSet((2, 3))}


def test_only_what_lasts_is_a_finding_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pod that was admitted just now; one whose CPUs the kubelet has yet to take back."""
    owners = UnknownOwners(tmp_path)
    caplog.set_level(logging.WARNING)
    for now in (100.0, 129.9):
        owners.compare(EMPTY_STATE, KUBELET, False, True, 30.0, now)
        assert owners.lasting == {}
    for now in (130.0, 140.0):
        owners.compare(EMPTY_STATE, KUBELET, False, True, 30.0, now)
        assert owners.lasting == {UID: UnknownOwner(UID, CpuSet((1,)), False)}
    assert caplog.messages == [f"{TEXT} (that pod is not on this node)"]
    owners.compare(KNOWN, KUBELET, False, True, 30.0, 150.0)
    assert owners.lasting == {}
    owners.compare(EMPTY_STATE, KUBELET, False, True, 30.0, 160.0)  # it has ended: the time begins anew
    assert owners.lasting == {}


@pytest.mark.parametrize(("here", "nameless", "listed", "finding"), [
    (True, False, False, False),  # a runc pod, without NRI
    (True, True, False, True),    # a VM's, whose source was lost
    (True, True, True, False),    # the runtime makes its sandbox just now, or has removed it
    (True, False, True, False),
    (False, False, False, True), (False, True, False, True), (False, False, True, True),
])
def test_a_pod_on_this_node_counts_only_where_a_vm_may_be_its(tmp_path: Path, here: bool, nameless: bool, listed: bool,
                                                             finding: bool) -> None:
    if here:
        (tmp_path / UID).mkdir()
    os.utime(tmp_path, (0, 0))
    owners = UnknownOwners(tmp_path)
    owners.compare(EMPTY_STATE, KUBELET, nameless, listed, 0.0)
    assert (UID in owners.lasting) == finding
    if finding:
        where = "on this node" if here else "not on this node"
        assert owners.lasting[UID].what == f"{TEXT} (that pod is {where})"


@pytest.mark.parametrize(("removed", "written", "patience", "finding"), [
    (0, 3600, 0.0, False), (3600, 0, 0.0, False), (3600, 3600, 0.0, True), (0, 0, 1.0, False),
    (0, 0, 30.0, True),  # that was waited for, and on a busy node some pod always comes or goes
    (-3600, 3600, 0.0, True),  # the wall clock was set back
])
def test_who_does_not_wait_gives_the_kubelet_time(tmp_path: Path, removed: int, written: int, patience: float,
                                                  finding: bool) -> None:
    """A pod has ended and its directory is gone, but not its entry; or it was admitted, and has no directory yet."""
    now = time.time()
    os.utime(tmp_path, (now - removed, now - removed))
    owners = UnknownOwners(tmp_path)
    kubelet = KUBELET._replace(written=int((now - written) * 1e9))
    for moment in (100.0, 100.0 + patience):
        owners.compare(EMPTY_STATE, kubelet, False, False, patience, moment)
    assert (UID in owners.lasting) == finding


@pytest.mark.parametrize("uid", ["..", "a/b", "", "x\x1b[2J", "x" * 5000])
def test_a_uid_that_is_none_names_no_directory(tmp_path: Path, uid: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    os.utime(tmp_path, (0, 0))
    owners = UnknownOwners(tmp_path)
    kubelet = CpuManagerState("static", CpuSet((0,)), {(uid, "app"): CpuSet((1, 2))})
    owners.compare(EMPTY_STATE, kubelet, False, False, 0.0)
    assert not owners.lasting[uid].here
    assert owners.lasting[uid].what.isprintable()
    assert owners.lasting[uid].what.startswith("the kubelet gives CPUs 1-2 to pod ")


def test_a_collision_with_such_a_pod_says_where_it_is() -> None:
    found = [Collision(2, (SandboxId("s"), SandboxId("t")), "exclusive to a"),
             Collision(1, (SandboxId(UID), SandboxId("s")), "exclusive to app of u, but 6 threads of s may run there")]
    owner = UnknownOwner(UID, CpuSet((1,)), False)
    assert [each.what for each in with_doubts(found, {UID: owner}, lambda: "")] == [
        f"exclusive to app of u, but 6 threads of s may run there (of pod {UID} no container is known: that pod is "
        "not on this node)", "exclusive to a"]


DOUBT = "no kubelet runs, and the checkpoint, written 2026-11-26T05:00:00Z, may be out of date"


def test_without_a_kubelet_every_collision_says_so_and_without_collisions_no_process_is_read() -> None:
    """Each rests on the checkpoint, which is out of date then."""
    assert orphaned(KUBELET._replace(written=1795669200 * 10**9)) == DOUBT
    assert orphaned(KUBELET) == "no kubelet runs, and the checkpoint may be out of date"
    assert orphaned(KUBELET._replace(written=2**63)).startswith("no kubelet runs, and the checkpoint")
    found = [Collision(2, (SandboxId("s"), SandboxId("t")), "exclusive to a"), Collision(1, (SandboxId(UID),), "b")]
    owner = UnknownOwner(UID, CpuSet((1,)), False)
    assert [each.what for each in with_doubts(found, {UID: owner}, lambda: DOUBT)] == [
        f"b (of pod {UID} no container is known: that pod is not on this node; {DOUBT})", f"exclusive to a ({DOUBT})"]
    asked: list[str] = []
    assert with_doubts([], {}, lambda: asked.append("") or "") == []  # type: ignore[func-returns-value]
    assert asked == []


def test_an_unknown_owner_is_logged_again_once_no_kubelet_runs(tmp_path: Path,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    owners = UnknownOwners(tmp_path)
    caplog.set_level(logging.WARNING)
    for now, doubt in ((100.0, ""), (130.0, ""), (140.0, DOUBT), (150.0, DOUBT)):
        owners.compare(EMPTY_STATE, KUBELET, False, True, 30.0, now, lambda doubt=doubt: doubt)  # type: ignore[misc]
    assert caplog.messages == [
        f"{TEXT} (that pod is not on this node)",
        f"the kubelet's checkpoint gives CPU 1 to pod {UID}, of which no container is known (that pod is not on this "
        f"node; {DOUBT})"]


def node_of(machine: Machine) -> dict[str, Any]:
    found = collector.document(machine.reconciler.view)["node"]
    assert isinstance(found, dict)
    return found


def test_a_vm_whose_source_was_lost_is_found_by_its_pods_cpus(machine: Machine) -> None:
    """Hooks are the only source, and the state file is gone: the VM goes on the pool, and verify is not content."""
    directory = machine.path / "kubelet"
    (directory / "pods" / UID).mkdir(parents=True)
    (directory / "cpu_manager_state").write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": str(machine.pool), "entries": {UID: {"app": str(machine.other)}},
        "checksum": 0}))
    machine.configure()
    machine.resync()
    assert node_of(machine)["unknown_owners"] == []  # a runc pod
    machine.vmm("a")
    machine.resync()
    (found,) = node_of(machine)["unknown_owners"]
    assert (found["pod"], found["cpus"], found["here"]) == (UID, str(machine.other), True)
    machine.node_state.apply_events([SandboxSeen(sandbox("a"), "oci", Pod("ns", "web", UID))])
    machine.resync()
    assert node_of(machine)["unknown_owners"] == []


def test_a_watcher_waits_for_some_resyncs(machine: Machine) -> None:
    directory = machine.path / "kubelet"
    directory.mkdir()
    (directory / "cpu_manager_state").write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": str(machine.pool), "entries": {UID: {"app": str(machine.other)}},
        "checksum": 0}))
    machine.settings["watch.resync_seconds"] = "600"
    machine.configure()
    machine.node_state.begin_watching()
    for _ in range(RESYNCS + 1):
        machine.resync()  # however fast they follow each other
    assert node_of(machine)["unknown_owners"] == []


def test_a_node_without_a_kubelet_is_seen_in_its_collisions_unless_podresources_answers(machine: Machine) -> None:
    """The line of a VM that reaches a listed pod's CPU names the checkpoint as what may be wrong."""
    proc = doubted_checkpoint(machine, UID)
    (what,) = (each["what"] for each in node_of(machine)["collisions"])
    assert what.endswith(DOUBT + ")")
    machine.node_state.take_pod_resources({})
    assert "kubelet runs" not in node_of(machine)["collisions"][0]["what"]
    machine.node_state.take_pod_resources(None)
    process(proc, 77, "/usr/bin/kubelet --config=x")
    machine.node_state.__dict__["_kubelet_process"] = KubeletProcess(proc_tree(proc))
    assert "kubelet runs" not in node_of(machine)["collisions"][0]["what"]
