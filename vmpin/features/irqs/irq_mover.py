"""Moves interrupts away from exclusive CPUs, and gives them their masks back. All of it blocks: it runs in a thread.

The originals are saved before a mask is set. What the kernel refuses for good is not tried again; what another program
sets again and again is left to it for a while, by the rules for threads (`drift.*`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.contention import Contention, ContentionRules
from vmpin.features.irqs import irqbalance
from vmpin.features.irqs.interrupt_table import IrqKind, IrqRow
from vmpin.features.irqs.irq_claims import ClaimedIrq, ClaimsByIrq, decided_claims
from vmpin.features.irqs.irq_files import DEFAULT, IrqFiles
from vmpin.features.irqs.irq_plan import Irq, IrqOriginal, IrqRoom, MaskWrite, has_driver_of, plan, restoring
from vmpin.features.irqs.originals_file import IrqOriginals, OriginalsFile
from vmpin.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

Key = tuple[int, str]
FIXED = "the kernel does not let its mask be set (a managed interrupt, or one of a single CPU)"
STUCK = "no CPU is left that is not exclusive"
READ_ONLY = "/proc/irq is read-only for the watcher (`vmpin help irqs`)"
RESTING = "another program sets its mask again and again (drift.on_contention)"


class KeptIrq(NamedTuple):
    """An interrupt that stays on exclusive CPUs (`cpus`), and why."""

    irq: Irq
    cpus: CpuSet
    why: str


class Moved(NamedTuple):
    """The result of a pass: how many interrupts have a mask of vmpin's, those that stay, the masks that are not set
    yet, and those that pods claim."""

    moved: int = 0
    kept: tuple[KeptIrq, ...] = ()
    due: tuple[MaskWrite, ...] = ()
    claims: tuple[ClaimedIrq, ...] = ()


def read_irqs(files: IrqFiles, rows: Iterable[IrqRow], nodes: dict[Key, int | None] | None = None) -> list[Irq]:
    """All interrupts with files, with their masks; one without a driver has no name. Those of the timer and of other
    CPUs are left out, as each is of one CPU.
    :param rows: of /proc/interrupts. :param nodes: those that are known already; read ones are added."""
    known = {row.irq: row for row in rows}
    irqs, nodes = [], {} if nodes is None else nodes
    for number in files.numbers():
        row = known.get(number)
        if (row is None or row.kind is IrqKind.DEVICE) and (mask := files.mask(number)):
            key = number, "" if row is None else row.name
            if key not in nodes:
                nodes[key] = files.node(number)
            irqs.append(Irq(*key, mask, nodes[key], "" if row is None else row.device))
    if mask := files.mask(DEFAULT):
        irqs.append(Irq(DEFAULT, "default", mask))
    return irqs


class IrqMover:
    """:param originals_file: read at the first pass."""

    def __init__(self, files: IrqFiles, originals_file: OriginalsFile, rules: ContentionRules,
                 clock: Callable[[], float] = time.monotonic,
                 sockets: Callable[[], Sequence[str]] = irqbalance.irqbalance_sockets) -> None:
        self._files, self._file, self._clock, self._sockets = files, originals_file, clock, sockets
        self._originals: IrqOriginals | None = None
        self.contention: Contention[Key] = Contention(rules)
        #: The masks that were set; whether a mask cannot be, and the NUMA nodes, of the interrupts of the last pass.
        self._set: dict[Key, CpuSet] = {}
        self._fixed: dict[Key, bool] = {}
        self._nodes: dict[Key, int | None] = {}
        self._failures: dict[Key, str] = {}
        #: The interrupts of the last pass.
        self._seen: set[Key] = set()

    def retry_now(self) -> None:
        """End all rests, and try again what the kernel has refused for good."""
        self.contention.retry_now()
        self._fixed.clear()

    def move(self, rows: Iterable[IrqRow], room: IrqRoom, claimed: ClaimsByIrq = MappingProxyType({})) -> Moved:
        """Make one pass. :param rows: of /proc/interrupts.
        :raises OSError: the masks cannot be read, or the originals not be read or saved: then no mask is set."""
        if self._originals is None:
            self._originals = self._file.load()
        irqs = read_irqs(self._files, rows, self._nodes)
        before = self._originals.irqs
        fixed = [irq for irq in irqs if self._is_fixed(irq)]
        movable = [irq for irq in irqs if not self._fixed[irq.number, irq.name]]
        claims = [claim._replace(cpus=EMPTY, why=FIXED) if self._fixed[claim.irq.number, claim.irq.name] else claim
                  for claim in decided_claims(irqs, claimed, room)] if claimed else []
        room = room._replace(claimed={claim.irq.number: claim.cpus for claim in claims if not claim.why})
        decided = plan(movable, room, before, self._born(movable, before, room))
        banned = {path: cpus for path in self._sockets() if (cpus := irqbalance.banned_cpus(path)) is not None}
        # One that does not answer this time may have vmpin's list already.
        own = {path: cpus for path, cpus in self._originals.banned.items() if path in banned or os.path.exists(path)}
        originals = IrqOriginals(decided.originals | _alike(movable, decided.originals, room), banned | own)
        if originals != self._originals or not self._file.path.exists():
            self._file.save(originals)
            self._originals = originals
        _ban_exclusive_cpus(banned, originals.banned, room.exclusive)
        now, masks = self._clock(), {irq.number: irq.mask for irq in movable}
        self.contention.keep_only({(irq.number, irq.name) for irq in irqs}, now)
        due, kept = [], [KeptIrq(irq, irq.mask & room.exclusive, STUCK) for irq in decided.stuck]
        for write in decided.writes:
            if why := self._carried_out(write, decided.originals[write.irq.number].mask, now):
                due.append(write)
                kept.append(KeptIrq(write.irq, write.irq.mask & room.exclusive, why))
            else:
                masks[write.irq.number] = write.cpus
        kept += [KeptIrq(irq, cpus, FIXED) for irq in fixed
                 if irq.name and (cpus := irq.mask & room.exclusive)]
        self._seen = seen = {(irq.number, irq.name) for irq in irqs}
        self._set = {key: cpus for key, cpus in self._set.items() if key in seen}
        self._fixed = {key: fixed for key, fixed in self._fixed.items() if key in seen}
        self._nodes = {key: node for key, node in self._nodes.items() if key in seen}
        self._failures = {key: why for key, why in self._failures.items() if key in seen}
        moved = sum(masks[number] in record.written and masks[number] != record.mask
                    for number, record in decided.originals.items())
        return Moved(moved, tuple(kept), tuple(due), tuple(claims))

    def _is_fixed(self, irq: Irq) -> bool:
        key = irq.number, irq.name
        if key not in self._fixed:
            self._fixed[key] = self._files.fixed(irq.number)
        return self._fixed[key]

    def _born(self, irqs: Iterable[Irq], before: Mapping[int, IrqOriginal], room: IrqRoom) -> dict[int, CpuSet]:
        """The masks that interrupts would have had without vmpin that have begun since the last pass, or while no
        watcher ran, under its default mask."""
        default = before.get(DEFAULT)
        if default is None:
            return {}
        return {irq.number: mask for irq in irqs if (irq.number, irq.name) not in self._seen and irq.name
                and ((kept := before.get(irq.number)) is None or not has_driver_of(irq, kept))
                and (mask := _begun_with(irq, default, room))}

    def _carried_out(self, write: MaskWrite, original: CpuSet, now: float) -> str:
        """Set a mask. :returns: why it is not set, "" if it is."""
        irq, cpus = write
        key = irq.number, irq.name
        turn = self.contention.turn(key, cpus, self._set.get(key) == cpus, now)
        if turn.begins:
            logger.error("contention %s: another program sets it again and again", write.describe())
        if turn.rests:
            return RESTING
        try:
            self._files.write(irq.number, cpus)
        except OSError as err:
            return self._refused(write, err, moved=irq.mask != original)
        self._set[key] = cpus
        self._failures.pop(key, None)
        if turn.repairs:
            self.contention.add_repairs([key], now)
        logger.info("%s%s", write.describe(), ": another program had changed it" * turn.repairs)
        return ""

    def _refused(self, write: MaskWrite, err: OSError, moved: bool) -> str:
        """Describe why a mask is not set. :param moved: whether one was set before."""
        key = write.irq.number, write.irq.name
        if err.errno == errno.ENOENT:
            return ""  # it has just gone
        if err.errno in (errno.EIO, errno.EPERM) and not moved:
            self._fixed[key] = True
            return FIXED
        why = READ_ONLY if err.errno == errno.EROFS else f"the kernel refuses the mask: {err.strerror}"
        if why not in self._failures.values():
            logger.warning("not done: %s: %s", write.describe(), why)
        self._failures[key] = why
        return why


def _begun_with(irq: Irq, default: IrqOriginal, room: IrqRoom) -> CpuSet:
    """The mask that an interrupt would have without vmpin, if it has the one with which interrupts begin under vmpin's
    default mask: that mask, or the part of it on the device's node (kernel/irq/manage.c: irq_setup_affinity).
    EMPTY for any other."""
    near = room.nodes.get(-1 if irq.node is None else irq.node, EMPTY)
    if irq.mask in [mask & near & room.online for mask in default.written]:
        return default.mask & near or default.mask
    return default.mask if irq.mask in [part for mask in default.written for part in (mask, mask & room.online)
                                        ] else EMPTY


def _alike(irqs: Iterable[Irq], originals: Mapping[int, IrqOriginal], room: IrqRoom) -> dict[int, IrqOriginal]:
    """Records of the interrupts that had such a mask already, so that the next watcher can tell them apart."""
    default = originals.get(DEFAULT)
    return {} if default is None else {
        irq.number: IrqOriginal(irq.name, irq.mask) for irq in irqs
        if irq.name and irq.number not in originals and _begun_with(irq, default, room)}


def planned(files: IrqFiles, originals_file: OriginalsFile, room: IrqRoom) -> list[str]:
    """Sentences on what a first pass would set. :raises OSError: the masks or the originals cannot be read."""
    irqs = [irq for irq in read_irqs(files, files.interrupts().rows()) if not files.fixed(irq.number)]
    return [write.describe() for write in plan(irqs, room, originals_file.load().irqs).writes]


def giving_back(files: IrqFiles, originals_file: OriginalsFile) -> list[str]:
    """Sentences on what `give_back` would set. :raises OSError: the masks or the originals cannot be read."""
    originals = originals_file.load()
    irqs = read_irqs(files, files.interrupts().rows()) if originals.irqs else []
    return [*(write.describe() for write in restoring(irqs, originals.irqs)),
            *(f"give irqbalance its own list of CPUs back: {cpus or 'that of its configuration'} ({path})"
              for path, cpus in originals.banned.items())]


def _ban_exclusive_cpus(banned: Mapping[str, CpuSet], own: Mapping[str, CpuSet], exclusive: CpuSet) -> None:
    """Have each irqbalance leave the exclusive CPUs alone, besides its own list.
    :param banned: what it leaves alone now, by socket."""
    for path, cpus in banned.items():
        if cpus != own[path] | exclusive:
            try:
                irqbalance.ban_cpus(path, own[path] | exclusive)
            except OSError as err:
                logger.warning("irqbalance: its banned CPUs are not set on %s: %s", path, err)


def give_back(files: IrqFiles, originals_file: OriginalsFile, logged: set[str] | None = None) -> bool:
    """Give all interrupts their original masks, and irqbalance its own list; then remove the file.
    :param logged: refusals that are logged already; those of this call are added.
    :returns: False where not all of that was possible: the file then has the rest, and a damaged one stays aside."""
    logged = set() if logged is None else logged

    def refused(text: str) -> None:
        if text not in logged:
            logged.add(text)
            logger.error("%s", text)

    try:
        originals = originals_file.load()
        irqs = read_irqs(files, files.interrupts().rows()) if originals.irqs else []
    except OSError as err:
        refused(f"not given back: the masks of interrupts: {err}")
        return False
    left, banned = {}, {}
    for irq, cpus in restoring(irqs, originals.irqs):
        try:
            files.write(irq.number, cpus)
            logger.info("%s", MaskWrite(irq, cpus).describe())
        except FileNotFoundError:
            continue
        except OSError as err:
            refused(f"not done: {MaskWrite(irq, cpus).describe()}: {err.strerror}")
            left[irq.number] = originals.irqs[irq.number]
    for path, own in originals.banned.items():
        try:
            irqbalance.ban_cpus(path, own)
        except (FileNotFoundError, ConnectionError):
            logger.info("irqbalance of %s has ended", path)
        except OSError as err:
            refused(f"not done: irqbalance: its banned CPUs are not set on {path}: {err}")
            banned[path] = own
    with contextlib.suppress(OSError):  # the file still has them, and the next call finds nothing to do
        originals_file.save(IrqOriginals(left, banned))
    if damaged := originals_file.damaged:
        refused(f"{damaged}: interrupts that it lists may still have masks of vmpin's: remove it when they are right")
    return not (left or banned or damaged)
