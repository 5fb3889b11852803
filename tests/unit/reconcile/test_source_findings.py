"""Containers on whose CPUs the sources disagree."""

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
from reported import APP, ONLINE, POD, SIDE, UID, container, kubelet, pod, state_of
from ruled import ruled

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Assignments, Ruling, Rulings
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import SandboxSeen, Source
from vmpin.domain.kubelet_cpus import CpuManagerState, UnknownOwner, orphaned, unknown_pods
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import Collision
from vmpin.reconcile.source_findings import (
    RESYNCS,
    AuthorityRivals,
    SourceDisagreements,
    UnknownOwners,
    disagreements,
)
from vmpin.sources.kubelet_process import KubeletProcess
from vmpin.status import collector
from vmpin.status.document import with_doubts


@pytest.mark.parametrize(("known", "state", "text"), [
    (container(nri="2-3", cgroup="2-3"), kubelet({(UID, "app"): "2-3"}), None),
    (container(nri="2-3", cgroup="2-3,9"), None, None),  # 9 is offline
    (container(nri="2-3", bundle="4"), None, None),  # what it began with
    (container(nri="2-3", cgroup="4"), None, "nri 2-3, cgroup 4"),
    (container(nri="2-3"), kubelet({(UID, "app"): "4-5"}), "nri 2-3, kubelet 4-5"),
    (container(nri="1-3"), kubelet({(UID, "app"): "2-3"}), None),  # mixed CPUs
    (container(nri="1-3", cgroup="2-3"), kubelet({(UID, "app"): "2-3"}), "nri 1-3, cgroup 2-3, kubelet 2-3"),
    (container(nri="1-3"), kubelet({(UID, "app"): "2-3", ("other", "db"): "1"}), "nri 1-3, kubelet 2-3"),
    (container(nri="2"), kubelet({(UID, "app"): "2-3"}), "nri 2, kubelet 2-3"),
    (container(nri="2"), kubelet({(UID, "app"): "2-3,9"}), "nri 2, kubelet 2-3,9"),
    (container(nri="2-3"), kubelet({(UID, "app"): "2-3,9"}), None),  # an entry with an offline CPU
    (container(kata="2", nri="3"), None, "kata 2, nri 3"),
    (container(state=ContainerState.STOPPED, nri="2-3", cgroup="4"), None, None),
])
def test_the_source_of_another_cpuset_is_named(known: ContainerRecord, state: CpuManagerState | None,
                                          text: str | None) -> None:
    assert disagreements(pod(known), ruled(state), None, ONLINE).get(APP) == text


def test_podresources_are_a_witness_for_exclusive_cpus_only() -> None:
    sandbox = pod(container(nri="2-3"), container("side", SIDE, nri="0-1"))
    resources = {("ns", "web", "app"): CpuSet.parse("2,4"), ("ns", "web", "side"): EMPTY}
    assert disagreements(sandbox, ruled(None), resources, ONLINE) == {APP: "nri 2-3, podresources 2,4"}
    resources = {("ns", "web", "app"): CpuSet.parse("2")}
    assert disagreements(sandbox, ruled(None), resources, ONLINE) == {}  # mixed CPUs
    assert disagreements(sandbox, ruled(kubelet({(UID, "app"): "2-3"})), resources, ONLINE) == {
        APP: "nri 2-3, kubelet 2-3, podresources 2"}


def test_what_podresources_lists_for_a_whole_pod_is_no_containers() -> None:
    sandbox = pod(container("", nri="2-3"), container("app", SIDE, nri="4"))
    assert disagreements(sandbox, ruled(None), {("ns", "web", ""): CpuSet.parse("2-5")}, ONLINE) == {}


def test_only_a_disagreement_that_lasts_is_reported_and_once(caplog: pytest.LogCaptureFixture) -> None:
    agreement, odd = SourceDisagreements(), state_of(pod(container(nri="2-3", cgroup="4")))
    caplog.set_level(logging.WARNING)
    for now in (100.0, 109.9):
        agreement.compare(odd, ruled(None), ONLINE, 10, now)
        assert agreement.lasting == {}
    for now in (110.0, 120.0):
        agreement.compare(odd, ruled(None), ONLINE, 10, now)
        assert agreement.lasting == {(POD, APP): "nri 2-3, cgroup 4"}
    assert len(caplog.messages) == 1
    # Another one begins anew, and it is over when they agree.
    agreement.compare(state_of(pod(container(nri="2-3", cgroup="5"))), ruled(None), ONLINE, 10, 130.0)
    assert agreement.lasting == {}
    agreement.compare(state_of(pod(container(nri="2-3", cgroup="2-3"))), ruled(None), ONLINE, 10, 150.0)
    assert agreement.lasting == {}
    assert len(caplog.messages) == 1


def test_a_sandbox_that_stayed_as_it_was_is_compared_again_when_a_witness_says_something_else() -> None:
    agreement, state = SourceDisagreements(), state_of(pod(container(nri="2-3", cgroup="2-3")))
    agreement.compare(state, ruled(None), ONLINE, 0, 100.0)
    assert agreement.lasting == {}
    given_out = kubelet({(UID, "app"): "4-5"})
    agreement.compare(state, ruled(given_out), ONLINE, 0, 110.0)
    assert agreement.lasting == {(POD, APP): "nri 2-3, cgroup 2-3, kubelet 4-5"}
    agreement.resources = {("ns", "web", "app"): CpuSet.parse("6")}
    agreement.compare(state, ruled(given_out), ONLINE, 0, 120.0)
    assert agreement.lasting == {(POD, APP): "nri 2-3, cgroup 2-3, kubelet 4-5, podresources 6"}
    agreement.compare(state, ruled(given_out), EMPTY, 0, 130.0)  # none of all these CPUs is online
    assert agreement.lasting == {}


def test_what_a_state_file_kept_of_nri_takes_no_part_until_the_runtime_has_listed_its_containers() -> None:
    """After a restart of the watcher the cgroup is read at once, and NRI's own report comes later."""
    agreement, state = SourceDisagreements(), state_of(pod(container(nri="0-7", cgroup="0,4-7")))
    for now in (100.0, 110.0, 120.0):
        agreement.compare(state, ruled(None), ONLINE, 10, now, nri=False)
        assert agreement.lasting == {}
    agreement.compare(state, ruled(None), ONLINE, 10, 130.0)
    assert agreement.lasting == {}
    agreement.compare(state, ruled(None), ONLINE, 10, 140.0)
    assert agreement.lasting == {(POD, APP): "nri 0-7, cgroup 0,4-7"}


pytest_plugins = ["given_unit"]
WEB = "11111111-0000-0000-0000-000000000001"
KUBELET = CpuManagerState("static", CpuSet((0,)), {(WEB, "app"): CpuSet((1,)), (WEB, "init"): CpuSet((1,))})
EMPTY_STATE = DesiredState()
KNOWN = DesiredState({SandboxId("s"): SandboxState(SandboxId("s"), pod=Pod("ns", "web", WEB))})
TEXT = f"the kubelet gives CPU 1 to pod {WEB}, of which no container is known"


def test_a_pod_is_known_with_its_sandbox_whatever_its_containers_are() -> None:
    """They may wait for an image, or for the end of a back-off."""
    assert unknown_pods(EMPTY_STATE, KUBELET) == {WEB: CpuSet((1,))}
    assert unknown_pods(KNOWN, KUBELET) == {}
    assert unknown_pods(EMPTY_STATE, KUBELET._replace(policy="none")) == {}
    assert unknown_pods(EMPTY_STATE, None) == {}
    whole = CpuManagerState("static", CpuSet((0,)), pods={"p": CpuSet((2, 3))})
    assert unknown_pods(EMPTY_STATE, whole) == {"p": CpuSet((2, 3))}


def test_only_what_lasts_is_a_finding_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pod that was admitted just now; one whose CPUs the kubelet has yet to take back."""
    owners = UnknownOwners(Procfs(), tmp_path)
    caplog.set_level(logging.WARNING)
    for now in (100.0, 129.9):
        owners.compare(EMPTY_STATE, KUBELET, False, True, 30.0, now)
        assert owners.lasting == {}
    for now in (130.0, 140.0):
        owners.compare(EMPTY_STATE, KUBELET, False, True, 30.0, now)
        assert owners.lasting == {WEB: UnknownOwner(WEB, CpuSet((1,)), False)}
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
        (tmp_path / WEB).mkdir()
    os.utime(tmp_path, (0, 0))
    owners = UnknownOwners(Procfs(), tmp_path)
    owners.compare(EMPTY_STATE, KUBELET, nameless, listed, 0.0)
    assert (WEB in owners.lasting) == finding
    if finding:
        where = "on this node" if here else "not on this node"
        assert owners.lasting[WEB].text == f"{TEXT} (that pod is {where})"


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
    owners = UnknownOwners(Procfs(), tmp_path)
    kubelet = KUBELET._replace(written=int((now - written) * 1e9))
    for moment in (100.0, 100.0 + patience):
        owners.compare(EMPTY_STATE, kubelet, False, False, patience, moment)
    assert (WEB in owners.lasting) == finding


@pytest.mark.parametrize("uid", ["..", "a/b", "", "x\x1b[2J", "x" * 5000])
def test_a_uid_that_is_none_names_no_directory(tmp_path: Path, uid: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    os.utime(tmp_path, (0, 0))
    owners = UnknownOwners(Procfs(), tmp_path)
    kubelet = CpuManagerState("static", CpuSet((0,)), {(uid, "app"): CpuSet((1, 2))})
    owners.compare(EMPTY_STATE, kubelet, False, False, 0.0)
    assert not owners.lasting[uid].here
    assert owners.lasting[uid].text.isprintable()
    assert owners.lasting[uid].text.startswith("the kubelet gives CPUs 1-2 to pod ")


def test_a_collision_with_such_a_pod_says_where_it_is() -> None:
    found = [Collision(2, (SandboxId("s"), SandboxId("t")), "exclusive to a"),
             Collision(1, (SandboxId(WEB), SandboxId("s")), "exclusive to app of u, but 6 threads of s may run there")]
    owner = UnknownOwner(WEB, CpuSet((1,)), False)
    assert [each.what for each in with_doubts(found, {WEB: owner}, lambda: "")] == [
        f"exclusive to app of u, but 6 threads of s may run there (of pod {WEB} no container is known: that pod is "
        "not on this node)", "exclusive to a"]


DOUBT = "no kubelet runs, and the checkpoint, written 2026-11-26T05:00:00Z, may be out of date"


def test_without_a_kubelet_every_collision_says_so_and_without_collisions_no_process_is_read() -> None:
    """Each rests on the checkpoint, which is out of date then."""
    assert orphaned(KUBELET._replace(written=1795669200 * 10**9)) == DOUBT
    assert orphaned(KUBELET) == "no kubelet runs, and the checkpoint may be out of date"
    assert orphaned(KUBELET._replace(written=2**63)).startswith("no kubelet runs, and the checkpoint")
    found = [Collision(2, (SandboxId("s"), SandboxId("t")), "exclusive to a"), Collision(1, (SandboxId(WEB),), "b")]
    owner = UnknownOwner(WEB, CpuSet((1,)), False)
    assert [each.what for each in with_doubts(found, {WEB: owner}, lambda: DOUBT)] == [
        f"b (of pod {WEB} no container is known: that pod is not on this node; {DOUBT})", f"exclusive to a ({DOUBT})"]
    asked: list[str] = []
    assert with_doubts([], {}, lambda: asked.append("") or "") == []  # type: ignore[func-returns-value]
    assert asked == []


def test_a_checkpoint_that_its_kubelet_left_behind_may_be_out_of_date(tmp_path: Path) -> None:
    """It has gone on in another directory (--root-dir), as to a larger disk."""
    process(tmp_path / "proc", 20, "kubelet|--root-dir=/data/kubelet")
    (tmp_path / "proc/20/root/data/kubelet").mkdir(parents=True)
    (tmp_path / "kubelet").mkdir()
    owners = UnknownOwners(proc_tree(tmp_path / "proc"), tmp_path / "kubelet/pods")
    assert owners.checkpoint_doubt(KUBELET._replace(written=1795669200 * 10**9)) == DOUBT.replace(
        "no kubelet runs", "the kubelet's directory is /data/kubelet now")
    assert UnknownOwners(owners._proc, tmp_path / "proc/20/root/data/kubelet/pods").checkpoint_doubt(KUBELET) == ""


def test_an_unknown_owner_is_logged_again_once_no_kubelet_runs(tmp_path: Path,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    owners = UnknownOwners(Procfs(), tmp_path)
    caplog.set_level(logging.WARNING)
    for now, doubt in ((100.0, ""), (130.0, ""), (140.0, DOUBT), (150.0, DOUBT)):
        owners.compare(EMPTY_STATE, KUBELET, False, True, 30.0, now, lambda doubt=doubt: doubt)  # type: ignore[misc]
    assert caplog.messages == [
        f"{TEXT} (that pod is not on this node)",
        f"the kubelet's checkpoint gives CPU 1 to pod {WEB}, of which no container is known (that pod is not on this "
        f"node; {DOUBT})"]


def node_of(machine: Machine) -> dict[str, Any]:
    found = collector.document(machine.reconciler.view)["node"]
    assert isinstance(found, dict)
    return found


def test_a_vm_whose_source_was_lost_is_found_by_its_pods_cpus(machine: Machine) -> None:
    """Hooks are the only source, and the state file is gone: the VM goes on the pool, and verify is not content."""
    directory = machine.path / "kubelet"
    (directory / "pods" / WEB).mkdir(parents=True)
    (directory / "cpu_manager_state").write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": str(machine.pool), "entries": {WEB: {"app": str(machine.other)}},
        "checksum": 0}))
    machine.configure()
    machine.resync()
    assert node_of(machine)["unknown_owners"] == []  # a runc pod
    machine.vmm("a")
    machine.resync()
    (found,) = node_of(machine)["unknown_owners"]
    assert (found["pod"], found["cpus"], found["here"]) == (WEB, str(machine.other), True)
    machine.node_state.apply_events([SandboxSeen(sandbox("a"), "oci", Pod("ns", "web", WEB))])
    machine.resync()
    assert node_of(machine)["unknown_owners"] == []


def test_a_watcher_waits_for_some_resyncs(machine: Machine) -> None:
    directory = machine.path / "kubelet"
    directory.mkdir()
    (directory / "cpu_manager_state").write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": str(machine.pool), "entries": {WEB: {"app": str(machine.other)}},
        "checksum": 0}))
    machine.settings["watch.resync_seconds"] = "600"
    machine.configure()
    machine.node_state.begin_watching()
    for _ in range(RESYNCS + 1):
        machine.resync()  # however fast they follow each other
    assert node_of(machine)["unknown_owners"] == []


def test_a_node_without_a_kubelet_is_seen_in_its_collisions_unless_podresources_answers(machine: Machine) -> None:
    """The line of a VM that reaches a listed pod's CPU names the checkpoint as what may be wrong."""
    proc = doubted_checkpoint(machine, WEB)
    (what,) = (each["what"] for each in node_of(machine)["collisions"])
    assert what.endswith(DOUBT + ")")
    machine.node_state.take_pod_resources({})
    assert "kubelet runs" not in node_of(machine)["collisions"][0]["what"]
    machine.node_state.take_pod_resources(None)
    process(proc, 77, "/usr/bin/kubelet --config=x")
    machine.node_state.owner_search.__dict__["_kubelet_process"] = KubeletProcess(proc_tree(proc))
    assert "kubelet runs" not in node_of(machine)["collisions"][0]["what"]


def test_rivals_are_shown_once_they_have_lasted_and_two_lists_at_once_by_a_command(
        caplog: pytest.LogCaptureFixture) -> None:
    """The kubelet gives pod web CPU 2, and another program lets pod db use it; then a claim gives db CPU 2."""
    state = DesiredState({sandbox(name): SandboxState(
        sandbox(name), "nri", Pod("shop", name, name), {ContainerId(name): ContainerRecord(
            Container(ContainerId(name), name, CpuSet.parse("2")), Source.NRI, 1)}) for name in (WEB, "db")})
    static = Ruling("kubelet", Assignments({(WEB, WEB): CpuSet((2,))}, CpuSet((0, 1)), complete=True))
    claim = Ruling("dra", Assignments({("", "db"): CpuSet((2,))}, complete=True))
    found, rulings, online = AuthorityRivals(), Rulings((static,), CpuSet((0, 1))), CpuSet(range(4))
    for now, lasting in ((0.0, 0), (29.0, 0), (30.0, 1), (40.0, 1)):
        found.compare(state, [static], rulings, online, 30.0, now)
        assert len(found.lasting) == lasting
    assert [message.partition(":")[0] for message in caplog.messages] == [
        f"two decide on the same CPUs sandboxes={sandbox(WEB)},{sandbox('db')}"]
    found.compare(DesiredState(), [static], rulings, online, 30.0, 50.0)
    assert found.lasting == []
    command = AuthorityRivals()
    command.compare(state, [static, claim], rulings, online, 0.0)
    assert [rival.authorities for rival in command.lasting] == [("kubelet", "dra")]


def test_claims_beside_a_static_kubelet_are_in_the_status_at_once(machine: Machine) -> None:
    for name in ("kubelet", "cdi"):
        (machine.path / name).mkdir()
    (machine.path / "kubelet/cpu_manager_state").write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": str(machine.pool), "entries": {WEB: {"app": str(machine.other)}},
        "checksum": 0}))
    (machine.path / "cdi/dra.k8s.io-cpu_claim-a.json").write_text(json.dumps({"kind": "dra.k8s.io/cpu", "devices": [
        {"name": "claim-a", "containerEdits": {"env": [f"DRA_CPUSET_a={machine.other}"]}}]}))
    machine.settings["paths.cdi"] = str(machine.path / "cdi")
    machine.configure()
    machine.resync()
    (rival,) = node_of(machine)["rivals"]
    assert (rival["authorities"], rival["cpus"]) == (["kubelet", "dra"], str(machine.other))
