"""/proc/interrupts and /proc/softirqs: what grew on chosen CPUs between two readings, and what each row counts.

Pure. A line has a label, a count for each online CPU (a 32-bit number, in the header's order: offline CPUs are
missing), and a text. Rows with a number come from kernel/irq/proc.c (show_interrupts): chip, the chip's own number,
level or edge, and after two blanks the names of the drivers' actions. The others come from arch/*/kernel/irq.c. Rows
without a count for each CPU (ERR, MIS, and any that was printed after a CPU of the header went offline, or another one
came online) and a last line that was cut are left out.

On a machine with 256 CPUs and 2,000 interrupts the file has 6 MB. So lines that have not changed are only compared,
and of those that have, the columns of the chosen CPUs alone are made numbers.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter

from vmpin.bounded import parse_whole
from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.named_tuple import NamedTuple

#: A count, and its wrap: the kernel's counters are unsigned int.
_COUNT, _HALF = (1 << 32) - 1, 1 << 31
#: The largest number of an interrupt: NR_IRQS of any architecture is below it (include/linux/irq.h: IRQ_BITMAP_BITS).
MAX_IRQ = (1 << 20) - 1
_LONGEST_TEXT, _LONGEST_NAME = 400, 100
#: The chip, its number for the interrupt, Level or Edge, the handler's name (`-edge`), two blanks, the actions
#: if there are any.
_ACTIONS = re.compile(rb"\S.*?\s[0-9]+(?:\s+(?:Level|Edge))?\s*(?:-\S+)?(?:\s{2,}(\S.*)|\s*)$")
_DEVICE = re.compile(r"vfio-(?:msix?\[[0-9]{1,4}\]|intx)\(([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\)")
#: Rows of s390 that add up others (arch/s390/kernel/irq.c: irqclass_main_desc; arch/s390/pci/pci_irq.c: those of PCI).
_SUMS = frozenset((b"EXT", b"I/O", b"AIO", b"PCF", b"PCD", b"MSI"))
#: How s390 describes its classes of devices; some of those of EXT are devices', too.
_CLASSES = (b"[I/O]", b"[AIO]", b"[EXT] Virtio", b"[EXT] DASD", b"[EXT] IUCV")


class IrqKind(enum.StrEnum):
    """What interrupts a CPU; the value is a label of the metric."""

    DEVICE = "device"
    TIMER = "timer"
    IPI = "ipi"  #: From another CPU: to run a function there, to reschedule, to flush its TLB.
    POSTED = "posted"  #: Of a VM's passed-through device, by the IOMMU (VT-d posted interrupts).
    SOFTIRQ = "softirq"
    OTHER = "other"


#: By label; of x86 (HVS: Hyper-V), arm64 and riscv (IPI0), powerpc (DBL, BCT), s390 (EXC, EMS, CLK, TMR).
_KINDS = {**dict.fromkeys((b"LOC", b"HVS", b"BCT", b"CLK", b"TMR"), IrqKind.TIMER),
          **dict.fromkeys((b"RES", b"CAL", b"TLB", b"IWI", b"DBL", b"EXC", b"EMS"), IrqKind.IPI),
          **dict.fromkeys((b"PIN", b"NPI", b"PIW"), IrqKind.POSTED)}
_IPI = re.compile(rb"IPI-?[0-9]*")


class IrqRow(NamedTuple):
    """What a row counts. `irq` is the interrupt's number, None for a row without one; `name` the drivers' actions,
    or what the row is called."""

    irq: int | None
    name: str
    kind: IrqKind

    @property
    def device(self) -> str:
        """The PCI address of a device that is passed through to a VM (drivers/vfio/pci/vfio_pci_intrs.c); "" for
        any other interrupt."""
        match = _DEVICE.fullmatch(self.name)
        return "" if match is None else match[1]


class Growth(NamedTuple):
    """Interrupts of a row that a CPU took."""

    row: IrqRow
    cpu: int
    grew: int


class InterruptTable:
    """One reading of either file. :param softirqs: of /proc/softirqs."""

    def __init__(self, raw: bytes, softirqs: bool = False) -> None:
        head, *lines = raw.split(b"\n")[:-1] or [b""]
        self.softirqs = softirqs
        self.columns = _columns(head)
        self.lines: dict[bytes, bytes] = {}
        for line in lines:
            if (end := line.find(b":")) > 0:
                label = line[:end]  # powerpc has two rows LOC: the timer's ticks, and what else uses the decrementer
                self.lines[label + b" " if label in self.lines else label] = line

    def row(self, label: bytes) -> IrqRow:
        """Describe the row with this label."""
        parts = self.lines[label].split(None, len(self.columns) + 1)
        return _row(label.strip(), (parts[-1] if len(parts) > len(self.columns) + 1 else b"")[:_LONGEST_TEXT],
                    self.softirqs)

    def rows(self, text: bytes = b"") -> Iterator[IrqRow]:
        """Yield all rows with an interrupt's number. :param text: only those that have it."""
        for label, line in self.lines.items():
            row = self.row(label) if label.strip().isdigit() and text in line else None
            if row is not None and row.irq is not None:
                yield row

    def descriptions(self) -> dict[int, str]:
        """Collect by number what follows the counts of an interrupt: chip, the chip's number, drivers, with single
        blanks."""
        most = len(self.columns) + 1
        return {number: b" ".join(parts[most][:_LONGEST_TEXT].split()).decode("utf-8", "replace")
                for label, line in self.lines.items() if (number := parse_whole(label.strip(), MAX_IRQ)) is not None
                and len(parts := line.split(None, most)) > most}

    def grown(self, before: InterruptTable, cpus: CpuSet) -> Iterator[Growth]:
        """Yield what grew on these CPUs since an earlier reading, row by row. A row that is new counts from the next
        reading on."""
        both = [cpu for cpu in cpus if cpu in self.columns and cpu in before.columns]
        if not both:
            return
        now, then = _picked(self.columns, both), _picked(before.columns, both)
        for label, line in self.lines.items():
            old = before.lines.get(label)
            if old is None or line == old:
                continue
            counts, former = now(line), then(old)
            if counts is not None and former is not None and counts != former and label.strip() not in _SUMS:
                for cpu, count, past in zip(both, counts, former, strict=True):
                    if count != past and (grew := _grew(past, count)):
                        yield Growth(self.row(label), cpu, grew)


def _columns(head: bytes) -> dict[int, int]:
    """The column of each CPU by the header; none where it is no header."""
    columns: dict[int, int] = {}
    for at, name in enumerate(head.split()):
        cpu = parse_whole(name[3:], MAX_CPU) if name.startswith(b"CPU") else None
        if cpu is None or cpu in columns:
            return {}
        columns[cpu] = at
    return columns


def _picked(columns: dict[int, int], cpus: Sequence[int]) -> Callable[[bytes], Sequence[bytes] | None]:
    """A function that picks these CPUs' counts from a line; None for a line that has not one count for each CPU."""
    most = len(columns) + 1
    places = [columns[cpu] + 1 for cpu in cpus]
    pick = itemgetter(*places) if len(places) > 1 else lambda parts: (parts[places[0]],)

    def picked(line: bytes) -> Sequence[bytes] | None:
        parts = line.split(None, most)
        if len(parts) < most or not parts[most - 1].isdigit():
            return None
        return None if len(parts) > most and parts[most].split(None, 1)[0].isdigit() else pick(parts)

    return picked


def _grew(past: bytes, count: bytes) -> int:
    """The difference between two counts; 0 where one is no count. A counter that went back began anew, or wrapped."""
    old, new = parse_whole(past, _COUNT), parse_whole(count, _COUNT)
    if old is None or new is None:
        return 0
    if new >= old:
        return new - old
    return new - old + _COUNT + 1 if old >= _HALF > new else new


@lru_cache(maxsize=4096)
def _row(label: bytes, text: bytes, softirqs: bool) -> IrqRow:
    number = parse_whole(label, MAX_IRQ)
    if number is None:
        device = text.startswith(_CLASSES)
        kind = (IrqKind.SOFTIRQ if softirqs else IrqKind.IPI if _IPI.fullmatch(label) else
                IrqKind.DEVICE if device else _KINDS.get(label, IrqKind.OTHER))
        return IrqRow(None, _text(text) or _text(label), kind)
    match = _ACTIONS.match(text)
    actions = (text.rpartition(b"  ")[2] if match is None else match[1] or b"").strip()
    kind = IrqKind.IPI if _IPI.fullmatch(actions) else IrqKind.TIMER if b"timer" in actions.lower() else IrqKind.DEVICE
    return IrqRow(number, _text(actions), kind)


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").strip()
    return "".join(char if char.isprintable() else "?" for char in text)[:_LONGEST_NAME]
