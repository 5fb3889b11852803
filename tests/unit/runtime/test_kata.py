"""What Kata's runtimes leave on disk, as it should be."""

from __future__ import annotations

import json
from typing import Any

import kata_state
import pytest
from kata_state import AGO, GO, RS, SID, Disk

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod
from vmpin.runtime.dialect import KATA_BUNDLE
from vmpin.runtime.kata import KataSandbox, parse_go, parse_rs

disk = kata_state.disk


def test_the_go_runtimes_state_has_vmm_containers_and_pod(disk: Disk) -> None:
    disk.write(GO)
    assert disk.state.sandboxes() == {SID: KataSandbox(
        SID, "kata-go", 4242, (
            Container(ContainerId(SID), "", None, pause=True),
            Container(ContainerId("c1"), "app", CpuSet.parse("2-3")),
            Container(ContainerId("c2"))),
        Pod("shop", "web-0", "uid-1"), "0a8b0c0e-1111-4222-8333-444455556666", AGO, False,
        "vsock://77:1024", "qemu")}
    assert disk.complaints == []


def test_runtime_rs_has_neither_vmm_nor_containers(disk: Disk) -> None:
    disk.write(RS, rs=True)
    assert disk.state.sandboxes() == {SID: KataSandbox(SID, "kata-rs", 0, None, None, "", AGO, False)}


def test_runtime_rs_has_the_vmm_where_it_knows_it() -> None:
    state = {**RS, "hypervisor": {**RS["hypervisor"], "pid": 4242, "virtiofs_daemon_pid": 4240}}
    found = parse_rs(SID, json.dumps(state).encode(), AGO)
    assert found.vmm_pid == 4242


def test_a_vm_on_another_machine_is_known_by_its_hypervisor() -> None:
    """virtcontainers/remote.go, Save: the Go runtime records it in the configuration alone."""
    go = {**GO, "HypervisorState": {}, "Config": {**GO["Config"], "HypervisorType": "remote"}}
    rs = {**RS, "hypervisor": {**RS["hypervisor"], "hypervisor_type": "remote"}}
    for here, away, parse in ((GO, go, parse_go), (RS, rs, parse_rs)):
        assert not parse(SID, json.dumps(here).encode(), AGO).remote
        assert parse(SID, json.dumps(away).encode(), AGO).remote


def test_katas_own_pinning_is_reported(disk: Disk) -> None:
    disk.write({**GO, "Config": {**GO["Config"], "EnableVCPUsPinning": True}})
    assert disk.only().pins_vcpus
    rs = {**RS, "resource": {"cgroup_state": {"enable_vcpus_pinning": True}}}
    assert parse_rs(SID, json.dumps(rs).encode(), AGO).pins_vcpus


@pytest.mark.parametrize(("annotations", "alone", "pause"), [
    ({"io.kubernetes.cri.container-type": "sandbox"}, True, True),
    ({"io.kubernetes.cri-o.ContainerType": "sandbox", KATA_BUNDLE: "/o/ID/userdata"}, True, True),
    # Under CRI-O the author's annotations come last there, and no pod is without a pause container.
    ({"io.kubernetes.cri-o.ContainerType": "container", KATA_BUNDLE: "/o/ID/userdata"}, True, True),
    ({"io.kubernetes.cri.container-type": "container"}, False, True),
    ({"io.katacontainers.pkg.oci.container_type": "pod_sandbox"}, True, True),
    ({"io.kubernetes.cri.container-type": "container"}, True, False),
    # No annotation shows what it is: with the sandbox's id, and others beside it, it is the sandbox's own.
    ({}, False, True),
    (None, False, True),
    # And without others (ctr, podman), it is the one that works.
    ({}, True, False),
])
def test_the_sandboxes_own_container_is_recognized_by_annotation_or_id(
        annotations: dict[str, str] | None, alone: bool, pause: bool) -> None:
    configs: list[dict[str, Any]] = [{"ID": SID, "Annotations": annotations}]
    if not alone:
        configs.append({"ID": "c1"})
    found = parse_go(SID, json.dumps({"Config": {"ContainerConfigs": configs}}).encode(), AGO)
    assert found.containers is not None
    assert [each.pause for each in found.containers] == [pause, *([] if alone else [False])]


def test_both_runtimes_sandboxes_are_found(disk: Disk) -> None:
    disk.write(GO, sid="one")
    disk.write(RS, sid="two", rs=True)
    (disk.go / "sbs" / "three").mkdir()
    found = disk.state.sandboxes()
    assert {sid: sandbox.runtime for sid, sandbox in found.items()} == {"one": "kata-go", "two": "kata-rs"}


def test_a_sandbox_that_is_in_both_places_is_the_go_runtimes(disk: Disk) -> None:
    disk.write(GO)
    disk.write(RS, rs=True)
    assert disk.only().runtime == "kata-go"


def test_where_kata_is_not_there_is_nothing(disk: Disk) -> None:
    assert disk.state.sandboxes() == {}
    assert disk.complaints == []


def test_a_stopped_container_is_recognized_by_its_own_file(disk: Disk) -> None:
    disk.write(GO)
    disk.write({"State": "running"}, "c1")
    disk.write({"State": "stopped"}, "c2")
    assert [each.state.value for each in disk.only().containers or ()] == ["running", "running", "stopped"]
    disk.write({"State": "stopped"}, "c1", at=AGO + 1)
    disk.write(b'{"State": "stop', "c2", at=AGO + 1)
    states = {each.id: each.state for each in disk.only().containers or ()}
    assert states[ContainerId("c1")] is ContainerState.STOPPED
    assert disk.complaints == []


@pytest.mark.parametrize(("annotation", "said", "read"), [
    ("vmpin.io/exclusive", "true", True), ("vmpin.io/exclusive", "false", False), ("vmpin.io/exclusive", "yes", None),
    ("", "true", None), ("other", "true", None)])
def test_a_container_declares_its_cpus_its_own_where_that_is_heeded(annotation: str, said: str,
                                                                    read: bool | None) -> None:
    state = {"Config": {"ContainerConfigs": [{"ID": "web", "Annotations": {"vmpin.io/exclusive": said}}]}}
    (container,) = parse_go(SID, json.dumps(state).encode(), AGO, annotation).containers or ()
    assert container.exclusive is read
