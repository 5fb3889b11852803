"""What irqs does in a watcher: at each sampling interval, and soon after a CPU has another owner, it reads the
interrupts of the exclusive CPUs, and with irqs.policy: away moves them. The files are read and written in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from vmpin.cpuset import CpuSet, union
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.feature import WatcherPart
from vmpin.features.irqs.crio_annotations import housekeeping_cpus, interrupt_annotations
from vmpin.features.irqs.interrupt_table import InterruptTable, IrqKind, IrqRow
from vmpin.features.irqs.irq_counts import CpuInterrupts, of_interval
from vmpin.features.irqs.irq_files import IrqFiles
from vmpin.features.irqs.irq_metrics import irq_families
from vmpin.features.irqs.irq_mover import IrqMover, Moved
from vmpin.features.irqs.irq_plan import IrqRoom
from vmpin.features.irqs.originals_file import OriginalsFile
from vmpin.placement.ownership import Ownership
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.nri_events import NriEvent, PodEvent, Synced
from vmpin.wire.nri_enums import Verb

logger = logging.getLogger(__name__)

#: The share of a CPU that reading takes at most, as sampling does; and the least seconds between two readings.
_SHARE, _BREATH = 0.01, 0.2
#: Readings between two searches for the VMs of devices.
_SEARCH_EVERY = 20
#: Interrupts that stay, and interrupts of a VM's devices, that a document lists.
_MOST = 64


class Owners(NamedTuple):
    """What a reading needs of the watcher's state: the owner of each exclusive CPU; each VM's main thread and its
    sandbox's CPUs."""

    cpus: Mapping[int, SandboxId]
    room: IrqRoom
    vms: Mapping[SandboxId, ThreadId]
    masks: Mapping[SandboxId, CpuSet]


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
        self._devices: dict[str, SandboxId] = {}
        self._until_search = 0
        self._vms: Mapping[SandboxId, ThreadId] = {}
        self._counts: Counter[tuple[int, IrqKind]] = Counter()

    def close(self) -> None:
        """Move nothing any more. Waits until a pass is over."""
        with self._lock:
            self._closed = True

    def read(self, owners: Owners) -> Reading:
        """Make a reading. :raises OSError: /proc/interrupts or /proc/softirqs cannot be read."""
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
                if self._mover is not None and not self._closed:
                    apart = {device: owners.masks[sandbox] for device, sandbox in self._devices.items()
                             if sandbox in owners.masks}
                    self._moved = self._mover.move(interrupts.rows(), owners.room._replace(apart=apart))
                devices += [DeviceInterrupt(row, self._devices[row.device], mask) for row in passed
                            if row.irq is not None and row.device in self._devices
                            and (mask := self._files.mask(row.irq)) is not None]
            except OSError as err:  # such as a full disk for the originals: what the CPUs took counts all the same
                trouble = str(err)
            return Reading(seconds, tuple(cpus), self._devices, tuple(devices), self._moved, trouble,
                           dict(self._counts))

    def _find_devices(self, rows: Iterable[IrqRow], owners: Owners) -> None:
        """Find the VMs of passed-through devices, where a VM or a device is new, and at times in any case: a device
        may have been plugged into another VM."""
        wanted = {row.device for row in rows}
        self._until_search -= 1
        if wanted == self._devices.keys() and owners.vms == self._vms and self._until_search > 0:
            return
        self._vms, self._until_search = owners.vms, _SEARCH_EVERY
        self._devices = {device: sandbox for sandbox, main in owners.vms.items() if wanted
                         for device in self._files.vfio_devices(main.tid) if device in wanted}


class NodeIrqs:
    """:param moves: whether the policy is away."""

    def __init__(self, view: NodeView, reader: IrqReader, policy: str) -> None:
        self._view, self._reader, self._policy = view, reader, policy
        self._honours = view.config.of_features["irqs"].honour == "crio"
        self._annotations: dict[SandboxId, Mapping[str, str]] = {}
        self._ownership: Ownership | None = None
        self._changed = asyncio.Event()
        self._failure = ""
        self.reading = Reading()

    def part(self) -> WatcherPart:
        return WatcherPart(tasks={"irqs": self.run}, after_pass=self._after_pass, end=self._reader.close,
                           status=self.data, members=self._members, planned=self._planned,
                           metrics=lambda scrape: irq_families(self.reading.counts),
                           after_events=self._take_annotations if self._honours else None)

    def _take_annotations(self, events: Sequence[NriEvent]) -> None:
        """Keep the annotations of pods that concern interrupts."""
        for event in events:
            match event:
                case Synced():
                    self._annotations = {pod.id: found for pod in event.pods
                                         if (found := interrupt_annotations(pod.annotations))}
                case PodEvent(verb=Verb.RUN_POD):
                    if found := interrupt_annotations(event.pod.annotations):
                        self._annotations[event.pod.id] = found
                case PodEvent(verb=Verb.REMOVE_POD):
                    self._annotations.pop(event.pod.id, None)

    async def run(self) -> None:
        while True:
            self._changed.clear()
            self._ownership = self._view.ownership
            cost = await self._read()
            seconds = self._view.config.proof.sample_seconds or self._view.config.watch.resync_seconds
            least = max(cost / _SHARE, _BREATH)
            await asyncio.sleep(least)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, seconds - least)):
                    await self._changed.wait()

    async def _read(self) -> float:
        """Make a reading. :returns: the CPU seconds that it took."""
        owners = owners_of(self._view, self._annotations)

        def read() -> tuple[Reading, float]:
            began = time.thread_time()
            return self._reader.read(owners), time.thread_time() - began

        try:
            self.reading, cost = await asyncio.to_thread(read)
            trouble = self.reading.trouble
        except OSError as err:
            trouble, cost = str(err), 0.0
        if trouble and trouble != self._failure:
            logger.error("interrupts not read or not moved: %s", trouble)
        self._failure = trouble
        return cost

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
                "due": [write.describe() for write in moved.due[:_MOST]]}

    def _planned(self) -> list[str]:
        return [write.describe() for write in self.reading.moved.due]

    def _members(self, sandbox: SandboxState) -> Mapping[str, Any]:
        reading, claim = self.reading, self._view.ownership.claims.get(sandbox.id)
        own = CpuSet() if claim is None else claim.cpus
        devices = [device for device in reading.devices if device.sandbox == sandbox.id]
        return {"interrupts": {
            "cpus": [cpu.data(reading.owners) for cpu in reading.cpus if cpu.cpu in own],
            "devices": [{"irq": device.row.irq, "name": device.row.name, "cpus": str(device.cpus)}
                        for device in devices[:_MOST]]}}


def watcher_part(view: NodeView, policy: str, originals: Path, give_back: Callable[[], None]) -> WatcherPart:
    """The part of a watcher with the policy see or away.
    :param originals: the file of the original masks. :param give_back: gives them back, if an earlier watcher moved
        interrupts and this one does not."""
    files = IrqFiles(view.proc, view.config.paths.sys)
    if policy == "away":
        mover = IrqMover(files, OriginalsFile(originals, view.boot_id), view.config.contention_rules)
        return NodeIrqs(view, IrqReader(files, mover), policy).part()
    return WatcherPart(**{**vars(NodeIrqs(view, IrqReader(files, None), policy).part()), "begin": give_back})


def owners_of(view: NodeView, annotations: Mapping[SandboxId, Mapping[str, str]]) -> Owners:
    """Take what a reading needs of the state as it is now.
    :param annotations: those of pods that are honoured: they may have a part of their CPUs take interrupts."""
    ownership, node = view.ownership, view.node
    cpus = {cpu: sandbox for sandbox, claim in ownership.claims.items() for cpu in claim.cpus}
    open_to_all = union(
        housekeeping_cpus(of_pod, state.containers[container].container.name, own, node.topology)
        for sandbox, of_pod in annotations.items() if (state := view.sandboxes.get(sandbox)) is not None
        and (claim := ownership.claims.get(sandbox)) is not None
        for container, own in claim.exclusive if container in state.containers)
    room = IrqRoom(node.online, ownership.exclusive - open_to_all, ownership.pool_for_policies, node.topology.nodes)
    return Owners(cpus, room, {sandbox: vm.vmm.id for sandbox, vm in view.vms.items()},
                  {sandbox: placement.mask for sandbox, placement in view.placements.items()})
