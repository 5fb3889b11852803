"""Reads the exclusive CPUs of every pod at each round of the sampler, and books what was foreign there.

Of a VM, the sampler reports the run time of each thread; of containers without a VM, their cgroups count it. An owner
that only the kubelet reports has neither, and is not watched.
"""

from __future__ import annotations

import contextlib
import time

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId, ThreadId
from vmpin.domain.sandbox_placement import Placement
from vmpin.features.common.cpu_times import STEP, CpuLines, tickless
from vmpin.features.isolation.books_database import IsolationKeeper
from vmpin.features.isolation.cpu_intervals import CpuReading, CpuTimes, Interval, OwnRun, interval
from vmpin.features.isolation.foreign_scans import ForeignScans, HotCpu
from vmpin.features.isolation.isolation_books import MINUTE, OwnerBook
from vmpin.host import boottime
from vmpin.host.cgroup import usage
from vmpin.host.procfs import seconds_since_boot
from vmpin.placement.ownership import Ownership
from vmpin.reconcile.view import NodeView

#: How old a reading of /proc/stat may be for the next owner (ns).
_FRESH = 1_000_000
#: By what a series of readings may be wrong in the end, for each CPU: steps of idle time, the last tick of a thread
#: that runs, and the time between the readings of a CPU and of the threads. Where ticks stop, run times are older.
_SLACK, _SLACK_TICKLESS = 2 * STEP + 2 * _FRESH, 1_000_000_000
#: Foreign time of an interval for which processes are scanned: this much on one CPU, and this part of the time.
_NOTABLE, _NOTABLE_PART = 3 * STEP, 0.005
#: Seconds between scans while there is none.
_SCAN_EVERY = 60.0
_MAX_NAME = 253


class _Counter:
    """Foreign time of a CPU (ns), and its largest value: an interval may be negative, as readings are imprecise.
    `scanned` is the sum when the last scan began."""

    __slots__ = ("most", "scanned", "sum")

    def __init__(self) -> None:
        self.sum = self.most = self.scanned = 0

    def add(self, spent: int) -> None:
        self.sum += spent
        if self.sum > self.most:
            self.most = self.sum


class _Owner:
    """An owner of exclusive CPUs. `before` is its last reading, None before the first of a series; `usage` the files
    of its containers' cgroups, with what they counted then (no VM's)."""

    def __init__(self, cpus: CpuSet, containers: tuple[ContainerId, ...]) -> None:
        self.cpus, self.containers = cpus, containers
        self.own = OwnRun()
        self.before: CpuReading | None = None
        self.usage: dict[str, int] = {}
        self.placement: Placement | None = None
        #: Whether no thread of the VM is placed elsewhere.
        self.confined = False
        self.foreign: dict[int, _Counter] = {}


class IsolationObserver:
    """Called by the sampler. :param scan_share: the share of one CPU that scans use at most.

    `fresh`: a reading of all CPUs is used again for so long (ns)."""

    def __init__(self, view: NodeView, keeper: IsolationKeeper, scan_share: float = 0.005) -> None:
        self.view, self.fresh, self._scan_share = view, _FRESH, scan_share
        self.keeper, self.books = keeper, keeper.books
        self.scans = ForeignScans(view)
        self._tickless = tickless(view.config.paths.sys)
        self._owners: dict[SandboxId, _Owner] = {}
        self._ownership: Ownership | None = None
        #: Whether there was a refresh: owners that come after it begin then.
        self._refreshed = False
        self._lines: CpuLines | None = None
        #: The CPUs on which foreign time was notable since the last scan began.
        self._hot: set[int] = set()
        #: When the last scan began: time.monotonic(), and CLOCK_BOOTTIME in ns.
        self._scanned, self._scanned_at = float("-inf"), 0
        self._round = boottime.now()
        self.closed = False  #: No more samples are taken.
        #: Foreign time of CPUs' former owners since the start (ns).
        self._former: dict[int, int] = {}

    # Of the sampler

    def refresh(self) -> list[SandboxId]:
        """Take the owners as they are now. :returns: those that are new, or have other CPUs."""
        ownership, first = self.view.ownership, not self._refreshed
        if ownership is self._ownership and not first:
            return []
        self._ownership, self._refreshed = ownership, True
        owners, new = {}, []
        for sandbox, claim in ownership.claims.items():
            if not claim.exclusive or sandbox not in self.view.sandboxes:
                continue
            cpus = claim.cpus & self.view.node.online
            containers = tuple(container for container, _ in claim.exclusive)
            if not cpus:
                continue
            old = self._owners.get(sandbox)
            if old is not None and old.cpus == cpus and old.containers == containers:
                owners[sandbox] = old
                continue
            owners[sandbox] = _Owner(cpus, containers)
            self._describe(self._book_of(sandbox, boottime.now(), first), sandbox, cpus)
            new.append(sandbox)
        for sandbox, old in self._owners.items():
            if owners.get(sandbox) is not old:
                for cpu, counter in old.foreign.items():
                    self._former[cpu] = self._former.get(cpu, 0) + counter.most
        self._owners = owners
        return new

    def round_begins(self) -> None:
        self.refresh()

    def begin(self, sandbox: SandboxId) -> None:
        """Take the first reading of an owner that is no VM."""
        owner = self._owners.get(sandbox)
        if owner is not None and sandbox not in self.view.vms and sandbox not in self.view.vm_sandboxes():
            self._read_containers(sandbox, owner)

    def ran(self, sandbox: SandboxId, spent: int, cpu: int, stayed: bool, place: CpuSet | None) -> None:
        """A thread of a VM ran since the last sample, and was on `cpu` in the end."""
        if (owner := self._owners.get(sandbox)) is not None:
            owner.own.add(spent, cpu, stayed, place, owner.cpus)

    def unplaced(self, sandbox: SandboxId, spent: int) -> None:
        """Processes of a VM ran, and no thread of them that was sampled did."""
        if (owner := self._owners.get(sandbox)) is None:
            return
        placement = self.view.placements.get(sandbox)
        if placement is not owner.placement:
            owner.placement, owner.confined = placement, _confined(placement, owner.cpus)
        owner.own.add_unplaced(spent, owner.confined)

    def sampled(self, sandbox: SandboxId) -> None:
        """All threads of a VM were sampled."""
        if (owner := self._owners.get(sandbox)) is not None:
            self._read(sandbox, owner)

    def round_ended(self) -> None:
        """Every VM was sampled: read the other owners, and book those that are no more."""
        now = boottime.now()
        without = {sandbox: owner for sandbox, owner in self._owners.items() if sandbox not in self.view.vms}
        vms = self.view.vm_sandboxes() if without else set()
        for sandbox, owner in without.items():
            if sandbox in vms:
                owner.before = None  # a VM without a VMM: it begins, or has ended
            else:
                self._read_containers(sandbox, owner)
        for book in self.books.owners.values():
            if book.owner not in self._owners and book.ended is None:
                book.idle(now, now - self._round)
        self.books.end(set(self.view.sandboxes), now)
        self.books.alive = self._round = now
        self._plan_scan()
        self.keeper.write()

    def go_on(self, budget: float) -> bool:
        """Go on for some seconds with a scan of processes, if one is under way. :returns: whether one is, still."""
        if self.scans.under_way:
            self.scans.step(budget)
            for sandbox, runs in self.scans.take().items():
                if (book := self.books.owners.get(sandbox)) is not None:
                    book.add_runs(self._scanned_at, runs)
        return self.scans.under_way

    def owns(self, owner: str) -> bool:
        """Whether a sandbox has exclusive CPUs now."""
        return owner in self._owners

    def close(self) -> None:
        """Begin to write the books: no more samples are taken."""
        self.closed = True
        self.keeper.write(0.0)

    # Of the watcher

    def foreign_seconds(self) -> dict[int, float]:
        """Foreign seconds by CPU that was exclusive since the start: they only grow."""
        by_cpu = dict(self._former)
        for owner in self._owners.values():
            for cpu, counter in owner.foreign.items():
                by_cpu[cpu] = by_cpu.get(cpu, 0) + counter.most
        return {cpu: spent / 1e9 for cpu, spent in by_cpu.items()}

    def foreign_by_sandbox(self) -> dict[SandboxId, dict[int, float]]:
        """The same of each owner that there is, since it has these CPUs."""
        return {sandbox: {cpu: counter.most / 1e9 for cpu, counter in owner.foreign.items()}
                for sandbox, owner in self._owners.items()}

    # Reading

    def _read(self, sandbox: SandboxId, owner: _Owner) -> None:
        reading = self._reading(owner.cpus)
        if owner.before is not None and owner.before.at == reading.at:
            return  # two rounds within a millisecond: what its threads ran counts with the next reading
        before, owner.before = owner.before, reading
        own, owner.own = owner.own, OwnRun()
        now = boottime.now()
        book = self._book_of(sandbox, now, False)
        foreign = None if before is None else interval(before, reading, own)
        if foreign is None or not book.book(now, foreign):
            self._describe(book, sandbox, owner.cpus)
            book.begin(now, sum(_SLACK + _SLACK_TICKLESS * (cpu in self._tickless) for cpu in owner.cpus))
            return
        self._count(owner, foreign)

    def _reading(self, cpus: CpuSet) -> CpuReading:
        if self._lines is None or time.monotonic_ns() - self._lines.at > self.fresh:
            self._lines = CpuLines(self.view.proc, max(self.view.node.online, default=0))
        return CpuReading(self._lines.at, {cpu: CpuTimes(*times) for cpu, times in self._lines.of(cpus).items()})

    def _read_containers(self, sandbox: SandboxId, owner: _Owner) -> None:
        """Read an owner that is no VM: what its containers' cgroups counted."""
        state = self.view.sandboxes.get(sandbox)
        records = {} if state is None else state.containers
        counted: dict[str, int] = {}
        for container in owner.containers:
            record = records.get(container)
            reading = None if record is None or record.init is None else self._usage(container, record.init)
            if record is None or reading is None:
                owner.before = None  # without it, its own run time would count as foreign
                return
            path, spent = reading
            counted[path] = spent
            cpuset = record.container.cpuset
            owner.own.add_unplaced(spent - owner.usage.get(path, spent), cpuset is not None and cpuset <= owner.cpus)
        if counted.keys() != owner.usage.keys():
            owner.before = None
        owner.usage = counted
        if counted:
            self._read(sandbox, owner)

    def _usage(self, container: ContainerId, init: ThreadId) -> tuple[str, int] | None:
        """The usage file of a container by its first process, and what that counted."""
        with contextlib.suppress(OSError, ValueError):  # the cgroup is being removed
            stat = self.view.proc.stat(init.tid)
            if stat is None or stat.starttime != init.starttime:
                return None
            path = self.view.cgroups.usage_file(init.tid, container)
            spent = None if path is None else usage(path)
            return None if path is None or spent is None else (path, spent)
        return None

    # Booking

    def _book_of(self, sandbox: SandboxId, now: int, first: bool) -> OwnerBook:
        """Return the book of an owner; a new one begins when its owner had the CPUs first.
        :param first: before the first round it is unknown since when its owner has the CPUs: perhaps since it began,
            or since the last reading of an earlier watcher."""
        vm = self.view.vms.get(sandbox)
        begun = 0 if vm is None else vm.vmm.id.starttime
        since = max(self.books.alive, self._began(sandbox, begun, now)) if first else now
        book = self.books.of(sandbox, now, begun, since)
        book.longest = max(MINUTE, int(2e9 * self.view.config.section("proof").sample_seconds))
        return book

    def _began(self, sandbox: SandboxId, begun: int, now: int) -> int:
        """When an owner's first process began (CLOCK_BOOTTIME, ns)."""
        state = self.view.sandboxes.get(sandbox)
        inits = [] if state is None else [record.init.starttime for record in state.containers.values()
                                         if record.init is not None]
        times = [begun] if begun else inits
        return int(seconds_since_boot(min(times)) * 1e9) if times else now

    def _describe(self, book: OwnerBook, sandbox: SandboxId, cpus: CpuSet) -> None:
        """Have a book name its owner as it is now."""
        state = self.view.sandboxes.get(sandbox)
        if state is not None and state.pod is not None:
            book.namespace, book.pod = state.pod.namespace[:_MAX_NAME], state.pod.name[:_MAX_NAME]
        book.kind = "vm" if sandbox in self.view.vm_sandboxes() else "runc"
        book.cpus = cpus

    def _count(self, owner: _Owner, interval: Interval) -> None:
        for cpu, spent in interval.foreign.items():
            if (counter := owner.foreign.get(cpu)) is None:
                counter = owner.foreign[cpu] = _Counter()
            counter.add(spent)
        notable = max(_NOTABLE, int(_NOTABLE_PART * interval.elapsed))
        if sum(interval.foreign.values()) - interval.interrupts >= notable:
            self._hot.update(cpu for cpu, spent in interval.foreign.items() if spent >= notable)

    def _plan_scan(self) -> None:
        """Begin a scan where foreign time was found, and once a minute without any, as the next one's baseline."""
        pause = max(self.scans.cost / self._scan_share, 0.0 if self._hot else _SCAN_EVERY)
        if self.scans.under_way or not self._owners or time.monotonic() - self._scanned < pause:
            return
        self._scanned, self._scanned_at = time.monotonic(), self._round
        hot = {}
        for sandbox, owner in self._owners.items():
            for cpu, counter in owner.foreign.items():
                if cpu in self._hot:
                    hot[cpu] = HotCpu(sandbox, counter.sum - counter.scanned)
                counter.scanned = counter.sum
        self._hot.clear()
        self.scans.start(hot, {sandbox: frozenset(owner.usage) for sandbox, owner in self._owners.items()
                                if owner.usage})


def _confined(placement: Placement | None, cpus: CpuSet) -> bool:
    """Whether every thread of a VM is placed within the CPUs."""
    if placement is None:
        return False
    places = [*placement.others.values(), *(place.cpus for place in placement.vcpus)]
    return all(place is not None and place <= cpus for place in places)
