"""How many vCPUs a pod's VM has when its first container is created."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.domain.model import SandboxId
from vmpin.features.allocator.vm_size import VmSize, vm_size_of
from vmpin.host.procfs import Procfs
from vmpin.sources.nri.nri_events import NriPod

ANNOTATED = {"io.katacontainers.config.hypervisor.default_vcpus": "5"}


@pytest.mark.parametrize(("argv", "annotations", "expected"), [
    (["qemu-system-x86_64", "-name", "sandbox-1", "-smp", "1,cores=1,threads=1,sockets=8,maxcpus=8"], {},
     VmSize(True, 1, 8)),
    (["qemu-system-x86_64", "-name", "sandbox-1", "-smp", "3,cores=1,threads=1,sockets=3,maxcpus=3"], ANNOTATED,
     VmSize(True, 3, 3)),
    (["cloud-hypervisor", "--api-socket", "/run/vc/vm/1/clh-api.sock"], ANNOTATED, VmSize(True, 5)),
    (["cloud-hypervisor", "--api-socket", "/run/vc/vm/1/clh-api.sock"], {}, VmSize(True, 7)),
], ids=["QEMU, dynamic", "QEMU, static", "annotated", "configured"])
def test_the_size_of_a_pods_vm(argv: list[str], annotations: dict[str, str], expected: VmSize, tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    pod = NriPod(SandboxId("pod1"), "default", "web", "u-1", "kata", 77, annotations, "")
    assert vm_size_of(pod, Procfs(tmp_path), {"kata": 7}.__getitem__) == expected


@pytest.mark.parametrize(("annotated", "configured", "expected"), [
    ("", 0.5, VmSize(True, 0, part=500)), ("2.25", 1, VmSize(True, 2, part=250)),
    ("0", 1.5, VmSize(True, 1, part=500)), ("-1", 3, VmSize(True, 3)), ("1e400", 3, VmSize(True, 3))])
def test_a_vms_vcpus_may_be_a_fraction(annotated: str, configured: float, expected: VmSize) -> None:
    """Kata adds the containers' limits to it, and rounds the sum up (pkg/oci/utils.go: setFloat32WithCheck)."""
    pod = NriPod(SandboxId("pod1"), "default", "web", "u-1", "kata-clh", 0, {
        "io.katacontainers.config.hypervisor.default_vcpus": annotated}, "")
    assert vm_size_of(pod, Procfs("/nowhere"), lambda handler: configured) == expected


def test_a_pod_of_another_handler_is_no_vm(tmp_path: Path) -> None:
    pod = NriPod(SandboxId("pod1"), "default", "web", "u-1", "runc", 0, ANNOTATED, "")
    assert vm_size_of(pod, Procfs(tmp_path), lambda handler: 1) == VmSize()


def test_a_containers_command_line_that_may_never_be_read_is_left_alone(tmp_path: Path) -> None:
    """The answer to the runtime would wait for it (vmm.recognition.is_containers); a directory raises here."""
    (tmp_path / "77/cmdline").mkdir(parents=True)
    (tmp_path / "77/status").write_text("Name:\tx\nNSpid:\t77\t1\n")
    pod = NriPod(SandboxId("pod1"), "default", "web", "u-1", "runc", 77, {}, "")
    assert vm_size_of(pod, Procfs(tmp_path), lambda handler: 1) == VmSize()


DRAGONBALL = ["/opt/kata/runtime-rs/bin/containerd-shim-kata-v2", "-id", "pod1", "-namespace", "k8s.io"]


@pytest.mark.parametrize("handler", ["", "vm", "dragonball", "my-own"])
@pytest.mark.parametrize("argv", [
    DRAGONBALL,  # the runtime names the thread vmm_master, which has its process's command line
    ["qemu-system-x86_64", "-name", "sandbox-pod1"],
    ["/usr/local/bin/vmm", "-name", "sandbox-pod1"],
    ["/usr/local/bin/vmm", "--api-socket", "/run/kata/pod1/ch-api.sock"]])
def test_a_pod_is_a_vm_by_its_process_under_any_handlers_name(handler: str, argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    pod = NriPod(SandboxId("pod1"), "default", "web", "u-1", handler, 77, {}, "")
    assert vm_size_of(pod, Procfs(tmp_path), lambda handler: 3).vm
    (tmp_path / "77" / "status").write_text("Name:\tx\nNSpid:\t77\t1\n")
    assert vm_size_of(pod, Procfs(tmp_path), lambda handler: 3) == VmSize(), "a container's first process"
    assert vm_size_of(pod, Procfs(tmp_path), lambda handler: 3, {"pod1": True}.__contains__).vm, "it is known for one"


@pytest.mark.parametrize("argv", [["/pause"], ["containerd-shim-runc-v2", "-id", "pod1"],
                                  ["virtiofsd", "--shared-dir=/run/kata-containers/shared/sandboxes/pod1/shared"]])
def test_another_process_makes_no_vm_of_a_pod(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    pod = NriPod(SandboxId("pod1"), "default", "web", "u-1", "vm", 77, {}, "")
    assert vm_size_of(pod, Procfs(tmp_path), lambda handler: 3) == VmSize()


def test_runtime_rs_static_sizing_adds_a_part_of_a_vcpu_to_the_limits(tmp_path: Path) -> None:
    """In place of default_vcpus, also of the annotation's; what QEMU was started with counts before it."""
    (tmp_path / "77").mkdir()
    for argv, expected in ((["cloud-hypervisor", "--api-socket", "/run/kata/1/ch.sock"], VmSize(True, 0, part=200)),
                           (["qemu-system-x86_64", "-name", "sandbox-1", "-smp", "3"], VmSize(True, 3, 3))):
        (tmp_path / "77" / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        pod = NriPod(SandboxId("pod1"), "default", "web", "u-1", "kata", 77, ANNOTATED, "")
        assert vm_size_of(pod, Procfs(tmp_path), lambda handler: 1, overhead={"kata": 200}.get) == expected
