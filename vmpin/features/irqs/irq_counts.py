"""How many interrupts exclusive CPUs took: in the last interval, and since the watcher's start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from vmpin.features.irqs.interrupt_table import Growth, IrqKind, IrqRow
from vmpin.named_tuple import NamedTuple

#: Devices' interrupts that are listed of one CPU.
MOST = 8
#: The kinds whose rows are listed one by one.
_LISTED = (IrqKind.DEVICE, IrqKind.POSTED)


class CpuInterrupts(NamedTuple):
    """The interrupts of one CPU in an interval, in each second: by kind, and the most frequent ones of devices. `more`
    is the number of the others."""

    cpu: int
    rates: Mapping[IrqKind, float]
    devices: tuple[tuple[IrqRow, float], ...]
    more: int

    def data(self, owners: Mapping[str, str]) -> dict[str, object]:
        """Convert to JSON.
        :param owners: the VM's sandbox by the PCI address of a device that it has."""
        return {"cpu": self.cpu, "rates": {kind.value: round(rate, 2) for kind, rate in self.rates.items()},
                "interrupts": [{"irq": row.irq, "name": row.name, "kind": row.kind.value, "rate": round(rate, 2),
                                "sandbox": owners.get(row.device)} for row, rate in self.devices],
                "more": self.more}


def of_interval(grown: Iterable[Growth], seconds: float) -> list[CpuInterrupts]:
    """Add up an interval by CPU."""
    rows: dict[int, list[Growth]] = {}
    for growth in grown:
        rows.setdefault(growth.cpu, []).append(growth)
    interrupts = []
    for cpu, growths in sorted(rows.items()):
        kinds: Counter[IrqKind] = Counter()
        for growth in growths:
            kinds[growth.row.kind] += growth.grew
        devices = sorted((growth for growth in growths if growth.row.kind in _LISTED),
                         key=lambda growth: -growth.grew)
        interrupts.append(CpuInterrupts(
            cpu, {kind: count / seconds for kind, count in kinds.items()},
            tuple((growth.row, growth.grew / seconds) for growth in devices[:MOST]), len(devices[MOST:])))
    return interrupts
