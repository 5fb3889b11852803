"""The desired state: sandboxes and their containers, as the sources reported them.

Pure: `reduce(state, event)` returns the next state, and the very same object when the event changes nothing: a caller
then has nothing to place again. Events may be late, doubled or out of order. `reduce` never
mutates a state; the reconciler owns the current one.

What stays out: what runs (vmm), which CPUs the kubelet assigned (kubelet_cpus), and where threads may run (placement).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.events import (
    ContainerMisplaced,
    ContainerSeen,
    ContainerStopped,
    CpusetRequested,
    CpusetSeen,
    Event,
    RequestExpired,
    SandboxGone,
    SandboxSeen,
    Source,
    SuspensionChanged,
)
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId

#: A report costs memory until its sandbox is gone; a node runs a few hundred pods.
MAX_SANDBOXES = 4096
MAX_CONTAINERS = 512
#: How many former cpusets of a container are kept.
MAX_REPLACED = 8


class CpusetReport(NamedTuple):
    """A container's cpuset as one source reports it, since `time` (CLOCK_BOOTTIME ns; 0: a list had it first).

    `replaced` are the cpusets that the runtime (NRI) reported before, oldest first.
    """

    cpuset: CpuSet
    time: int
    replaced: tuple[CpuSet, ...] = ()


class ContainerRecord(NamedTuple):
    """A container, and what each source reported of it. The container's cpuset is that of `source`."""

    container: Container
    #: The source whose cpuset counts; while none reported one, the source that reported the container.
    source: Source
    #: CLOCK_BOOTTIME ns of the last report on its life; older ones are ignored.
    time: int
    bundle: str = ""
    init: ThreadId | None = None
    #: By source; a source that reported no cpuset is left out.
    reports: Mapping[Source, CpusetReport] = MappingProxyType({})
    #: The runtime was asked to create it, and no source has reported yet that it did.
    requested: bool = False

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
        return tuple(record.container for record in self.containers.values()
                     if record.container.state is not ContainerState.STOPPED)


class DesiredState(NamedTuple):
    """Every sandbox that a source reported and that is not gone."""

    sandboxes: Mapping[SandboxId, SandboxState] = MappingProxyType({})


#: How much a source's report of a sandbox's runtime counts: Kata's own state more than a command line, and that more
#: than NRI or a bare hook.
_RANK = {"oci": 0, "nri": 1, "vmm": 2, "kata-rs": 3, "kata-go": 3}


def reduce(state: DesiredState, event: Event) -> DesiredState:
    """The state after `event`; `state` itself when nothing changes."""
    old = state.sandboxes.get(event.sandbox)
    if isinstance(event, SandboxGone):
        if old is None:
            return state
        return DesiredState({key: value for key, value in state.sandboxes.items() if key != event.sandbox})
    if old is None:
        if not isinstance(event, SandboxSeen | ContainerSeen) or len(state.sandboxes) >= MAX_SANDBOXES:
            return state
        old = SandboxState(event.sandbox)
        new = _reduce(old, event)
    else:
        new = _reduce(old, event)
        if new is old:
            return state
    return DesiredState({**state.sandboxes, event.sandbox: new})


def _reduce(old: SandboxState, event: Event) -> SandboxState:
    match event:
        case SandboxSeen():
            return _sandbox_seen(old, event)
        case ContainerSeen():
            return _container_seen(old, event)
        case CpusetSeen():
            return _cpuset_seen(old, event)
        case CpusetRequested():
            return _cpuset_requested(old, event)
        case RequestExpired():
            return _request_expired(old, event)
        case ContainerStopped():
            return _container_stopped(old, event)
        case ContainerMisplaced():
            if event.container not in old.containers:
                return old
            return old._replace(containers={key: record for key, record in old.containers.items()
                                            if key != event.container})
        case SuspensionChanged():
            return old if old.suspended == event.suspended else old._replace(suspended=event.suspended)
        case _:
            return old


def _sandbox_seen(old: SandboxState, event: SandboxSeen) -> SandboxState:
    runtime = event.runtime if _RANK.get(event.runtime, 0) > _RANK.get(old.runtime, 0) else old.runtime
    vmm, handler = event.vmm or old.vmm, event.handler or old.handler
    by_nri = event.runtime == "nri" and event.pod is not None
    pod = old.pod if old.pod_by_nri and not by_nri else event.pod or old.pod
    by_nri = by_nri or old.pod_by_nri
    # Compared by parts: every resync reports everything again, and making a copy costs ten times as much.
    if (runtime, pod, vmm, handler, by_nri) == (old.runtime, old.pod, old.vmm, old.handler, old.pod_by_nri):
        return old
    return old._replace(runtime=runtime, pod=pod, vmm=vmm, handler=handler, pod_by_nri=by_nri)


def _container_seen(old: SandboxState, event: ContainerSeen) -> SandboxState:
    record = old.containers.get(event.container.id)
    if record is None:
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        reports = _with_report({}, event.source, event.container.cpuset, event.time, event.listed)
        record = ContainerRecord(event.container, event.source, event.time, event.bundle, event.init, reports,
                                 event.requested)
        return _with_record(_without_failed(old, event), record)
    if event.time < record.time:
        # A late report of its life; of its CPUs each source's own last report counts: Kata's file is older than the
        # runtime's report of the update that it was written for.
        if record.container.state is ContainerState.STOPPED:
            return old
        reports = _with_report(record.reports, event.source, event.container.cpuset, event.time, event.listed)
        return old if reports is record.reports else _with_record(old, _decided(record, reports))
    if event.time == record.time and record.container.state is ContainerState.STOPPED:
        return old  # an end is not followed by a beginning in the same nanosecond: this one came late
    return _merged(old, record, event)


def _merged(old: SandboxState, record: ContainerRecord, event: ContainerSeen) -> SandboxState:
    """With a report that is later than all before it."""
    before, now = record.container, event.container
    # What was reported of its former life does not count for a container that was started again.
    earlier = {} if before.state is ContainerState.STOPPED else record.reports
    reports = _with_report(earlier, event.source, now.cpuset, event.time, event.listed)
    # The runtime's own name of it (NRI) is not changed by an annotation.
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
    if (reports is record.reports and event.requested == record.requested
            and (name, pause, exclusive, now.state, bundle, init, creating, requested_cpuset)
            == (before.name, before.pause, before.exclusive, before.state, record.bundle, record.init,
                before.creating, before.requested_cpuset)):
        return old
    container = now._replace(name=name, cpuset=before.cpuset, exclusive=exclusive, pause=pause, creating=creating,
                        requested_cpuset=requested_cpuset)
    merged = ContainerRecord(container, record.source, event.time, bundle, init, reports, event.requested)
    return _with_record(old, _decided(merged, reports))


def _without_failed(old: SandboxState, event: ContainerSeen) -> SandboxState:
    """Before a creation is requested: an earlier request of the same name, of which nothing more was reported, has
    failed. containerd and CRI-O reserve a container's name for as long as they create it.

    Nothing else shows it: a container of a VM has neither process nor cgroup on the host while it is created, which
    may take minutes. Should it be reported again all the same, it is there again.
    """
    if not event.requested or not event.container.name:
        return old
    for record in old.containers.values():
        if record.requested and record.container.name == event.container.name and record.time < event.time:
            old = _request_expired(old, RequestExpired(old.id, record.container.id))
    return old


def _cpuset_seen(old: SandboxState, event: CpusetSeen) -> SandboxState:
    record = old.containers.get(event.container)
    if record is None:
        return old
    reports = _with_report(record.reports, event.source, event.cpuset, event.time)
    return old if reports is record.reports else _with_record(old, _decided(_without_request(record), reports))


def _cpuset_requested(old: SandboxState, event: CpusetRequested) -> SandboxState:
    record = old.containers.get(event.container)
    if (record is None or record.container.state is ContainerState.STOPPED
            or event.cpuset in (record.container.requested_cpuset or record.container.cpuset, EMPTY)):
        return old
    return _with_record(old, record._replace(container=record.container._replace(requested_cpuset=event.cpuset)))


def _request_expired(old: SandboxState, event: RequestExpired) -> SandboxState:
    """A creation of which nothing more was reported has failed; one that was done, and an update, are as they were."""
    record = old.containers.get(event.container)
    if record is None or not record.pending:
        return old
    state = ContainerState.STOPPED if record.requested else record.container.state
    container = record.container._replace(state=state, creating=False, requested_cpuset=None)
    return _with_record(old, record._replace(container=container, requested=False))


def _container_stopped(old: SandboxState, event: ContainerStopped) -> SandboxState:
    record = old.containers.get(event.container)
    if record is None:
        # A tombstone, should its creation be reported late; a bounded number of them.
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        record = ContainerRecord(Container(event.container), Source.BUNDLE, event.time)
    elif record.container.state is ContainerState.STOPPED or event.time < record.time:
        return old
    stopped = record.container._replace(state=ContainerState.STOPPED, creating=False, requested_cpuset=None)
    return _with_record(old, record._replace(container=stopped, time=event.time, init=None, requested=False))


def _without_request(record: ContainerRecord) -> ContainerRecord:
    """Its cpuset changed: an update that was under way has been done."""
    if record.container.requested_cpuset is None:
        return record
    return record._replace(container=record.container._replace(requested_cpuset=None))


def _with_report(reports: Mapping[Source, CpusetReport], source: Source, cpuset: CpuSet | None, time: int,
                 listed: bool = False) -> Mapping[Source, CpusetReport]:
    """With one more report; `reports` itself when it is none (no cpuset means "no change"), old, or the same again.

    A list's cpuset was so at some time after the report that it replaces, and no more is certain: it does not count as
    later than what Kata or the cgroup report since. A cpuset that an update has replaced already changes nothing when
    it comes in a list.
    """
    last = reports.get(source)
    if not cpuset or (last is not None and last.cpuset == cpuset and (listed or last.time)):
        return reports
    if listed:
        if last is not None and cpuset in last.replaced:
            return reports
        time = 0 if last is None else last.time
    elif last is not None and last.time > time:
        return reports
    found = {**reports, source: CpusetReport(cpuset, time, _replaced(last, cpuset) if source is Source.NRI else ())}
    # The runtime has just written the cgroup: what was read there before is over, until it is read again.
    read = found.get(Source.CGROUP)
    if source is Source.NRI and read is not None and read.time <= time and read.cpuset != cpuset:
        del found[Source.CGROUP]
    return found


def _replaced(last: CpusetReport | None, by: CpuSet) -> tuple[CpuSet, ...]:
    """The cpusets that `by` replaces. The first one, of creation, is kept whatever comes after it."""
    if last is None:
        return ()
    found = tuple(cpuset for cpuset in dict.fromkeys((*last.replaced, last.cpuset)) if cpuset != by)
    return found if len(found) <= MAX_REPLACED else (found[0], *found[2:])


def authoritative_source(reports: Mapping[Source, CpusetReport]) -> Source | None:
    """The source whose cpuset of a container counts. None: no source reported one.

    The later of Kata's and the runtime's (NRI): not every version of Kata writes its file at each update, and NRI does
    not report every update. Where Kata reports none, the cgroup's comes first: the kernel obeys it, whichever program
    wrote it. Last the bundle's, with which the container was created, and which no update changes. A runtime's list
    has no time of its own (`_with_report`), so Kata's file wins over it where neither is certain to be later.
    """
    if Source.CGROUP in reports and Source.KATA not in reports:
        return Source.CGROUP
    current = [source for source in (Source.KATA, Source.NRI) if source in reports]
    if current:
        return max(current, key=lambda source: reports[source].time)
    return Source.BUNDLE if Source.BUNDLE in reports else None


def _decided(record: ContainerRecord, reports: Mapping[Source, CpusetReport]) -> ContainerRecord:
    """With `reports`, and the cpuset of the one that counts."""
    source = authoritative_source(reports)
    if source is None:
        return record
    container = record.container._replace(cpuset=reports[source].cpuset)
    return record._replace(container=container, source=source, reports=reports)


def _with_record(old: SandboxState, record: ContainerRecord) -> SandboxState:
    return old._replace(containers={**old.containers, record.container.id: record})


def forget_stopped(sandbox: SandboxState, before: int) -> SandboxState:
    """Without the stopped containers whose end (CLOCK_BOOTTIME ns) lies before `before`."""
    kept = {key: record for key, record in sandbox.containers.items()
            if record.container.state is not ContainerState.STOPPED or record.time >= before}
    return sandbox if len(kept) == len(sandbox.containers) else sandbox._replace(containers=kept)
