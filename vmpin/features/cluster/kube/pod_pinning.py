"""The state of a pod's CPUs, and where the pod shows it: its condition vmpin.io/CPUsPinned.

True: every thread of the pod's VM may run where the rules place it, and nowhere else. False: some thread may not, or
another pod's may run on its CPUs. Unknown: not decided yet, or no watcher reports it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from vmpin.cpuset import CpuSet, union
from vmpin.domain.terminal import number_of
from vmpin.features.cluster.kube.api_request import ApiRequest, apply, pod_path
from vmpin.features.cluster.kube.identifiers import CONDITION
from vmpin.features.cluster.kube.pod_record import PodRecord
from vmpin.features.cluster.kube.reported_node import ContainerPinning, CpuCollision, SandboxPinning
from vmpin.named_tuple import NamedTuple

#: Characters of a condition's message; an Event's may have 1,024.
MAX_MESSAGE = 1000


class PinState(enum.StrEnum):
    """The value is the condition's reason."""

    PINNED = "Pinned"
    FLOATING = "NoExclusiveCPUs"  #: All threads are within the pod's CPUs, none of which is its own.
    DEGRADED = "PinningDegraded"
    COLLISION = "CPUCollision"
    SUSPENDED = "PinningSuspended"  #: Unpinned by hand.
    UNMANAGED = "Unmanaged"
    OFF = "PinningOff"  #: By policy.
    WAITING = "Waiting"
    NOT_RUNNING = "NotRunning"
    AWAY = "WatcherAway"  #: No watcher reports.

    @property
    def status(self) -> str:
        """The condition's status."""
        return "True" if self.good else "Unknown" if self in (self.WAITING, self.NOT_RUNNING, self.AWAY) else "False"

    @property
    def good(self) -> bool:
        return self in (self.PINNED, self.FLOATING)

    @property
    def lasting(self) -> bool:
        """Whether it may last: a change to another one is worth an Event."""
        return self not in (self.WAITING, self.NOT_RUNNING, self.AWAY)


_STATES = {"pinned": PinState.PINNED, "floating": PinState.FLOATING, "waiting": PinState.WAITING,
           "degraded": PinState.DEGRADED, "unmanaged": PinState.UNMANAGED}


class PodPinning(NamedTuple):
    """A pod's state, and a sentence about it."""

    state: PinState
    message: str


AWAY = PodPinning(PinState.AWAY, "the watcher on this node does not report: its masks stay, and nothing repairs them "
                                 "(kubectl get pods of the watcher's DaemonSet, vmpin doctor)")


def pinning_of(sandbox: SandboxPinning, collisions: Iterable[CpuCollision] = ()) -> PodPinning:
    """Return the state that a pod's condition shows, with its message. :param collisions: those of the node."""
    state = _state(sandbox)
    ids = {sandbox.id, *([sandbox.uid] if sandbox.uid else [])}
    own = [f"CPU {collision.cpu}: {collision.message}" for collision in collisions
           if ids.intersection(collision.sandboxes)]
    if own and state.lasting:
        return PodPinning(PinState.COLLISION, _cut("; ".join(own)))
    if state is PinState.PINNED:
        return PodPinning(state, _cut("; ".join((_pinned(sandbox), *sandbox.reasons))))
    if state is PinState.FLOATING:
        where = f"no CPU is its own: its threads share CPUs {sandbox.mask}"
        return PodPinning(state, _cut("; ".join((where, *sandbox.reasons))))
    sentences = *_remedy(sandbox), *sandbox.reasons
    return PodPinning(state, _cut("; ".join(sentences) or f"its verdict is {sandbox.verdict}"))


def _state(sandbox: SandboxPinning) -> PinState:
    if sandbox.suspended:
        return PinState.SUSPENDED
    if not sandbox.runs:
        return PinState.NOT_RUNNING
    if sandbox.misplaced and sandbox.verdict in ("pinned", "floating"):
        return PinState.DEGRADED  # whatever the verdict: the masks are wrong
    return _STATES.get(sandbox.verdict, PinState.OFF if sandbox.mask else PinState.WAITING)


def exclusive_cpus(containers: Iterable[ContainerPinning]) -> CpuSet:
    return union(cpus(container.cpus) for container in containers if container.exclusive)


def backed_cpus(masks: Iterable[str], containers: Iterable[ContainerPinning]) -> CpuSet:
    """Return the exclusive CPUs of a pod's containers that a vCPU is pinned to: as many vCPUs have a CPU of their own.
    A mask of one CPU is no proof by itself: vCPUs that float in a sandbox with one CPU have it, too.
    :param masks: of the pod's vCPUs."""
    return exclusive_cpus(containers) & union(mask for mask in map(cpus, masks) if len(mask) == 1)


def cpus(text: str) -> CpuSet:
    """Parse a CPU list; empty for a text that was cut, or is no list."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def _pinned(sandbox: SandboxPinning) -> str:
    own, backed = exclusive_cpus(sandbox.containers), backed_cpus(sandbox.vcpus.values(), sandbox.containers)
    whose = "its" if len(sandbox.vcpus) == 1 else "their"
    return (f"{len(backed)} of {number_of(len(sandbox.vcpus), 'vCPU has')} a CPU of {whose} own ({own}), and all "
            f"threads are within CPUs {sandbox.mask}")


def _remedy(sandbox: SandboxPinning) -> list[str]:
    exclusive, vcpus = len(exclusive_cpus(sandbox.containers)), len(sandbox.vcpus)
    if sandbox.verdict != "degraded" or not 0 < vcpus < exclusive:
        return []
    return [f"{number_of(vcpus, 'vCPU')} for {number_of(exclusive, 'CPU', 'exclusive')}: raise default_maxvcpus "
            f"to at least {exclusive}"]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE - 1]}…"


def timestamp(now: float) -> str:
    """CLOCK_REALTIME in seconds, as the API server has times: whole seconds, UTC."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}"


def condition_update(pod: PodRecord, wanted: PodPinning, now: float) -> ApiRequest | None:
    """The apply of a pod's condition; None where the pod has it already. The uid is part of it: the API server refuses
    it (409) for a pod that was created again under the name."""
    shown = pod.condition
    status = wanted.state.status
    if shown is not None and (shown.get("status"), shown.get("reason"), shown.get("message")) == (
            status, wanted.state.value, wanted.message):
        return None
    since = timestamp(now)
    if shown is not None and shown.get("status") == status:
        since = str(shown.get("lastTransitionTime") or since)
    condition = {"type": CONDITION, "status": status, "reason": wanted.state.value, "message": wanted.message,
                 "lastTransitionTime": since}
    return _applied(pod, {"conditions": [condition]})


def condition_withdrawal(pod: PodRecord) -> ApiRequest | None:
    """An apply without the condition, which removes it as no other manager has it; None for a pod without it."""
    return None if pod.condition is None else _applied(pod, {})


def _applied(pod: PodRecord, status: Mapping[str, Any]) -> ApiRequest:
    return apply(f"{pod_path(pod.namespace, pod.name)}/status", {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}, "status": dict(status)})
