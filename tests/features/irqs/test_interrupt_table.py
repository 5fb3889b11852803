"""The parsing of /proc/interrupts: what grew on chosen CPUs, by architecture, at what cost, and of hostile text."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupt_files import ALL, ARM64, PPC64LE, RISCV64, S390X, X86, interrupts

from vmpin.cpuset import CpuSet
from vmpin.features.irqs import interrupt_table
from vmpin.features.irqs.interrupt_table import InterruptTable, IrqKind, IrqRow

EVERY = CpuSet(range(512))


def grown(before: bytes, after: bytes, cpus: CpuSet = EVERY) -> list[tuple[str, str, int, int]]:
    growths = InterruptTable(after).grown(InterruptTable(before), cpus)
    return [(growth.row.name, str(growth.row.kind), growth.cpu, growth.grew) for growth in growths]


def rows(raw: bytes) -> dict[str, IrqRow]:
    table = InterruptTable(raw)
    return {label.decode().strip(): table.row(label) for label in table.lines}


def test_what_grew_is_counted_by_row_and_cpu_without_the_offline_one() -> None:
    after = X86.replace(b"      3100 ", b"      3410 ").replace(b"  14075175 ", b"  14075176 ").replace(
        b"38980753          4", b"38980853         14")
    assert grown(X86, after) == [("virtio1-req.0", "device", 2, 1), ("eth0-TxRx-3", "device", 3, 310),
                                 ("Local timer interrupts", "timer", 2, 100),
                                 ("Local timer interrupts", "timer", 3, 10)]
    assert grown(X86, after, CpuSet((3,))) == [("eth0-TxRx-3", "device", 3, 310),
                                               ("Local timer interrupts", "timer", 3, 10)]
    assert grown(X86, after, CpuSet((1,))) == grown(X86, X86) == []


def test_rows_of_x86_are_named_by_their_drivers() -> None:
    found = rows(X86)
    assert found["16"] == IrqRow(16, "ehci_hcd:usb1, i801 smbus", IrqKind.DEVICE)
    assert found["30"] == IrqRow(30, "", IrqKind.DEVICE)
    assert (found["0"].kind, found["RES"].kind, found["PIN"].kind) == (IrqKind.TIMER, IrqKind.IPI, IrqKind.POSTED)
    assert (found["NMI"].kind, found["142"].device) == (IrqKind.OTHER, "")
    assert (found["150"].name, found["150"].device) == ("vfio-msix[0](0000:5e:00.0)", "0000:5e:00.0")


@pytest.mark.parametrize(("raw", "kinds"), [
    (ARM64, {"timer": "11", "ipi": "IPI0 IPI5", "device": "14 48 60 61 62 63", "other": "Err"}),
    (RISCV64, {"timer": "5", "ipi": "IPI1", "device": "12 13 14"}),
    (PPC64LE, {"timer": "LOC BCT LOC", "ipi": "16 DBL", "device": "21 22", "other": "SPU PMI MCE NMI WDG"}),
    (S390X, {"timer": "CLK", "ipi": "EXC EMS", "device": "3 4 VRT DAS QAI PCF MSI",
             "other": "EXT I/O AIO SCP NMI"})], ids=["arm64", "riscv64", "ppc64le", "s390x"])
def test_each_row_of_other_architectures_has_its_kind(raw: bytes, kinds: dict[str, str]) -> None:
    table = InterruptTable(raw)
    parsed: dict[str, list[str]] = {}
    for label in table.lines:
        parsed.setdefault(str(table.row(label).kind), []).append(label.decode().strip())
    assert parsed == {kind: labels.split() for kind, labels in kinds.items()}


@pytest.mark.parametrize(("raw", "names"), [
    (ARM64, {11: "arch_timer", 14: "arm-pmu", 48: "eth 0 of board", 60: "nvme0q1", 61: "eth0-TxRx-3", 62: "",
             63: "arm-smmu-v3-evtq, arm-smmu-v3-gerror"}),
    (RISCV64, {5: "riscv-timer", 12: "ttyS0", 13: "ttyS4", 14: "virtio1-input.0"}),
    (PPC64LE, {16: "IPI-0", 21: "eth0", 22: "mlx5_comp1@pci:0001:00:00.0"}),
    (S390X, {3: "mlx5_async0@pci:0000:00:00.0", 4: "mlx5_comp0@pci:0000:00:00.0"})],
    ids=["arm64", "riscv64", "ppc64le", "s390x"])
def test_interrupts_of_other_architectures_are_named_by_their_drivers(raw: bytes, names: dict[int, str]) -> None:
    assert {row.irq: row.name for row in InterruptTable(raw).rows()} == names


def test_both_rows_of_the_timer_of_powerpc_count() -> None:
    after = PPC64LE.replace(b"190994", b"190999").replace(b" 19   Local", b" 21   Local")
    assert grown(PPC64LE, after) == [("Local timer interrupts for timer event device", "timer", 0, 5),
                                     ("Local timer interrupts for others", "timer", 8, 2)]


def test_sums_of_other_rows_do_not_count_again() -> None:
    after = S390X.replace(b"90210", b"90215").replace(b"40210", b"40215").replace(b"295", b"297").replace(
        b"300", b"302")
    assert grown(S390X, after) == [("mlx5_comp0@pci:0000:00:00.0", "device", 1, 2),
                                   ("[EXT] Clock Comparator", "timer", 0, 5)]


def test_an_interrupt_is_described_by_what_follows_its_counts() -> None:
    described = InterruptTable(X86).descriptions()
    assert (described[16], described[30], described[142]) == (
        "IO-APIC 16-fasteoi ehci_hcd:usb1, i801 smbus", "PCI-MSIX-0000:00:01.0 2-edge",
        "IR-PCI-MSIX-0000:3b:00.0 3-edge eth0-TxRx-3")
    assert InterruptTable(b"CPU0\n 1: 2\n x: 2 y\n").descriptions() == {}


@pytest.mark.parametrize(("name", "device"), [
    ("vfio-msi[31](0000:3b:00.1)", "0000:3b:00.1"), ("vfio-intx(10000:3b:00.0)", "10000:3b:00.0"),
    ("vfio-msix[0](0000:3b:00.0), x", ""), ("vfio-msix[0](../../x)", "")])
def test_the_device_of_a_vm_is_in_the_name(name: str, device: str) -> None:
    assert IrqRow(7, name, IrqKind.DEVICE).device == device


def test_counters_wrap_and_begin_anew() -> None:
    def file(count: int) -> bytes:
        return interrupts([0], {9: "eth0"}, {(9, 0): count})

    assert grown(file(2**32 - 2), file(3)) == [("eth0", "device", 0, 5)]
    assert grown(file(1000), file(3)) == [("eth0", "device", 0, 3)]
    assert grown(interrupts([0], {}, {}), file(3)) == [], "a new row counts from the next reading on"


def test_a_cpu_that_comes_or_goes_moves_columns_and_no_counts() -> None:
    names, counts = {9: "eth0"}, {(9, 0): 5, (9, 2): 7, (9, 3): 9}
    both, fewer = interrupts([0, 2, 3], names, counts), interrupts([0, 3], names, counts)
    assert grown(both, fewer) == grown(fewer, both) == []
    more = interrupts([0, 2, 3], names, counts | {(9, 3): 10})
    assert grown(fewer, more) == [("eth0", "device", 3, 1)]


def test_a_line_without_a_count_for_each_cpu_of_the_header_is_left_out() -> None:
    """A CPU went offline, or came online, after the header was printed: the others' columns have moved."""
    names, before, after = {9: "eth0"}, {(9, 1): 1000000, (9, 2): 20}, {(9, 2): 21}
    head = interrupts(range(4), names, before)
    for cpus in ([0, 2, 3], range(5), [0, 1, 2, 3, 5, 6]):
        line = interrupts(cpus, names, after).split(b"\n")[1]
        assert grown(head, head.replace(head.split(b"\n")[1], line)) == []


def test_a_file_that_was_cut_loses_its_last_line_alone() -> None:
    after = X86.replace(b"      3100 ", b"      3410 ").replace(b"38980753", b"38980853")
    cut = after[: after.index(b"38980853") + 4]
    assert grown(X86, cut) == [("eth0-TxRx-3", "device", 3, 310)]
    for raw in (b"", b"\n", b"CPU0\n", b"no header\n 1: 2 x\n", b"CPU3 CPU3\n142: 1\n", X86.split(b"\n")[0]):
        assert grown(X86, raw) == grown(raw, X86) == []


def test_softirqs_have_their_own_kind() -> None:
    raw = b"                    CPU0       CPU1       \n          HI:          0          1\n      NET_RX:   10   20\n"
    table = InterruptTable(raw.replace(b"20", b"25"), softirqs=True)
    (growth,) = table.grown(InterruptTable(raw, softirqs=True), EVERY)
    assert growth == (IrqRow(None, "NET_RX", IrqKind.SOFTIRQ), 1, 5)


def test_names_steer_no_terminal_and_have_an_end() -> None:
    name = rows(X86.replace(b"eth0-TxRx-3", b"\x1b[2J\xff" + b"a" * 5000))["142"].name
    assert name.isprintable()
    assert len(name) == 100


@given(st.one_of(st.binary(max_size=300), st.sampled_from(ALL).flatmap(lambda raw: st.tuples(
    st.just(raw), st.integers(0, len(raw) - 1), st.binary(max_size=5)).map(
        lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] + 3 :]))), st.sampled_from(ALL))
def test_no_content_raises_or_counts_below_one(raw: bytes, other: bytes) -> None:
    for growth in (*InterruptTable(raw).grown(InterruptTable(other), EVERY),
                   *InterruptTable(other).grown(InterruptTable(raw), EVERY)):
        assert 0 < growth.grew < 2**32
    assert all(row.irq is not None for row in InterruptTable(raw).rows())


def test_of_a_large_machine_only_changed_lines_and_chosen_columns_are_parsed() -> None:
    """256 CPUs and 2,000 interrupts: each of 256 queues of a NIC grew on its CPU, and 64 CPUs are chosen."""
    names = {number: f"eth0-TxRx-{number}" for number in range(100, 2100)}
    counts = {(number, number % 256): number for number in names}
    busy = {(number, number % 256): counts[number, number % 256] + 1 for number in range(100, 356)}
    before = InterruptTable(interrupts(range(256), names, counts))
    after = InterruptTable(interrupts(range(256), names, counts | busy))
    with CountedCalls() as calls:
        growths = list(after.grown(before, CpuSet(range(64))))
    assert len(growths) == 64
    assert calls["picked"] == 2 * 256, "a line that has not changed is not split"
    assert calls["_grew"] == 64, "no other column is made a number"
    assert sum(calls.values()) < 5 * 256 + 10 * 64


class CountedCalls:
    """The functions of the parser that are called, by name."""

    def __enter__(self) -> Counter[str]:
        self._calls: Counter[str] = Counter()
        sys.setprofile(self._called)
        return self._calls

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == interrupt_table.__file__:
            self._calls[frame.f_code.co_name] += 1


