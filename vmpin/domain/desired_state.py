"""The desired state: sandboxes and their containers, as the sources reported them.

Pure: `reduce` never mutates a state, and returns the very same one when an event changes nothing: its caller, the
reconciler, then has nothing to place again. Events may be late, doubled or out of order.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain import events
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId

#: A report costs memory until its sandbox is gone; a node runs a few hundred pods.
MAX_SANDBOXES, MAX_CONTAINERS = 4096, 512
MAX_REPLACED = 8  #: How many former cpusets of a container are kept.


class CpusetReport(NamedTuple):
    """A container's cpuset as one source reports it, since `time` (CLOCK_BOOTTIME ns; 0: a list had it first), and the
    cpusets that it `replaced` (NRI), oldest first."""

    cpuset: CpuSet
    time: int
    replaced: tuple[CpuSet, ...] = ()


class ContainerRecord(NamedTuple):
    """A container, and what each source reported of it."""

    container: Container
    #: The source whose cpuset counts; while none reported one, the source that reported the container.
    source: Source
    #: CLOCK_BOOTTIME ns of the last report on its life; older ones are ignored.
    time: int
    bundle: str = ""
    init: ThreadId | None = None
    #: By source; a source that reported no cpuset is left out.
    reports: Mapping[Source, CpusetReport] = MappingProxyType({})
    requested: bool = False  #: The runtime was asked to create it, and no source has reported yet that it did.

    @property
    def stopped(self) -> bool:
        return self.container.state is ContainerState.STOPPED

    @property
    def pending(self) -> bool:
        """Whether the runtime is working on a request for it."""
        return self.requested or self.container.creating or self.container.requested_cpuset is not None

    def reported_by(self, source: Source) -> bool:
        """Whether a source reported it, with a cpuset or without."""
        return source in self.reports or source is self.source


class SandboxState(NamedTuple):
    """A sandbox as its sources report it. `suspended`: the operator has unpinned it, and vmpin leaves it alone."""

    id: SandboxId
    runtime: str = "oci"
    pod: Pod | None = None
    containers: Mapping[ContainerId, ContainerRecord] = MappingProxyType({})
    suspended: bool = False
    vmm: ThreadId | None = None
    handler: str = ""
    #: Whether `pod` was reported by the runtime itself (NRI): annotations do not change it then.
    pod_by_nri: bool = False

    def live(self) -> tuple[Container, ...]:
        """The containers, stopped ones left out, in the order they came."""
        return tuple(record.container for record in self.containers.values() if not record.stopped)


class DesiredState(NamedTuple):
    """Every sandbox that a source reported and that is not gone."""

    sandboxes: Mapping[SandboxId, SandboxState] = MappingProxyType({})


#: How much a report of a sandbox's runtime counts: Kata's own state most, then a command line, NRI, a bare hook.
_RANK = {"oci": 0, "nri": 1, "vmm": 2, "kata-rs": 3, "kata-go": 3}


def reduce(state: DesiredState, event: events.Event) -> DesiredState:
    """The state after `event`; `state` itself when nothing changes."""
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


def outranks(runtime: str, old: SandboxState | None) -> bool:
    """Whether a bare report by this runtime changes a sandbox's state. Checking costs a tenth of making it."""
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
    # Compared by parts: every resync reports everything again, and making a copy costs ten times as much.
    if (runtime, pod, vmm, handler, by_nri) == (old.runtime, old.pod, old.vmm, old.handler, old.pod_by_nri):
        return old
    return old._replace(runtime=runtime, pod=pod, vmm=vmm, handler=handler, pod_by_nri=by_nri)


def _container_seen(old: SandboxState, event: events.ContainerSeen) -> SandboxState:
    now = event.container
    record = old.containers.get(now.id)
    if record is None:
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        reports = _with_report({}, event.source, now.cpuset, event.time, event.listed)
        record = ContainerRecord(now, event.source, event.time, event.bundle, event.init, reports, event.requested)
        return _with_record(_without_failed(old, event), record)
    if event.time > record.time or (event.time == record.time and not record.stopped):
        return _with_record(old, _merged(record, event))
    # Late, as a beginning in the nanosecond of the end is. A late report counts for its CPUs alone, of which each
    # source's own last report counts: Kata's file is older than the runtime's report of the update it was written for.
    if record.stopped:
        return old
    reports = _with_report(record.reports, event.source, now.cpuset, event.time, event.listed)
    return _with_record(old, _decided(record, reports))


def _merged(record: ContainerRecord, event: events.ContainerSeen) -> ContainerRecord:
    """The record with a report that is later than all before it."""
    before, now = record.container, event.container
    earlier = {} if record.stopped else record.reports  # of its former life none counts, if it was started again
    reports = _with_report(earlier, event.source, now.cpuset, event.time, event.listed)
    # No annotation changes the runtime's own name of it (NRI).
    ruled = before.name and record.reported_by(Source.NRI) and event.source is not Source.NRI
    name, pause = before.name if ruled else now.name or before.name, now.pause or before.pause
    exclusive = before.exclusive if now.exclusive is None else now.exclusive
    bundle, init = event.bundle or record.bundle, event.init or record.init
    # A request ends with the runtime's next report of the container. Kata's file shows that an update was done, but of
    # a creation only that it has begun.
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


def _without_failed(old: SandboxState, event: events.ContainerSeen) -> SandboxState:
    """Before a creation is requested: an earlier request of the same name, of which nothing more was reported, has
    failed, as containerd and CRI-O reserve a container's name for as long as they create it. Nothing else shows it: a
    container of a VM has neither process nor cgroup on the host while it is created, which may take minutes."""
    if event.requested and event.container.name:
        for record in old.containers.values():
            if record.requested and record.container.name == event.container.name and record.time < event.time:
                old = _with_record(old, _request_expired(record))
    return old


def _cpuset_seen(record: ContainerRecord, event: events.CpusetSeen) -> ContainerRecord:
    """A new cpuset: an update that was under way has been done."""
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
    """A creation of which nothing more was reported has failed; one that was done, and an update, are as they were."""
    if not record.pending:
        return record
    state = ContainerState.STOPPED if record.requested else record.container.state
    container = record.container._replace(state=state, creating=False, requested_cpuset=None)
    return record._replace(container=container, requested=False)


def _container_stopped(old: SandboxState, event: events.ContainerStopped) -> SandboxState:
    record = old.containers.get(event.container)
    if record is None:
        # A tombstone, should its creation be reported late; a bounded number of them.
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        record = ContainerRecord(Container(event.container), Source.BUNDLE, event.time)
    elif record.stopped or event.time < record.time:
        return old
    stopped = record.container._replace(state=ContainerState.STOPPED, creating=False, requested_cpuset=None)
    return _with_record(old, record._replace(container=stopped, time=event.time, init=None, requested=False))


def _with_report(reports: Mapping[Source, CpusetReport], source: Source, cpuset: CpuSet | None, time: int,
                 listed: bool = False) -> Mapping[Source, CpusetReport]:
    """Add a report; return `reports` itself when it is none (no cpuset means "no change"), old, or the same again. A
    list's cpuset was so at some time after the report that it replaces: it does not count as later than what Kata
    or the cgroup report since. One that an update has replaced already changes nothing."""
    last = reports.get(source)
    if not cpuset or (last is not None and last.cpuset == cpuset and (listed or last.time)):
        return reports
    if listed:
        if last is not None and cpuset in last.replaced:
            return reports
        time = 0 if last is None else last.time
    elif last is not None and last.time > time:
        return reports
    merged = {**reports, source: CpusetReport(cpuset, time, _replaced(last, cpuset) if source is Source.NRI else ())}
    # The runtime has just written the cgroup: what was read there before is over, until it is read again.
    read = merged.get(Source.CGROUP)
    if source is Source.NRI and read is not None and read.time <= time and read.cpuset != cpuset:
        del merged[Source.CGROUP]
    return merged


def _replaced(last: CpusetReport | None, by: CpuSet) -> tuple[CpuSet, ...]:
    """The cpusets that `by` replaces. The first one, of creation, is kept whatever comes after it."""
    older = () if last is None else (*last.replaced, last.cpuset)
    cpusets = tuple(cpuset for cpuset in dict.fromkeys(older) if cpuset != by)
    return cpusets if len(cpusets) <= MAX_REPLACED else (cpusets[0], *cpusets[2:])


def authoritative_source(reports: Mapping[Source, CpusetReport]) -> Source | None:
    """The source whose cpuset of a container counts. None: no source reported one. The later of Kata's and the
    runtime's (NRI): neither writes or reports every update. Where Kata reports none, the cgroup's comes first: the
    kernel obeys it, whichever program wrote it. Last the bundle's, which no update changes. A runtime's list has no
    time of its own (`_with_report`): Kata's file wins over it where neither is surely later.
    """
    if Source.CGROUP in reports and Source.KATA not in reports:
        return Source.CGROUP
    current = [source for source in (Source.KATA, Source.NRI) if source in reports]
    if current:
        return max(current, key=lambda source: reports[source].time)
    return Source.BUNDLE if Source.BUNDLE in reports else None


def _decided(record: ContainerRecord, reports: Mapping[Source, CpusetReport]) -> ContainerRecord:
    """Give a record these `reports`, and the cpuset of the one that counts."""
    if reports is record.reports:
        return record
    source = authoritative_source(reports) or record.source
    container = record.container._replace(cpuset=reports[source].cpuset)
    return record._replace(container=container, source=source, reports=reports)


def _with_record(old: SandboxState, record: ContainerRecord) -> SandboxState:
    """Add a record; return `old` itself when it has this very one."""
    if old.containers.get(record.container.id) is record:
        return old
    return old._replace(containers={**old.containers, record.container.id: record})


def forget_stopped(sandbox: SandboxState, before: int) -> SandboxState:
    """Return the sandbox without the stopped containers whose end (CLOCK_BOOTTIME ns) lies before `before`."""
    kept = {key: record for key, record in sandbox.containers.items() if not record.stopped or record.time >= before}
    return sandbox if len(kept) == len(sandbox.containers) else sandbox._replace(containers=kept)
