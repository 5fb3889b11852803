"""What is wanted, as far as the sources told it: sandboxes and their containers.

Pure: `reduce(state, event)` gives the next state, and the very same object when the event says nothing new, so that
a caller knows whether anything is to be placed again. Events may be late, doubled or out of order. What stays out:
what runs (observe) and who may run where (placement).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

#: A hook's word costs memory until its sandbox is gone; a node runs a few hundred pods.
MAX_SANDBOXES = 4096
MAX_CONTAINERS = 512


#: Of CPUs that a container had before, so many are kept.
MAX_REPLACED = 8


class CpusetReport(NamedTuple):
    """What one source says a container's cpuset is, and since when (CLOCK_BOOTTIME ns; 0: a list had it first).

    `replaced` are the cpusets that the runtime (NRI) reported before, oldest first.
    """

    cpuset: CpuSet
    time: int
    replaced: tuple[CpuSet, ...] = ()


@dataclass(frozen=True)
class ContainerRecord:
    """A container with what is known about the knowledge. Its cpuset is the word of `source`."""

    container: Container
    #: Whose word its cpuset is; as long as there is none, who told of the container.
    source: Source
    #: CLOCK_BOOTTIME ns of the last word on its life; words older than that are ignored.
    time: int
    bundle: str = ""
    init: ThreadId | None = None
    #: What each source says, those without a cpuset left out.
    reports: Mapping[Source, CpusetReport] = field(default_factory=dict)
    #: Its creation was asked for, and nothing has said yet that it was created.
    requested: bool = False

    @property
    def pending(self) -> bool:
        """Whether a request of the runtime's is under way for it."""
        return self.requested or self.container.creating or self.container.requested_cpuset is not None

    def reported_by(self, source: Source) -> bool:
        """Whether a source told of it, with a cpuset or without."""
        return source in self.reports or source is self.source


@dataclass(frozen=True)
class SandboxState:
    """A sandbox as its sources report it. `held`: the operator took it out of vmpin's hands."""

    id: SandboxId
    runtime: str = "oci"
    pod: Pod | None = None
    containers: Mapping[ContainerId, ContainerRecord] = field(default_factory=dict)
    suspended: bool = False
    vmm: ThreadId | None = None
    handler: str = ""
    #: Whether `pod` is the runtime's own word (NRI): annotations do not change it then.
    pod_by_nri: bool = False

    def live(self) -> tuple[Container, ...]:
        """The containers, stopped ones left out, in the order they came."""
        return tuple(known.container for known in self.containers.values()
                     if known.container.state is not ContainerState.STOPPED)


@dataclass(frozen=True)
class DesiredState:
    """Every sandbox that is known."""

    sandboxes: Mapping[SandboxId, SandboxState] = field(default_factory=dict)


#: A runtime's own word on what a sandbox is beats the command line's, and that a bare hook's.
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
            runtime = event.runtime if _RANK.get(event.runtime, 0) > _RANK.get(old.runtime, 0) else old.runtime
            vmm, handler = event.vmm or old.vmm, event.handler or old.handler
            by_nri = event.runtime == "nri" and event.pod is not None
            pod = old.pod if old.pod_by_nri and not by_nri else event.pod or old.pod
            by_nri = by_nri or old.pod_by_nri
            # Compared by parts: every resync says everything again, and making a copy costs ten times as much.
            if (runtime, pod, vmm, handler, by_nri) == (old.runtime, old.pod, old.vmm, old.handler, old.pod_by_nri):
                return old
            return replace(old, runtime=runtime, pod=pod, vmm=vmm, handler=handler, pod_by_nri=by_nri)
        case ContainerSeen():
            return _seen(old, event)
        case CpusetSeen():
            known = old.containers.get(event.container)
            if known is None:
                return old
            words = _said(known.reports, event.source, event.cpuset, event.time)
            return old if words is known.reports else _with(old, _decided(_without_asked(known), words))
        case CpusetRequested():
            return _asked(old, event)
        case RequestExpired():
            return _over(old, event)
        case ContainerStopped():
            known = old.containers.get(event.container)
            if known is None:
                # A tombstone, should its creation be told late; a bounded number of them.
                if len(old.containers) >= MAX_CONTAINERS:
                    return old
                known = ContainerRecord(Container(event.container), Source.BUNDLE, event.time)
            elif known.container.state is ContainerState.STOPPED or event.time < known.time:
                return old
            stopped = replace(known.container, state=ContainerState.STOPPED, creating=False, requested_cpuset=None)
            return _with(old, replace(known, container=stopped, time=event.time, init=None, requested=False))
        case ContainerMisplaced():
            if event.container not in old.containers:
                return old
            return replace(old, containers={key: known for key, known in old.containers.items()
                                            if key != event.container})
        case SuspensionChanged():
            return old if old.suspended == event.suspended else replace(old, suspended=event.suspended)
        case _:
            return old


def _seen(old: SandboxState, event: ContainerSeen) -> SandboxState:
    known = old.containers.get(event.container.id)
    if known is None:
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        words = _said({}, event.source, event.container.cpuset, event.time, event.listed)
        return _with(_without_failed(old, event), ContainerRecord(event.container, event.source, event.time,
                                                                  event.bundle,
                                                        event.init, words, event.requested))
    if event.time < known.time:
        # A late word of its life; of its CPUs each source's own last word counts: Kata's file is older than the
        # runtime's word on the update that it was written for.
        if known.container.state is ContainerState.STOPPED:
            return old
        words = _said(known.reports, event.source, event.container.cpuset, event.time, event.listed)
        return old if words is known.reports else _with(old, _decided(known, words))
    if event.time == known.time and known.container.state is ContainerState.STOPPED:
        return old  # an end is not followed by a beginning in the same nanosecond: this one came late
    before, now = known.container, event.container
    # What was said of its former life is nothing to a container that was started again.
    earlier = {} if before.state is ContainerState.STOPPED else known.reports
    words = _said(earlier, event.source, now.cpuset, event.time, event.listed)
    # The runtime's own name of it (NRI) is not changed by an annotation.
    ruled = before.name and known.reported_by(Source.NRI) and event.source is not Source.NRI
    name, pause = before.name if ruled else now.name or before.name, now.pause or before.pause
    exclusive = before.exclusive if now.exclusive is None else now.exclusive
    bundle, init = event.bundle or known.bundle, event.init or known.init
    # A request ends with the runtime's next report of the container. Kata's file says of an update that it was done,
    # and of a creation only that it has begun.
    if event.source is Source.NRI:
        coming, asked = now.creating, now.requested_cpuset
    else:
        # A hook (the bundle) comes in the middle of a creation: CRI-O runs createRuntime before Kata plugs in vCPUs.
        coming = before.creating and (now.state is ContainerState.CREATED or event.source is Source.BUNDLE)
        asked = before.requested_cpuset if words is known.reports else None
    if (words is known.reports and event.requested == known.requested
            and (name, pause, exclusive, now.state, bundle, init, coming, asked)
            == (before.name, before.pause, before.exclusive, before.state, known.bundle, known.init, before.creating,
                before.requested_cpuset)):
        return old
    merged = replace(now, name=name, cpuset=before.cpuset, exclusive=exclusive, pause=pause, creating=coming,
                     requested_cpuset=asked)
    return _with(old, _decided(ContainerRecord(merged, known.source, event.time, bundle, init, words, event.requested),
                               words))


def _without_failed(old: SandboxState, event: ContainerSeen) -> SandboxState:
    """Before a creation is asked for: the one of the same name that was asked for before and never reported again has
    failed. containerd and CRI-O reserve a container's name for as long as they create it.

    Nothing else shows it: a container of a VM has neither process nor cgroup on the host while it is created, which
    may take minutes. Should it be reported again all the same, it is there again.
    """
    if not event.requested or not event.container.name:
        return old
    for known in old.containers.values():
        if (known.requested and known.container.name == event.container.name and known.time < event.time):
            old = _over(old, RequestExpired(old.id, known.container.id))
    return old


def _asked(old: SandboxState, event: CpusetRequested) -> SandboxState:
    known = old.containers.get(event.container)
    if (known is None or known.container.state is ContainerState.STOPPED
            or event.cpuset in (known.container.requested_cpuset or known.container.cpuset, EMPTY)):
        return old
    return _with(old, replace(known, container=replace(known.container, requested_cpuset=event.cpuset)))


def _over(old: SandboxState, event: RequestExpired) -> SandboxState:
    """A creation of which nothing more was reported has failed; one that was done, and an update, are as they were."""
    known = old.containers.get(event.container)
    if known is None or not known.pending:
        return old
    state = ContainerState.STOPPED if known.requested else known.container.state
    container = replace(known.container, state=state, creating=False, requested_cpuset=None)
    return _with(old, replace(known, container=container, requested=False))


def _without_asked(known: ContainerRecord) -> ContainerRecord:
    """Its cpuset is another: an update that was under way has been done."""
    if known.container.requested_cpuset is None:
        return known
    return replace(known, container=replace(known.container, requested_cpuset=None))


def _said(words: Mapping[Source, CpusetReport], source: Source, cpuset: CpuSet | None, time: int,
          listed: bool = False) -> Mapping[Source, CpusetReport]:
    """With one more word; `words` itself when it is none (no cpuset means "no change"), or old or known already.

    A list's cpuset has been so at some time after the word that it replaces, which is all that is known: it does not
    count as later than what Kata or the cgroup say since. What an update has replaced already is no news in a list.
    """
    word = words.get(source)
    if not cpuset or (word is not None and word.cpuset == cpuset and (listed or word.time)):
        return words
    if listed:
        if word is not None and cpuset in word.replaced:
            return words
        time = 0 if word is None else word.time
    elif word is not None and word.time > time:
        return words
    said = {**words, source: CpusetReport(cpuset, time, _replaced(word, cpuset) if source is Source.NRI else ())}
    # The runtime has just written the cgroup: what was read there before is over, until it is read again.
    read = said.get(Source.CGROUP)
    if source is Source.NRI and read is not None and read.time <= time and read.cpuset != cpuset:
        del said[Source.CGROUP]
    return said


def _replaced(word: CpusetReport | None, by: CpuSet) -> tuple[CpuSet, ...]:
    """The cpusets that `by` replaces. The first one, of creation, is kept whatever comes after it."""
    if word is None:
        return ()
    found = tuple(cpuset for cpuset in dict.fromkeys((*word.replaced, word.cpuset)) if cpuset != by)
    return found if len(found) <= MAX_REPLACED else (found[0], *found[2:])


def authoritative_source(words: Mapping[Source, CpusetReport]) -> Source | None:
    """Whose word on a container's cpuset counts. None: nobody said anything.

    The later of Kata's and the runtime's (NRI): the one is not written by every version at each update, the other does
    not hear of every one. Where Kata has no say the cgroup's comes first: it holds, whoever wrote it. Last what the
    container was created with, which no update changes. A runtime's list has no time of its own (`_said`), so Kata's
    file wins over it where neither is known to be later.
    """
    if Source.CGROUP in words and Source.KATA not in words:
        return Source.CGROUP
    now = [source for source in (Source.KATA, Source.NRI) if source in words]
    if now:
        return max(now, key=lambda source: words[source].time)
    return Source.BUNDLE if Source.BUNDLE in words else None


def _decided(known: ContainerRecord, words: Mapping[Source, CpusetReport]) -> ContainerRecord:
    source = authoritative_source(words)
    if source is None:
        return known
    return replace(known, container=replace(known.container, cpuset=words[source].cpuset), source=source,
                   reports=words)


def _with(old: SandboxState, known: ContainerRecord) -> SandboxState:
    return replace(old, containers={**old.containers, known.container.id: known})


def forget_stopped(sandbox: SandboxState, before: int) -> SandboxState:
    """Without the stopped containers whose end (CLOCK_BOOTTIME ns) lies before `before`."""
    kept = {key: known for key, known in sandbox.containers.items()
            if known.container.state is not ContainerState.STOPPED or known.time >= before}
    return sandbox if len(kept) == len(sandbox.containers) else replace(sandbox, containers=kept)
