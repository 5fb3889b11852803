"""The desired state: sandboxes and their containers, as reported by the sources.

Pure: `reduce` never mutates a state. If an event changes nothing it returns the identical object, so that the
reconciler has nothing to do. Events may be late, duplicated or out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain import events
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId
from vmpin.named_tuple import NamedTuple

#: A report takes memory until its sandbox is removed; a node runs a few hundred pods.
MAX_SANDBOXES, MAX_CONTAINERS = 4096, 512
MAX_REPLACED = 8  #: How many former cpusets of a container are kept.


class CpusetReport(NamedTuple):
    """A container's cpuset as reported by one source, since `time` (CLOCK_BOOTTIME ns; 0: first reported by a list),
    and the cpusets that it `replaced` (NRI only), oldest first."""

    cpuset: CpuSet
    time: int
    replaced: tuple[CpuSet, ...] = ()


class ContainerRecord(NamedTuple):
    """A container and the reports of each source about it."""

    container: Container
    #: The source whose cpuset counts; the source of the container itself until a cpuset is reported.
    source: Source
    #: CLOCK_BOOTTIME ns of the last report about its creation or end; older reports are ignored.
    time: int
    bundle: str = ""
    init: ThreadId | None = None
    #: The reports by source; sources without a reported cpuset are missing.
    reports: Mapping[Source, CpusetReport] = MappingProxyType({})
    requested: bool = False  #: Its creation was requested, and no source has reported yet that it was created.

    @property
    def stopped(self) -> bool:
        return self.container.state is ContainerState.STOPPED

    @property
    def pending(self) -> bool:
        """Whether a request to the runtime about it is in progress."""
        return self.requested or self.container.creating or self.container.requested_cpuset is not None

    def reported_by(self, source: Source) -> bool:
        """Whether a source reported the container, with or without a cpuset."""
        return source in self.reports or source is self.source


class SandboxState(NamedTuple):
    """A sandbox as reported by its sources. `suspended`: the operator unpinned it, so vmpin does not manage it."""

    id: SandboxId
    runtime: str = "oci"
    pod: Pod | None = None
    containers: Mapping[ContainerId, ContainerRecord] = MappingProxyType({})
    suspended: bool = False
    vmm: ThreadId | None = None
    handler: str = ""
    #: Whether `pod` was reported by the runtime itself (NRI); then annotations do not change it.
    pod_by_nri: bool = False

    def live(self) -> tuple[Container, ...]:
        """The containers that are not stopped, in the order of their first reports."""
        return tuple(record.container for record in self.containers.values() if not record.stopped)


class DesiredState(NamedTuple):
    """All sandboxes that a source reported and that were not removed."""

    sandboxes: Mapping[SandboxId, SandboxState] = MappingProxyType({})

    def with_processes(self) -> Iterator[tuple[SandboxId, ContainerRecord, ThreadId]]:
        """The containers whose first process is known: (sandbox, record, first process)."""
        for sandbox in self.sandboxes.values():
            for record in sandbox.containers.values():
                if record.init is not None:
                    yield sandbox.id, record, record.init


#: The rank of reports about a sandbox's runtime: Kata's own state, then a command line, NRI, a hook alone.
_RANK = {"oci": 0, "nri": 1, "vmm": 2, "kata-rs": 3, "kata-go": 3}


def reduce(state: DesiredState, event: events.Event) -> DesiredState:
    """Return the state after an event; `state` itself if nothing changes."""
    old = state.sandboxes.get(event.sandbox)
    if isinstance(event, events.SandboxGone):
        if old is None:
            return state
        return DesiredState({key: value for key, value in state.sandboxes.items() if key != event.sandbox})
    if old is None and (len(state.sandboxes) >= MAX_SANDBOXES
                        or not isinstance(event, events.SandboxSeen | events.ContainerSeen)):
        return state
    new = _reduce(old or SandboxState(event.sandbox), event)
    return state if new is old else DesiredState({**state.sandboxes, event.sandbox: new})


def is_full(state: DesiredState) -> bool:
    """Whether sandboxes or live containers may be missing because a limit is reached."""
    return len(state.sandboxes) >= MAX_SANDBOXES or any(
        len(sandbox.containers) >= MAX_CONTAINERS and len(sandbox.live()) >= MAX_CONTAINERS
        for sandbox in state.sandboxes.values())


def outranks(runtime: str, old: SandboxState | None) -> bool:
    """Whether a SandboxSeen of this runtime may change a sandbox's state. A cheap check before the merge."""
    return old is None or _RANK.get(runtime, 0) > _RANK.get(old.runtime, 0)


def _reduce(old: SandboxState, event: events.SandboxEvent) -> SandboxState:
    match event:
        case events.SandboxSeen():
            return _sandbox_seen(old, event)
        case events.SuspensionChanged():
            return old if old.suspended == event.suspended else old._replace(suspended=event.suspended)
        case events.ContainerSeen():
            return _container_seen(old, event)
        case events.ContainerStopped():
            return _container_stopped(old, event)
    record = old.containers.get(event.container)
    if record is None:
        return old
    match event:
        case events.CpusetSeen():
            return _with_record(old, _cpuset_seen(record, event))
        case events.CpusetRequested():
            return _with_record(old, _cpuset_requested(record, event))
        case events.RequestExpired():
            return _with_record(old, _request_expired(record))
        case events.ContainerMisplaced():
            return old._replace(containers={key: kept for key, kept in old.containers.items() if kept is not record})


def _sandbox_seen(old: SandboxState, event: events.SandboxSeen) -> SandboxState:
    runtime = event.runtime if outranks(event.runtime, old) else old.runtime
    vmm, handler = event.vmm or old.vmm, event.handler or old.handler
    by_nri = event.runtime == "nri" and event.pod is not None
    pod = old.pod if old.pod_by_nri and not by_nri else event.pod or old.pod
    by_nri = by_nri or old.pod_by_nri
    # Compared field by field: every resync reports everything again, and a copy costs ten times as much.
    if (runtime, pod, vmm, handler, by_nri) == (old.runtime, old.pod, old.vmm, old.handler, old.pod_by_nri):
        return old
    return old._replace(runtime=runtime, pod=pod, vmm=vmm, handler=handler, pod_by_nri=by_nri)


def _container_seen(old: SandboxState, event: events.ContainerSeen) -> SandboxState:
    now = event.container
    record = old.containers.get(now.id)
    if record is None:
        old = _with_room(old)
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        reports = _with_report({}, event.source, now.cpuset, event.time, event.from_list)
        record = ContainerRecord(now, event.source, event.time, event.bundle, event.init, reports, event.requested)
        return _with_record(_without_failed(old, event), record)
    if event.time > record.time or (event.time == record.time and not record.stopped):
        return _with_record(old, _merged(record, event))
    # A late report (also a start at the same nanosecond as the end) counts only for its cpuset: of cpusets each
    # source's latest report counts, as Kata's file is older than the runtime's report about the update that it was
    # written for.
    if record.stopped:
        return old
    reports = _with_report(record.reports, event.source, now.cpuset, event.time, event.from_list)
    return _with_record(old, _decided(record, reports))


def _merged(record: ContainerRecord, event: events.ContainerSeen) -> ContainerRecord:
    """Merge a report that is later than all others into a record."""
    before, now = record.container, event.container
    earlier = {} if record.stopped else record.reports  # reports from before a restart do not count
    reports = _with_report(earlier, event.source, now.cpuset, event.time, event.from_list)
    # Annotations do not override the name reported by the runtime itself (NRI).
    ruled = before.name and record.reported_by(Source.NRI) and event.source is not Source.NRI
    name, pause = before.name if ruled else now.name or before.name, now.pause or before.pause
    exclusive = before.exclusive if now.exclusive is None else now.exclusive
    bundle, init = event.bundle or record.bundle, event.init or record.init
    # A request ends with the runtime's next report about the container. Kata's file shows that an update was done, but
    # for a creation only that it has begun.
    if event.source is Source.NRI:
        creating, requested_cpuset = now.creating, now.requested_cpuset
    else:
        # A hook (the bundle) runs in the middle of a creation: CRI-O runs createRuntime before Kata plugs in vCPUs.
        creating = before.creating and (now.state is ContainerState.CREATED or event.source is Source.BUNDLE)
        requested_cpuset = before.requested_cpuset if reports is record.reports else None
    container = now._replace(name=name, cpuset=before.cpuset, exclusive=exclusive, pause=pause, creating=creating,
                             requested_cpuset=requested_cpuset)
    if reports is record.reports and (
            (container, bundle, init, event.requested) == (before, record.bundle, record.init, record.requested)):
        return record
    merged = ContainerRecord(container, record.source, event.time, bundle, init, earlier, event.requested)
    return _decided(merged, reports)


def _with_room(old: SandboxState) -> SandboxState:
    """Drop the container that ended first, if the limit is reached and one has ended."""
    if len(old.containers) < MAX_CONTAINERS:
        return old
    ended = min((record for record in old.containers.values() if record.stopped), key=lambda record: record.time,
                default=None)
    return old if ended is None else old._replace(
        containers={key: record for key, record in old.containers.items() if record is not ended})


def _without_failed(old: SandboxState, event: events.ContainerSeen) -> SandboxState:
    """End failed creations before a new one: containerd and CRI-O reserve a container's name while they create it, so
    an earlier request with the same name and no further report has failed. There is no other sign: while a VM's
    container is created, which may take minutes, it has neither a process nor a cgroup on the host."""
    if event.requested and event.container.name:
        for record in old.containers.values():
            if record.requested and record.container.name == event.container.name and record.time < event.time:
                old = _with_record(old, _request_expired(record))
    return old


def _cpuset_seen(record: ContainerRecord, event: events.CpusetSeen) -> ContainerRecord:
    """Record a new cpuset, which completes an update in progress."""
    reports = _with_report(record.reports, event.source, event.cpuset, event.time)
    if reports is record.reports:
        return record
    return _decided(record._replace(container=record.container._replace(requested_cpuset=None)), reports)


def _cpuset_requested(record: ContainerRecord, event: events.CpusetRequested) -> ContainerRecord:
    before = record.container
    if record.stopped or event.cpuset in (before.requested_cpuset or before.cpuset, EMPTY):
        return record
    return record._replace(container=before._replace(requested_cpuset=event.cpuset))


def _request_expired(record: ContainerRecord) -> ContainerRecord:
    """End a request: a creation without a further report has failed; an update leaves the container as it was."""
    if not record.pending:
        return record
    state = ContainerState.STOPPED if record.requested else record.container.state
    container = record.container._replace(state=state, creating=False, requested_cpuset=None)
    return record._replace(container=container, requested=False)


def _container_stopped(old: SandboxState, event: events.ContainerStopped) -> SandboxState:
    record = old.containers.get(event.container)
    if record is None:
        # A tombstone, in case the creation is reported late. Their number is bounded.
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        record = ContainerRecord(Container(event.container), Source.BUNDLE, event.time)
    elif record.stopped or event.time < record.time:
        return old
    stopped = record.container._replace(state=ContainerState.STOPPED, creating=False, requested_cpuset=None)
    return _with_record(old, record._replace(container=stopped, time=event.time, init=None, requested=False))


def _with_report(reports: Mapping[Source, CpusetReport], source: Source, cpuset: CpuSet | None, time: int,
                 from_list: bool = False) -> Mapping[Source, CpusetReport]:
    """Add a report. `reports` itself is returned for a report without a cpuset ("no change"), an older or an equal
    one. The cpuset in a runtime's list has no time of its own, so it does not count as later than reports by Kata or
    the cgroup; a cpuset that an update has already replaced changes nothing."""
    last = reports.get(source)
    if not cpuset or (last is not None and last.cpuset == cpuset and (from_list or last.time)):
        return reports
    if from_list:
        if last is not None and cpuset in last.replaced:
            return reports
        time = 0 if last is None else last.time
    elif last is not None and last.time > time:
        return reports
    written = reports.get(Source.NRI)
    if source is Source.CGROUP and written is not None and time <= written.time and cpuset != written.cpuset:
        return reports  # it was read before the runtime wrote the cgroup
    merged = {**reports, source: CpusetReport(cpuset, time, _replaced(last, cpuset) if source is Source.NRI else ())}
    # The runtime has just written the cgroup: an earlier reading is void.
    read = merged.get(Source.CGROUP)
    if source is Source.NRI and read is not None and read.time <= time and read.cpuset != cpuset:
        del merged[Source.CGROUP]
    return merged


def _replaced(last: CpusetReport | None, by: CpuSet) -> tuple[CpuSet, ...]:
    """The cpusets replaced by `by`, at most MAX_REPLACED. The first one, of the creation, is always kept."""
    older = () if last is None else (*last.replaced, last.cpuset)
    cpusets = tuple(cpuset for cpuset in dict.fromkeys(older) if cpuset != by)
    return cpusets if len(cpusets) <= MAX_REPLACED else (cpusets[0], *cpusets[2:])


def authoritative_source(reports: Mapping[Source, CpusetReport]) -> Source | None:
    """The source whose cpuset of a container counts; None if no source reported one.

    It is the later one of Kata and the runtime (NRI), because neither reports every update. A runtime's list has no
    time of its own (`_with_report`), so Kata's file wins over it unless the list is certainly later. Without a report
    by Kata the cgroup comes first, because it is in effect, whichever program wrote it. The bundle comes last, because
    updates do not change it."""
    if Source.CGROUP in reports and Source.KATA not in reports:
        return Source.CGROUP
    current = [source for source in (Source.KATA, Source.NRI) if source in reports]
    if current:
        return max(current, key=lambda source: reports[source].time)
    return Source.BUNDLE if Source.BUNDLE in reports else None


def _decided(record: ContainerRecord, reports: Mapping[Source, CpusetReport]) -> ContainerRecord:
    """Set a record's reports, and its cpuset by the report that counts."""
    if reports is record.reports:
        return record
    source = authoritative_source(reports) or record.source
    container = record.container._replace(cpuset=reports[source].cpuset)
    return record._replace(container=container, source=source, reports=reports)


def _with_record(old: SandboxState, record: ContainerRecord) -> SandboxState:
    """Add a record to a sandbox; returns `old` itself if it has the identical record."""
    if old.containers.get(record.container.id) is record:
        return old
    return old._replace(containers={**old.containers, record.container.id: record})


def forget_stopped(sandbox: SandboxState, before: int) -> SandboxState:
    """Remove containers that were stopped before `before` (CLOCK_BOOTTIME ns)."""
    gone = [key for key, record in sandbox.containers.items() if record.time < before and record.stopped]
    return sandbox._replace(containers={key: record for key, record in sandbox.containers.items()
                                        if key not in gone}) if gone else sandbox
