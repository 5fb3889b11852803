"""A NIC behind an IOMMU that a VM under KVM has by VFIO: its interrupt is shown with the VM, and moved."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, until
from vmpin.cpuset import CpuSet
from vmpin.features.irqs.irq_files import IrqFiles
from vmpin.host.procfs import Procfs

FILES = IrqFiles(Procfs(), "/sys")


@pytest.fixture
def address() -> Iterator[str]:
    """The PCI address of a NIC that vfio-pci drives."""
    device = Path("/sys/class/net/eth1/device").resolve().parent
    for module in ("vfio_iommu_type1", "allow_unsafe_interrupts=1"), ("vfio-pci",):  # no interrupt remapping here
        subprocess.run(["modprobe", *module], check=True)

    def drive(driver: str) -> None:
        (device / "driver_override").write_text(driver)
        with contextlib.suppress(FileNotFoundError):
            (device / "driver/unbind").write_text(device.name)
        Path("/sys/bus/pci/drivers_probe").write_text(device.name)

    drive("vfio-pci")
    yield device.name
    drive("\n")


def interrupts(vmpin: Vmpin, vm: NestedVm) -> list[dict[str, Any]]:
    (sandbox,) = vmpin.json("status", vm.sandbox)["sandboxes"]
    return list(sandbox["interrupts"]["devices"])


def test_the_interrupt_of_a_passed_through_device_is_shown_with_its_vm_and_moved(
        address: str, nested_vm: StartsVms, kata: Kata, vmpin: Vmpin, watcher: Watcher) -> None:
    vm = nested_vm(vcpus=2, memory=128, extra=["-device", f"vfio-pci,host={address}"])
    name = f"vfio-intx({address})"
    (irq,) = [row.irq for row in FILES.interrupts().rows(b"vfio-") if row.name == name and row.device == address]
    assert irq is not None
    assert list(FILES.vfio_devices(vm.pid)) == [address]
    original, near = FILES.mask(irq), CpuSet.parse("0-3" if FILES.node(irq) == 0 else "4-7")
    vmpin.configure(node__shared_pool="0-1,4-7", watch__resync_seconds=1, proof__sample_seconds=1, irqs__policy="see")
    kata.write(vm, {"main": "2-3"})
    with watcher:
        until(lambda: interrupts(vmpin, vm) == [{"irq": irq, "name": name, "cpus": str(original)}],
              lambda: interrupts(vmpin, vm), every=1.0)
        assert f"{name} (IRQ {irq}) is of its own device and may use CPUs {original}." in vmpin(
            "status", vm.sandbox, "--explain")
    vmpin.configure(irqs__policy="away")
    with watcher:
        wanted = near - CpuSet.parse("2-3")
        until(lambda: FILES.mask(irq) == wanted, lambda: FILES.mask(irq), every=1.0)
        until(lambda: [device["cpus"] for device in interrupts(vmpin, vm)] == [str(wanted)],
              lambda: interrupts(vmpin, vm), every=1.0)
    vmpin("unpin", "--all")
    assert FILES.mask(irq) == original
