"""What irqs does in a watcher: at each resync, and soon after a CPU has another owner, it reads the
interrupts of the exclusive CPUs, and with irqs.policy: away moves them. The files are read and written in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.contention import ContentionRules
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.feature import WatcherPart
from vmpin.features.irqs import crio_annotations, irq_claims, irq_mover
from vmpin.features.irqs.interrupt_table import InterruptTable, IrqKind, IrqRow
from vmpin.features.irqs.irq_claims import IrqClaim
from vmpin.features.irqs.irq_counts import CpuInterrupts, of_interval
from vmpin.features.irqs.irq_files import IrqFiles
from vmpin.features.irqs.irq_mover import IrqMover, Moved
from vmpin.features.irqs.irq_plan import IrqRoom
from vmpin.features.irqs.originals_file import OriginalsFile
from vmpin.named_tuple import NamedTuple
from vmpin.placement.ownership import Ownership
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.nri_events import NriEvent, PodEvent, Synced
from vmpin.wire.nri_enums import Verb

if TYPE_CHECKING:
    from vmpin.features.common.metric_families import Metric

logger = logging.getLogger(__name__)

#: The share of a CPU that reading takes at most, as sampling does; and the least seconds between two readings.
_SHARE, _BREATH = 0.01, 0.2
#: Readings between two searches for the VMs of devices.
_SEARCH_EVERY = 20
#: Interrupts that stay, and interrupts of a VM's devices, that a document lists.
_MOST = 64


class Owners(NamedTuple):
    """What a reading needs of the watcher's state: the owner of each exclusive CPU; each VM's main thread and its
    sandbox's CPUs; claims of interrupts, those of the oldest pods first."""

    cpus: Mapping[int, SandboxId]
    room: IrqRoom
    vms: Mapping[SandboxId, ThreadId]
    masks: Mapping[SandboxId, CpuSet]
    claims: Sequence[IrqClaim] = ()


class DeviceInterrupt(NamedTuple):
    """An interrupt of a VM's passed-through device, and the CPUs that it may use."""

    row: IrqRow
    sandbox: SandboxId
    cpus: CpuSet


class Reading(NamedTuple):
    """The result of a reading, after an interval of so many `seconds` (0: the first)."""

    seconds: float = 0.0
    cpus: tuple[CpuInterrupts, ...] = ()
    #: The VM's sandbox by the PCI address of its device.
    owners: Mapping[str, SandboxId] = MappingProxyType({})
    devices: tuple[DeviceInterrupt, ...] = ()
    moved: Moved = Moved()
    #: The exclusive CPUs that take interrupts by an annotation of their pod.
    open: CpuSet = EMPTY
    #: Why interrupts were not moved, "" if they were.
    trouble: str = ""
    #: Since the start, by CPU and kind.
    counts: Mapping[tuple[int, IrqKind], int] = MappingProxyType({})


class IrqReader:
    """Reads, and moves where there is a mover, one reading at a time."""

    def __init__(self, files: IrqFiles, mover: IrqMover | None) -> None:
        self._files, self._mover = files, mover
        self._lock = threading.Lock()
        self._closed = False
        self._before: tuple[float, Owners, InterruptTable, InterruptTable] | None = None
        self._moved = Moved()
        self._retry = False
        self._devices: dict[str, SandboxId] = {}
        self._searched: set[str] = set()
        self._until_search = 0
        self._vms: Mapping[SandboxId, ThreadId] = {}
        self._counts: Counter[tuple[int, IrqKind]] = Counter()

    def close(self) -> None:
        """Move nothing any more. Waits until a pass is over."""
        with self._lock:
            self._closed = True

    def retry_now(self) -> None:
        """Let nothing rest in the next reading."""
        self._retry = True

    def use_rules(self, rules: ContentionRules) -> None:
        """Leave interrupts to other programs by these rules, from the next reading on."""
        if self._mover is not None:
            self._mover.contention.rules = rules

    def read(self, owners: Owners, moves: bool = True) -> Reading:
        """Make a reading. :param moves: False: nothing is moved in it.
        :raises OSError: /proc/interrupts or /proc/softirqs cannot be read."""
        with self._lock:
            at, interrupts, softirqs = time.monotonic(), self._files.interrupts(), self._files.softirqs()
            before, self._before = self._before, (at, owners, interrupts, softirqs)
            seconds, cpus = 0.0, list[CpuInterrupts]()
            if before is not None and (seconds := at - before[0]) > 0:
                same = CpuSet(cpu for cpu, owner in owners.cpus.items() if before[1].cpus.get(cpu) == owner)
                grown = [*interrupts.grown(before[2], same), *softirqs.grown(before[3], same)]
                cpus = of_interval(grown, seconds)
                for growth in grown:
                    self._counts[growth.cpu, growth.row.kind] += growth.grew
            passed = [row for row in interrupts.rows(b"vfio-") if row.device]
            self._find_devices(passed, owners)
            devices, trouble = list[DeviceInterrupt](), ""
            try:
                if self._mover is not None and moves and not self._closed:
                    apart = {device: owners.masks[sandbox] for device, sandbox in self._devices.items()
                             if sandbox in owners.masks}
                    if self._retry:
                        self._retry = False
                        self._mover.retry_now()
                    claimed = irq_claims.claims_by_irq(
                        owners.claims, interrupts.descriptions() if owners.claims else {})
                    self._moved = self._mover.move(interrupts.rows(), owners.room._replace(apart=apart), claimed)
                devices += [DeviceInterrupt(row, self._devices[row.device], mask) for row in passed
                            if row.irq is not None and row.device in self._devices
                            and (mask := self._files.mask(row.irq)) is not None]
            except OSError as err:  # such as a full disk for the originals: what the CPUs took counts all the same
                trouble = str(err)
            return Reading(seconds, tuple(cpus), self._devices, tuple(devices), self._moved,
                           CpuSet(owners.cpus) - owners.room.exclusive, trouble, dict(self._counts))

    def _find_devices(self, rows: Iterable[IrqRow], owners: Owners) -> None:
        """Find the VMs of passed-through devices, where a VM or a device is new, and at times in any case: a device
        may have been plugged into another VM."""
        wanted = {row.device for row in rows}
        self._until_search -= 1
        if wanted == self._searched and owners.vms == self._vms and self._until_search > 0:
            return
        self._searched, self._vms, self._until_search = wanted, owners.vms, _SEARCH_EVERY
        self._devices = {device: sandbox for sandbox, main in owners.vms.items() if wanted
                         for device in self._files.vfio_devices(main.tid) if device in wanted}


class NodeIrqs:
    """:param moves: whether the policy is away."""

    def __init__(self, view: NodeView, reader: IrqReader, policy: str) -> None:
        self._view, self._reader, self._policy = view, reader, policy
        honour = view.config.of_features["irqs"].honour.split(",")
        self._keys = tuple(module.KEY for name, module in (("crio", crio_annotations), ("nri-plugins", irq_claims))
                           if name in honour)
        self._annotations: dict[SandboxId, Mapping[str, str]] = {}
        #: Whether the runtime may not have listed yet which interrupts pods claim: until then none is moved, as those
        #: that an earlier watcher has moved to their CPUs would leave these for a moment.
        self._unlisted = bool(self._keys)
        self._ownership: Ownership | None = None
        self._changed = asyncio.Event()
        self._failure = ""
        self.reading = Reading()

    def part(self) -> WatcherPart:
        return WatcherPart(tasks={"irqs": self.run}, after_pass=self._after_pass, retry=self._retry_now,
                           status=self.data, members=self._members, planned=self._planned,
                           metrics=lambda view, per_sandbox: irq_families(self.reading.counts),
                           after_events=self._take_annotations if self._keys else None,
                           after_resync=self._after_resync if self._keys else None)

    def _take_annotations(self, events: Sequence[NriEvent]) -> None:
        """Keep the annotations of pods that concern interrupts, in the order in which the pods came."""
        for event in events:
            match event:
                case Synced():
                    listed = {pod.id: kept for pod in event.pods if (kept := self._kept(pod.annotations))}
                    self._annotations = {pod: listed[pod] for pod in (*self._annotations, *listed) if pod in listed}
                    self._follow_list(awaited=False)
                case PodEvent(verb=Verb.RUN_POD):
                    if kept := self._kept(event.pod.annotations):
                        self._annotations[event.pod.id] = kept
                case PodEvent(verb=Verb.REMOVE_POD):
                    self._annotations.pop(event.pod.id, None)

    def _after_resync(self) -> None:
        self._follow_list(self._view.list_awaited)

    def _follow_list(self, awaited: bool) -> None:
        if self._unlisted and not awaited:
            self._unlisted = False
            self._changed.set()

    def _kept(self, annotations: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in annotations.items() if key.partition("/")[0] in self._keys}

    async def run(self) -> None:
        """Read again and again. Moves nothing any more once it is cancelled, also where another watcher has the run
        directory."""
        try:
            await self._run()
        except asyncio.CancelledError:
            self._reader.close()
            raise

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._ownership = self._view.ownership
            cost = await self._read()
            seconds = self._view.config.watch.resync_seconds
            least = max(cost / _SHARE, _BREATH)
            await asyncio.sleep(least)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, seconds - least)):
                    await self._changed.wait()

    async def _read(self) -> float:
        """Make a reading. :returns: the CPU seconds that it took."""
        owners, moves = owners_of(self._view, self._annotations), not self._unlisted
        self._reader.use_rules(self._view.config.contention_rules)

        def read() -> tuple[Reading, float]:
            began = time.thread_time()
            return self._reader.read(owners, moves), time.thread_time() - began

        try:
            self.reading, cost = await asyncio.to_thread(read)
            trouble = self.reading.trouble
        except OSError as err:
            trouble, cost = str(err), 0.0
        if trouble and trouble != self._failure:
            logger.error("interrupts not read or not moved: %s", trouble)
        self._failure = trouble
        return cost

    def _retry_now(self) -> None:
        self._reader.retry_now()
        self._changed.set()

    def _after_pass(self) -> None:
        if self._view.ownership is not self._ownership:
            self._changed.set()

    def data(self) -> dict[str, object]:
        """The feature's member of the status document."""
        reading, moved = self.reading, self.reading.moved
        return {"policy": self._policy, "seconds": round(reading.seconds, 3), "trouble": self._failure,
                "cpus": [cpu.data(reading.owners) for cpu in reading.cpus], "moved": moved.moved,
                "kept": [{"irq": kept.irq.number, "name": kept.irq.name, "cpus": str(kept.cpus), "why": kept.why}
                         for kept in moved.kept[:_MOST]],
                "due": [write.describe() for write in moved.due[:_MOST]],
                "more_kept": len(moved.kept[_MOST:]), "more_due": len(moved.due[_MOST:]), "open": str(reading.open),
                "claimed": [claim.irq.number for claim in moved.claims if not claim.why]}

    def _planned(self) -> list[str]:
        return [write.describe() for write in self.reading.moved.due]

    def _members(self, sandbox: SandboxState) -> Mapping[str, Any]:
        reading, claim = self.reading, self._view.ownership.claims.get(sandbox.id)
        own = CpuSet() if claim is None else claim.cpus
        devices = [device for device in reading.devices if device.sandbox == sandbox.id]
        return {"interrupts": {
            "cpus": [cpu.data(reading.owners) for cpu in reading.cpus if cpu.cpu in own],
            "devices": [{"irq": device.row.irq, "name": device.row.name, "cpus": str(device.cpus)}
                        for device in devices[:_MOST]],
            "claims": [{"irq": claim.irq.number, "name": claim.irq.name, "cpus": str(claim.cpus), "why": claim.why}
                       for claim in reading.moved.claims if claim.sandbox == sandbox.id][:_MOST]}}


def watcher_part(view: NodeView, policy: str, originals: Path, leaving: WatcherPart) -> WatcherPart:
    """The part of a watcher with the policy see or away.
    :param originals: the file of the original masks. :param leaving: gives them back, if an earlier watcher moved
        interrupts and this one does not."""
    files = IrqFiles(view.proc, view.config.paths.sys)
    if policy == "away":
        mover = IrqMover(files, OriginalsFile(originals, view.boot_id), view.config.contention_rules)
        return NodeIrqs(view, IrqReader(files, mover), policy).part()
    part = NodeIrqs(view, IrqReader(files, None), policy).part()
    return part._replace(begin=leaving.begin, after_resync=leaving.after_resync)


def irq_families(counts: Mapping[tuple[int, IrqKind], int]) -> Iterator[Metric]:
    """The family of the metric. :param counts: since the start, by CPU and kind."""
    from vmpin.features.common.metric_families import counter

    yield counter("vmpin_exclusive_cpu_interrupts_total", "Interrupts that a CPU took while it was exclusive, by "
                  "kind.", {(str(cpu), kind.value): count for (cpu, kind), count in counts.items()}, "cpu", "kind")


def planned(view: NodeView, originals: Path) -> list[str]:
    """Sentences on what a watcher with the policy away would set first, without annotations, which NRI reports."""
    files = IrqFiles(view.proc, view.config.paths.sys)
    try:
        return irq_mover.planned(files, OriginalsFile(originals, view.boot_id, aside=False), owners_of(view, {}).room)
    except OSError as err:
        return [f"interrupts cannot be read: {err}"]


def owners_of(view: NodeView, annotations: Mapping[SandboxId, Mapping[str, str]]) -> Owners:
    """Take what a reading needs of the state as it is now.
    :param annotations: those of pods that are honoured, the oldest pod first: they may have CPUs that no other pod
        claims, too, take interrupts."""
    ownership, node = view.ownership, view.node
    cpus, all_claimed, contested = dict[int, SandboxId](), EMPTY, EMPTY
    for sandbox, claim in ownership.claims.items():
        contested |= claim.cpus & all_claimed
        all_claimed |= claim.cpus
        cpus |= dict.fromkeys(claim.cpus, sandbox)
    open_to_all, claims = EMPTY, list[IrqClaim]()
    for sandbox, of_pod in annotations.items():
        state, of_sandbox = view.sandboxes.get(sandbox), ownership.claims.get(sandbox)
        for container, own in () if state is None or of_sandbox is None else of_sandbox.exclusive:
            if state is not None and container in state.containers:
                name = state.containers[container].container.name
                open_to_all |= crio_annotations.housekeeping_cpus(of_pod, name, own, node.topology) - contested
                if (text := irq_claims.annotation_of(of_pod, name)) and own - contested:
                    claims.append(IrqClaim(sandbox, own - contested, text))
    room = IrqRoom(node.online, ownership.exclusive - open_to_all, ownership.pool_for_policies, node.topology.nodes)
    return Owners(cpus, room, {sandbox: vm.vmm.id for sandbox, vm in view.vms.items()},
                  {sandbox: placement.mask for sandbox, placement in view.placements.items()}, claims)
