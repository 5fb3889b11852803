"""What is wanted, as far as the sources told it: sandboxes and their containers.

Pure: `reduce(state, event)` gives the next state, and the very same object when the event says nothing new, so that
a caller knows whether anything is to be placed again. Events may be late, doubled or out of order. What stays out:
what runs (observe) and who may run where (placement).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vmpin.events import (
    ContainerSeen,
    ContainerStopped,
    CpusetSeen,
    Event,
    Held,
    SandboxGone,
    SandboxSeen,
    Source,
)
from vmpin.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId

#: A hook's word costs memory until its sandbox is gone; a node runs a few hundred pods.
MAX_SANDBOXES = 4096
MAX_CONTAINERS = 512


@dataclass(frozen=True)
class Known:
    """A container with what is known about the knowledge."""

    container: Container
    #: Who told the cpuset.
    source: Source
    #: CLOCK_REALTIME ns of the last word on its life; words older than that are ignored.
    time: int
    bundle: str = ""
    init: ThreadId | None = None


@dataclass(frozen=True)
class SandboxState:
    id: SandboxId
    runtime: str = "oci"
    pod: Pod | None = None
    containers: Mapping[ContainerId, Known] = field(default_factory=dict)
    held: bool = False
    vmm: ThreadId | None = None

    def live(self) -> tuple[Container, ...]:
        """The containers, stopped ones left out, in the order they came."""
        return tuple(known.container for known in self.containers.values()
                     if known.container.state is not ContainerState.STOPPED)


@dataclass(frozen=True)
class DesiredState:
    sandboxes: Mapping[SandboxId, SandboxState] = field(default_factory=dict)


#: A runtime's own word on what a sandbox is beats the command line's, and that a bare hook's.
_RANK = {"oci": 0, "vmm": 1, "kata-rs": 2, "kata-go": 2}


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
            pod, vmm = event.pod or old.pod, event.vmm or old.vmm
            # Compared by parts: every resync says everything again, and making a copy costs ten times as much.
            if (runtime, pod, vmm) == (old.runtime, old.pod, old.vmm):
                return old
            return replace(old, runtime=runtime, pod=pod, vmm=vmm)
        case ContainerSeen():
            return _seen(old, event)
        case CpusetSeen():
            known = old.containers.get(event.container)
            if known is None or not event.cpuset or not _overrules(event.source, known):
                return old
            if known.container.cpuset == event.cpuset and known.source == event.source:
                return old
            return _with(old, replace(known, container=replace(known.container, cpuset=event.cpuset),
                                      source=event.source))
        case ContainerStopped():
            known = old.containers.get(event.container)
            if known is None:
                # A tombstone, should its creation be told late; a bounded number of them.
                if len(old.containers) >= MAX_CONTAINERS:
                    return old
                known = Known(Container(event.container), Source.BUNDLE, event.time)
            elif known.container.state is ContainerState.STOPPED or event.time < known.time:
                return old
            stopped = replace(known.container, state=ContainerState.STOPPED)
            return _with(old, replace(known, container=stopped, time=event.time, init=None))
        case Held():
            return old if old.held == event.held else replace(old, held=event.held)
        case _:
            return old


def _seen(old: SandboxState, event: ContainerSeen) -> SandboxState:
    known = old.containers.get(event.container.id)
    if known is None:
        if len(old.containers) >= MAX_CONTAINERS:
            return old
        return _with(old, Known(event.container, event.source, event.time, event.bundle, event.init))
    if event.time < known.time:
        return old
    if event.time == known.time and known.container.state is ContainerState.STOPPED:
        return old  # an end is not followed by a beginning in the same nanosecond: this one came late
    before, now = known.container, event.container
    # An empty cpuset means "no change"; a word from below does not overrule a cpuset from above.
    overrules = bool(now.cpuset) and _overrules(event.source, known)
    name, pause = now.name or before.name, now.pause or before.pause
    cpuset = now.cpuset if overrules else before.cpuset
    exclusive = before.exclusive if now.exclusive is None else now.exclusive
    source = event.source if overrules else known.source
    bundle, init = event.bundle or known.bundle, event.init or known.init
    if ((name, pause, cpuset, exclusive, now.state, source, bundle, init)
            == (before.name, before.pause, before.cpuset, before.exclusive, before.state, known.source, known.bundle,
                known.init)):
        return old
    merged = replace(now, name=name, cpuset=cpuset, exclusive=exclusive, pause=pause)
    return _with(old, Known(merged, source, event.time, bundle, init))


def _overrules(source: Source, known: Known) -> bool:
    return source >= known.source or not known.container.cpuset


def _with(old: SandboxState, known: Known) -> SandboxState:
    return replace(old, containers={**old.containers, known.container.id: known})


def forget_stopped(sandbox: SandboxState, before: int) -> SandboxState:
    """Without the stopped containers whose end (CLOCK_REALTIME ns) lies before `before`."""
    kept = {key: known for key, known in sandbox.containers.items()
            if known.container.state is not ContainerState.STOPPED or known.time >= before}
    return sandbox if len(kept) == len(sandbox.containers) else replace(sandbox, containers=kept)
