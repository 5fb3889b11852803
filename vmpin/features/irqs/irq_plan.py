"""The masks of interrupts: which are to change, given the masks now, the exclusive CPUs and what vmpin set before.

Pure. An interrupt is moved where its mask has exclusive CPUs, and one of a VM's passed-through device wherever it is.
What another program has set since stays, where it has no exclusive CPU: irqbalance may move interrupts among the
CPUs that are left. No mask that is set here is empty, or has an exclusive CPU, except an original one, and those of
interrupts that a pod claims (irq_claims), which have CPUs of that pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.named_tuple import NamedTuple


class Irq(NamedTuple):
    """An interrupt. `number` is DEFAULT of irq_files for the mask of new ones. `node` is its device's NUMA node, None
    for none; `device` the PCI address of one that is passed through, "" for none."""

    number: int
    name: str
    mask: CpuSet
    node: int | None = None
    device: str = ""


class IrqRoom(NamedTuple):
    """The CPUs of the machine. `apart`: the CPUs for the interrupts of a passed-through device, by its PCI address:
    those of its VM's sandbox that are not exclusive. `claimed`: the CPUs of the pods that claim interrupts, by number.
    """

    online: CpuSet
    exclusive: CpuSet
    pool: CpuSet
    nodes: Mapping[int, CpuSet] = MappingProxyType({})
    apart: Mapping[str, CpuSet] = MappingProxyType({})
    claimed: Mapping[int, CpuSet] = MappingProxyType({})


class IrqOriginal(NamedTuple):
    """The record of an interrupt that was moved: its mask before; in `written` the one that vmpin had set, and the
    next one, that it set or was about to."""

    name: str
    mask: CpuSet
    written: tuple[CpuSet, ...] = ()


class MaskWrite(NamedTuple):
    """A mask to set."""

    irq: Irq
    cpus: CpuSet

    def describe(self) -> str:
        what = "default_smp_affinity" if self.irq.number < 0 else f"IRQ {self.irq.number} ({self.irq.name})"
        return f"move {what} to CPUs {self.cpus}, was {self.irq.mask}"


class IrqPlan(NamedTuple):
    """`originals` are to be kept before a mask is set; `stuck` are interrupts on exclusive CPUs for which no other CPU
    is left."""

    writes: tuple[MaskWrite, ...]
    originals: dict[int, IrqOriginal]
    stuck: tuple[Irq, ...] = ()


def wanted_mask(irq: Irq, original: CpuSet, room: IrqRoom) -> CpuSet:
    """The mask that an interrupt should have; the original one where that has no exclusive CPU, EMPTY where no CPU is
    left for it."""
    if irq.number in room.claimed:
        return room.claimed[irq.number]
    near = EMPTY if irq.node is None else room.nodes.get(irq.node, EMPTY)
    rest = original - room.exclusive
    if irq.device in room.apart:
        choices = [room.apart[irq.device], room.pool & near, room.pool, near, room.online]
    elif original.isdisjoint(room.exclusive):
        return original
    else:
        choices = [rest & near, rest, near, room.online]
    free = (cpus - room.exclusive for cpus in choices)
    return next((cpus for cpus in free if not cpus.isdisjoint(room.online)), EMPTY)


def plan(irqs: Iterable[Irq], room: IrqRoom, before: Mapping[int, IrqOriginal],
         born: Mapping[int, CpuSet] = MappingProxyType({})) -> IrqPlan:
    """Compare all interrupts with what they should have.
    :param before: the records, by number. That of an interrupt that is gone is dropped, as is that of another driver's
        whose mask is none of vmpin's. An interrupt without a driver (no name) is moved only if it was before.
    :param born: by number, the original masks of interrupts that began under a default mask of vmpin's."""
    writes, originals, stuck = [], dict[int, IrqOriginal](), []
    decided: dict[tuple[CpuSet, int | None, str, CpuSet | None], CpuSet] = {}  # most interrupts are alike
    for irq in irqs:
        kept = before.get(irq.number)
        if irq.number in born:
            kept = IrqOriginal(irq.name, born[irq.number], (irq.mask,))
        elif kept is not None and irq.name not in ("", kept.name):
            same = has_driver_of(irq, kept) or irq.mask in kept.written
            kept = kept._replace(name=irq.name) if same else None
        if kept is None and not irq.name:
            continue
        claimed = room.claimed.get(irq.number)
        key = irq.mask if kept is None else kept.mask, irq.node, irq.device, claimed
        wanted = decided.get(key, EMPTY)
        if not wanted:
            wanted = decided[key] = wanted_mask(irq, key[0], room)
        if not wanted:
            stuck.append(irq)
            wanted = irq.mask
        hit = not irq.mask.isdisjoint(room.exclusive)
        ours = kept is not None and irq.mask in (kept.mask, *kept.written)
        if kept is not None and not ours and not hit and claimed is None:
            if irq.device in room.apart or not kept.mask.isdisjoint(room.exclusive):
                originals[irq.number] = kept  # another program's choice stays, until it is on exclusive CPUs
            continue
        if irq.mask == wanted:
            if kept is not None and wanted != kept.mask:
                originals[irq.number] = kept
            continue
        original = kept or IrqOriginal(irq.name, irq.mask)
        # Setting a mask may fail: the one that is set now has to stay in the record.
        last = (irq.mask,) if ours and irq.mask != original.mask else original.written[-1:]
        originals[irq.number] = original._replace(written=tuple(dict.fromkeys((*last, wanted))))
        writes.append(MaskWrite(irq, wanted))
    return IrqPlan(tuple(writes), originals, tuple(stuck))


def has_driver_of(irq: Irq, kept: IrqOriginal) -> bool:
    """Whether an interrupt has a driver of a record. A line that devices share has several, with commas, and gets and
    loses some."""
    return not {*irq.name.split(", ")}.isdisjoint(kept.name.split(", "))


def restoring(irqs: Iterable[Irq], before: Mapping[int, IrqOriginal]) -> tuple[MaskWrite, ...]:
    """Give interrupts their original masks back, if their mask is still one that vmpin set, whichever driver has them
    now."""
    return tuple(MaskWrite(irq, kept.mask) for irq in irqs if (kept := before.get(irq.number)) is not None
                 and irq.mask != kept.mask and irq.mask in kept.written)
