"""The masks that interrupts had before vmpin moved them: kept in a file of the run directory, which is replaced as a
whole before a mask is set, so that a kill at any moment loses none. It is of one boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vmpin.bounded import checked_whole
from vmpin.cpuset import CpuLists, CpuSet
from vmpin.features.common.sealed_file import FileForm, SealedFile
from vmpin.features.irqs.interrupt_table import MAX_IRQ
from vmpin.features.irqs.irq_plan import IrqOriginal
from vmpin.named_tuple import NamedTuple

VERSION = 1


class IrqOriginals(NamedTuple):
    """`irqs` by number. `banned`: by socket of an irqbalance, the CPUs that it left alone before vmpin set them."""

    irqs: Mapping[int, IrqOriginal] = MappingProxyType({})
    banned: Mapping[str, CpuSet] = MappingProxyType({})


def _parse(body: Mapping[str, Any]) -> IrqOriginals:
    lists = CpuLists(1 << 20)
    irqs = {checked_whole(number, MAX_IRQ, -1): IrqOriginal(str(name), lists.parse(mask), tuple(
        lists.parse(cpus) for cpus in written)) for number, name, mask, written in body["irqs"]}
    return IrqOriginals(irqs, {str(path): lists.parse(cpus) for path, cpus in body["banned"].items()})


def _data(originals: IrqOriginals) -> dict[str, object]:
    return {"irqs": [[number, kept.name, str(kept.mask), [str(cpus) for cpus in kept.written]]
                     for number, kept in originals.irqs.items()],
            "banned": {path: str(cpus) for path, cpus in originals.banned.items()}}


class OriginalsFile(SealedFile[IrqOriginals]):
    """A file of another boot is not used: its interrupts have begun anew."""

    form = FileForm(VERSION, _parse, _data, IrqOriginals(), "interrupts that were moved keep their masks")
