"""The masks that interrupts had before vmpin moved them: kept in a file of the run directory, which is replaced as a
whole before a mask is set, so that a kill at any moment loses none. It is of one boot.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from vmpin.bounded import checked_whole
from vmpin.cpuset import CpuLists, CpuSet
from vmpin.features.irqs.interrupt_table import MAX_IRQ
from vmpin.features.irqs.irq_plan import IrqOriginal
from vmpin.host.files import read_regular
from vmpin.reconcile.state_file import MAX_BYTES, beside, replace, sealed, set_file_aside, unsealed
from vmpin.reconcile.state_format import dumps

logger = logging.getLogger(__name__)

VERSION = 1


class IrqOriginals(NamedTuple):
    """`irqs` by number. `banned`: by socket of an irqbalance, the CPUs that it left alone before vmpin set them."""

    irqs: Mapping[int, IrqOriginal] = MappingProxyType({})
    banned: Mapping[str, CpuSet] = MappingProxyType({})


class OriginalsFile:
    """:param boot_id: a file of another boot is not used: its interrupts have begun anew."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path, self._boot_id = path, boot_id

    def load(self) -> IrqOriginals:
        """Return what was saved last; nothing without a file. A damaged one is set aside.
        :raises OSError: it cannot be read."""
        try:
            raw, _ = read_regular(self.path, MAX_BYTES)
        except FileNotFoundError:
            return IrqOriginals()
        try:
            body = unsealed(raw, VERSION)
            if body["boot_id"] != self._boot_id:
                return IrqOriginals()
            lists = CpuLists(1 << 20)
            irqs = {checked_whole(number, MAX_IRQ, -1): IrqOriginal(str(name), lists.parse(mask), tuple(
                lists.parse(cpus) for cpus in written)) for number, name, mask, written in body["irqs"]}
            return IrqOriginals(irqs, {str(path): lists.parse(cpus) for path, cpus in body["banned"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            logger.warning("%s", set_file_aside(self.path, err, aside=True,
                                                then="interrupts that were moved keep their masks"))
            return IrqOriginals()

    @property
    def damaged(self) -> Path | None:
        """The damaged file that was set aside; None for none."""
        _, damaged = beside(self.path)
        return damaged if damaged.exists() else None

    def save(self, originals: IrqOriginals) -> None:
        """Replace the file; remove it where there is nothing to keep. :raises OSError: nothing may be moved then."""
        if not originals.irqs and not originals.banned:
            self.path.unlink(missing_ok=True)
            return
        replace(self.path, sealed(dumps({
            "version": VERSION, "boot_id": self._boot_id,
            "irqs": [[number, kept.name, str(kept.mask), [str(cpus) for cpus in kept.written]]
                     for number, kept in originals.irqs.items()],
            "banned": {path: str(cpus) for path, cpus in originals.banned.items()}})))
