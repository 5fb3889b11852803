"""The status document of a real node of shells: what it reads back, what it is given, and what it leaves out."""

from __future__ import annotations

import json
import os

from need import lacking, need_root
from newcomers import Machine, sandbox

from vmpin.cpuset import CpuSet
from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import ENDED, REMOTE
from vmpin.host import boottime
from vmpin.reconcile.intake import take_nri
from vmpin.sources.nri.nri_events import NriContainer, NriPod, Synced
from vmpin.status import collector
from vmpin.status.collector import WatcherStatus
from vmpin.status.document import NOT_RUNNING, ThreadStatus
from vmpin.wire.nri_enums import RUNNING

pytest_plugins = ["given_unit"]


def entries(machine: Machine, **more: object) -> dict[str, dict[str, object]]:
    found = collector.document(machine.reconciler.view, **more)  # type: ignore[arg-type]
    sandboxes = found["sandboxes"]
    assert isinstance(sandboxes, list)
    return {entry["id"]: entry for entry in sandboxes}


def threads(machine: Machine, name: str) -> list[ThreadStatus]:
    view = machine.reconciler.view
    return collector.threads_of(view, view.vms[sandbox(name)])


def test_masks_are_read_back_and_not_remembered(machine: Machine) -> None:
    vmm = machine.vmm("a")
    machine.resync()
    (before,) = threads(machine, "a")
    assert (before.wanted, before.actual, before.limit) == (machine.pool, machine.pool, None)
    os.sched_setaffinity(vmm.pid, machine.other)
    (after,) = threads(machine, "a")
    assert (after.wanted, after.actual) == (machine.pool, machine.other)
    assert after.limit is None or machine.other <= after.limit


def test_a_thread_that_has_ended_is_left_out(machine: Machine) -> None:
    vmm = machine.vmm("a")
    machine.resync()
    vmm.kill()
    vmm.wait()
    assert threads(machine, "a") == []
    assert entries(machine)[sandbox("a")]["threads"] == []


def test_one_sandbox_is_shown_alone_and_with_more(machine: Machine) -> None:
    for name in ("a", "b"):
        machine.vmm(name)
    machine.resync()
    assert set(entries(machine)) == {sandbox("a"), sandbox("b")}
    found = entries(machine, only=sandbox("a"))
    assert set(found) == {sandbox("a")}
    assert entries(machine)[sandbox("a")]["cgroup"] is None  # which costs more, and is read for `wide` and one alone
    assert entries(machine, wide=True)[sandbox("a")]["cgroup"] == found[sandbox("a")]["cgroup"]


def test_sandboxes_are_sorted_by_namespace_and_name_and_those_without_a_pod_are_last(machine: Machine) -> None:
    for name in ("a", "d", "c", "b"):
        machine.vmm(name)
    machine.resync()
    machine.node_state.apply_events([
        SandboxSeen(sandbox(name), "nri", Pod(namespace, pod, f"u-{name}"))
        for name, namespace, pod in (("a", "shop", "web"), ("c", "shop", "db"), ("d", "demo", "zoo"))])
    assert list(entries(machine)) == [sandbox("d"), sandbox("c"), sandbox("a"), sandbox("b")]


def test_a_sandbox_of_runc_is_no_vm_and_is_shown_among_the_pods_alone(machine: Machine) -> None:
    machine.vmm("a")
    machine.resync()
    runc = sandbox("runc")
    machine.node_state.apply_events([
        SandboxSeen(runc, "nri", Pod("shop", "web", "u-1"), handler="runc"),
        ContainerSeen(runc, Container(ContainerId("c1"), "app", CpuSet((0,))), Source.NRI, 1)])
    assert set(entries(machine)) == {sandbox("a")}
    pods = collector.document(machine.reconciler.view, pods=True)["pods"]
    assert isinstance(pods, list)
    assert {"sandbox": runc, "pod": {"namespace": "shop", "name": "web", "uid": "u-1"}, "containers": [
        {"id": "c1", "name": "app", "pause": False}]} in pods


def test_a_collision_names_pods_and_containers_of_runc_on_either_side(machine: Machine) -> None:
    """Of a shared one without a VM the document has no entry else."""
    for number, (pod, cpus) in enumerate((("web", machine.other), ("db", machine.both))):
        name = SandboxId(f"{number}" * 64)
        machine.node_state.apply_events([
            SandboxSeen(name, "nri", Pod("shop", pod, f"u-{number}"), handler="runc"),
            ContainerSeen(name, Container(ContainerId(f"{number + 2}" * 64), "main", cpus), Source.NRI, 1)])
    machine.reconciler.place()
    document = collector.document(machine.reconciler.view)
    node = document["node"]
    assert isinstance(node, dict)
    (found,) = node["collisions"]
    assert with_names(found["what"], names_of(document)) == (
        "exclusive to main of shop/web, but in the shared cpuset of main of shop/db")


def test_what_feeds_and_guests_report_is_shown_as_it_is_given(machine: Machine) -> None:
    machine.vmm("a")
    machine.resync()
    given: dict[str, object] = {"state": "connected to containerd"}
    found = collector.document(machine.reconciler.view, WatcherStatus(7, given, {"state": "connected"}),
                               entry=lambda data: data["id"])
    sources = found["sources"]
    assert isinstance(sources, dict)
    assert (sources["nri"], sources["new_threads"], found["watcher"]) == (given, {"state": "connected"}, 7)
    assert found["sandboxes"] == [sandbox("a")]
    assert (sources["kubelet"], sources["hooks"]) == (None, {"applied": 0, "refused": 0, "disputed": 0, "last": None})


def test_two_vmms_of_one_sandbox_are_a_finding(machine: Machine) -> None:
    """Both are the tests' own children: the evidence is equal."""
    first = machine.vmm("a")
    machine.resync()
    second = machine.vmm("a")
    machine.resync()
    entry = entries(machine)[sandbox("a")]
    assert (entry["rivals"], entry["verdict"]) == ([first.pid, second.pid], "degraded")
    assert f"processes {first.pid}, {second.pid} all name it as their VM" in str(entry["reasons"])
    second.kill()
    second.wait()
    machine.resync()
    entry = entries(machine)[sandbox("a")]
    assert (entry["rivals"], entry["verdict"]) == ([], "waiting")


def test_a_users_process_that_poses_as_a_vmm_is_shown_and_takes_no_vms_place(machine: Machine) -> None:
    need_root()
    posing = machine.vmm("a", user=61234)
    machine.resync()
    found = collector.document(machine.reconciler.view)
    assert {"pid": posing.pid, "uid": 61234, "sandbox": sandbox("a")} in found["node"]["impostors"]  # type: ignore[index]
    assert entries(machine) == {}
    assert os.sched_getaffinity(posing.pid) == set(machine.both)
    vmm = machine.vmm("a")
    machine.resync()
    entry = entries(machine)[sandbox("a")]
    assert (entry["vmm"]["pid"], entry["rivals"]) == (vmm.pid, [])  # type: ignore[index]


def test_a_vm_on_another_machine_is_no_vmm_that_is_missing(machine: Machine) -> None:
    state = machine.path / "kata_rs" / sandbox("a") / "state.json"
    state.parent.mkdir(parents=True)
    for hypervisor, why in (("qemu", NOT_RUNNING), ("remote", REMOTE)):
        state.write_text(json.dumps({"hypervisor": {"hypervisor_type": hypervisor, "pid": None}}))
        machine.resync()
        entry = entries(machine)[sandbox("a")]
        assert (entry["verdict"], entry["reasons"]) == ("off", [why])


def test_a_pod_that_has_ended_and_is_not_removed_is_no_vmm_that_is_missing(machine: Machine) -> None:
    """A runtime lists it without containers and without a pid."""
    name, node_state = sandbox("a"), machine.node_state
    main = NriContainer(ContainerId("c1"), name, "main", RUNNING, None, {}, 0)

    def listed(*containers: NriContainer, pid: int = 0) -> object:
        pod = NriPod(name, "job", "demo", "u-1", "kata-qemu", pid, {}, "/kubepods/pod1")
        take_nri(node_state, [Synced((pod,), containers, boottime.now())])
        node_state.nri_list_came()
        return entries(machine)[name]["reasons"]

    assert listed(main) == [NOT_RUNNING]
    assert listed() == [ENDED]
    assert entries(machine)[name]["verdict"] == "off"
    unknown = machine.process("new-vmm", "-id", name)
    assert listed(pid=unknown.pid) == [NOT_RUNNING]
    unknown.kill()
    unknown.wait()
    assert listed() == [ENDED]
    shim = machine.shim("a")
    machine.reconciler.inspect_process(shim.pid)
    assert listed() == [NOT_RUNNING]
    shim.kill()
    shim.wait()
    machine.reconciler.inspect_process(shim.pid)
    assert listed() == [ENDED]
    node_state.nri_connection_lost()
    assert entries(machine)[name]["reasons"] == [NOT_RUNNING], "a container may have been created since"


def test_a_vmm_of_any_name_is_placed_once_it_has_kvm_open(machine: Machine) -> None:
    if not os.access("/dev/kvm", os.R_OK):
        lacking("needs /dev/kvm")
    name = f"sandbox-{sandbox('a')}"
    odd = machine.process("vmm", "-name", name, script="read line; exec 3</dev/kvm; echo; read line")
    machine.resync()
    assert entries(machine) == {}
    assert odd.stdin is not None
    assert odd.stdout is not None
    odd.stdin.write(b"\n")
    odd.stdin.flush()
    assert odd.stdout.readline() == b"\n"
    machine.resync()
    assert entries(machine)[sandbox("a")]["vmm"]["pid"] == odd.pid  # type: ignore[index]
    assert os.sched_getaffinity(odd.pid) == set(machine.pool)
