"""Interrupts as sentences."""

from __future__ import annotations

from typing import Any

from vmpin.features.irqs import FEATURE
from vmpin.features.irqs.interrupt_table import Growth, IrqKind, IrqRow
from vmpin.features.irqs.irq_counts import MOST, of_interval
from vmpin.features.irqs.irq_text import cpu_notes

ETH, VFIO = IrqRow(142, "eth0-TxRx-3", IrqKind.DEVICE), IrqRow(150, "vfio-msix[0](0000:3b:00.0)", IrqKind.DEVICE)
TICK = IrqRow(None, "Local timer interrupts", IrqKind.TIMER)
GROWN = [Growth(ETH, 7, 3100), Growth(VFIO, 7, 20), Growth(TICK, 7, 2500),
         Growth(IrqRow(None, "NET_RX", IrqKind.SOFTIRQ), 7, 12), Growth(IrqRow(None, "RCU", IrqKind.SOFTIRQ), 7, 3),
         Growth(TICK, 2, 10)]
POD = {"namespace": "demo", "name": "shop"}


def cpu_data() -> list[dict[str, Any]]:
    return [cpu.data({"0000:3b:00.0": "s1"}) for cpu in of_interval(GROWN, 10.0)]


def test_each_cpu_has_its_devices_and_the_rest_by_kind() -> None:
    document = {"features": {"irqs": {"cpus": cpu_data()}}, "sandboxes": [{"id": "s1", "pod": POD}]}
    assert cpu_notes(document) == {
        2: ["CPU 2 took 1.0/s timer interrupts"],
        7: ["CPU 7 took 310/s of eth0-TxRx-3 (IRQ 142)",
            "CPU 7 took 2.0/s of vfio-msix[0](0000:3b:00.0) (IRQ 150), a device of demo/shop",
            "CPU 7 took 250/s timer interrupts, 1.5/s softirqs"]}
    assert cpu_notes(document | {"sandboxes": []})[7][1].endswith(", a device of sandbox s1")


def test_a_document_without_the_feature_has_no_notes() -> None:
    assert FEATURE.cpu_notes is not None
    assert FEATURE.lines is not None
    assert FEATURE.sentences is not None
    assert FEATURE.cpu_notes({}) == FEATURE.cpu_notes({"features": {}}) == {}
    assert FEATURE.lines({}) == FEATURE.sentences({"interrupts": None}) == ()


def test_most_devices_are_counted_only() -> None:
    many = [Growth(IrqRow(number, f"q{number}", IrqKind.DEVICE), 1, number + 1) for number in range(MOST + 5)]
    (cpu,) = of_interval(many, 1.0)
    assert (len(cpu.devices), cpu.more, cpu.devices[0][1]) == (MOST, 5, MOST + 5)
    notes = cpu_notes({"features": {"irqs": {"cpus": [cpu.data({})]}}})[1]
    assert notes[-1] == "CPU 1 took interrupts of 5 more devices"


def test_a_sandbox_has_its_cpus_and_devices() -> None:
    entry = {"id": "s1", "pod": POD, "interrupts": {"cpus": cpu_data()[:1], "devices": [
        {"irq": 150, "name": VFIO.name, "cpus": "4-5"}], "claims": [
        {"irq": 142, "name": ETH.name, "cpus": "7", "why": ""},
        {"irq": 9, "name": "eth1", "cpus": "", "why": "another pod has it"}]}}
    assert FEATURE.lines is not None
    assert FEATURE.sentences is not None
    assert FEATURE.lines(entry) == ["interrupts: CPU 2 took 1.0/s timer interrupts",
                            f"interrupts: {VFIO.name} (IRQ 150) is of its own device and may use CPUs 4-5",
                            f"interrupts: {ETH.name} (IRQ 142) is claimed by an annotation: it is on CPUs 7",
                            "interrupts: eth1 (IRQ 9) is claimed by an annotation: refused, another pod has it"]
    assert next(iter(FEATURE.sentences(entry))) == "CPU 2 took 1.0/s timer interrupts."
