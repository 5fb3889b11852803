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


@pytest.mark.parametrize(("raw", "label", "row"), [
    (ARM64, "11", IrqRow(11, "arch_timer", IrqKind.TIMER)),
    (ARM64, "48", IrqRow(48, "eth 0 of board", IrqKind.DEVICE)),
    (ARM64, "IPI0", IrqRow(None, "Rescheduling interrupts", IrqKind.IPI)),
    (RISCV64, "5", IrqRow(5, "riscv-timer", IrqKind.TIMER)), (RISCV64, "12", IrqRow(12, "ttyS0", IrqKind.DEVICE)),
    (PPC64LE, "16", IrqRow(16, "IPI-0", IrqKind.IPI)), (PPC64LE, "21", IrqRow(21, "eth0", IrqKind.DEVICE)),
    (PPC64LE, "DBL", IrqRow(None, "Doorbell interrupts", IrqKind.IPI)),
    (S390X, "CLK", IrqRow(None, "[EXT] Clock Comparator", IrqKind.TIMER)),
    (S390X, "3", IrqRow(3, "mlx5_comp0@pci:0000:00:00.0", IrqKind.DEVICE))])
def test_rows_of_other_architectures(raw: bytes, label: str, row: IrqRow) -> None:
    assert rows(raw)[label] == row


def test_sums_of_other_rows_do_not_count_again() -> None:
    after = S390X.replace(b"90210", b"90215").replace(b"40210", b"40215")
    assert grown(S390X, after) == [("[EXT] Clock Comparator", "timer", 0, 5)]


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
    """A CPU went offline after the header was printed: its column is missing, and the others move."""
    names, before, after = {9: "eth0"}, {(9, 1): 1000000, (9, 2): 20}, {(9, 2): 21}
    head = interrupts(range(4), names, before)
    cut = interrupts([0, 2, 3], names, after).split(b"\n")[1]
    assert grown(head, head.replace(head.split(b"\n")[1], cut)) == []


def test_a_file_that_was_cut_loses_its_last_line_alone() -> None:
    after = X86.replace(b"      3100 ", b"      3410 ").replace(b"38980753", b"38980853")
    cut = after[: after.index(b"38980853") + 4]
    assert grown(X86, cut) == [("eth0-TxRx-3", "device", 3, 310)]
    for raw in (b"", b"\n", b"CPU0\n", b"no header\n 1: 2 x\n", X86.split(b"\n")[0]):
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


