"""Values of NRI: what a container runtime reports, and what a decider answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.named_tuple import NamedTuple
from vmpin.wire.nri_enums import Verb

if TYPE_CHECKING:
    from vmpin.domain.runtime_call import Adjustment, Listed, RequestedContainer, SideUpdate


class NriPod(NamedTuple):
    """A pod sandbox. `pid` is its pause process, or its VMM if the runtime is Kata; 0 if unknown. `handler` is "" for
    the default runtime handler, `overhead` the whole CPUs in the overhead of its RuntimeClass."""

    id: SandboxId
    name: str
    namespace: str
    uid: str
    handler: str
    pid: int
    annotations: Mapping[str, str]
    cgroup_parent: str
    overhead: int = 0


class NriContainer(NamedTuple):
    """A container. `cpus` is None without a cpuset of its own. `annotations` are those of its OCI bundle. `state` is a
    number of wire.nri_enums; paused counts as running."""

    id: ContainerId
    pod: SandboxId
    name: str
    state: int
    cpus: CpuSet | None
    annotations: Mapping[str, str]
    pid: int


class Synced(NamedTuple):
    """All pods and containers, as listed when a connection begins. Times are CLOCK_BOOTTIME ns of the reception. The
    CPUs may be old (`ContainerSeen.from_list`), except for the containers in `current`. The answer set the CPUs of the
    containers in `updated`. `runtime` is the pid of the runtime's process, 0 if unknown. `stored`: the runtime keeps
    updates over its own restart, so its lists are never old."""

    pods: tuple[NriPod, ...]
    containers: tuple[NriContainer, ...]
    time_ns: int
    updated: tuple[ContainerId, ...] = ()
    runtime: int = 0
    current: frozenset[ContainerId] = frozenset()
    stored: bool = False


class PodEvent(NamedTuple):
    """RUN_POD, STOP_POD or REMOVE_POD. For a pod that ends while containerd (1.7.24, 2.1.9) restarts, only the ends of
    its containers are reported."""

    verb: Verb
    pod: NriPod
    time_ns: int

    def __str__(self) -> str:
        """The pod's id, as log lines name it; `log` has the pod's name as a member of its own."""
        return f"sandbox={self.pod.id}"


class ContainerEvent(NamedTuple):
    """A call about a container. CREATE, START and UPDATE are requests, which may still fail; POST_CREATE, POST_START
    and POST_UPDATE report their completion. `requested` is the cpuset that an UPDATE requests."""

    verb: Verb
    pod: NriPod | None
    container: NriContainer
    time_ns: int
    requested: CpuSet | None = None

    def __str__(self) -> str:
        """Pod and container by their ids, as log lines name them."""
        return f"sandbox={self.container.pod} container={self.container.id} name={self.container.name}"


class CpusGiven(NamedTuple):
    """An answer of vmpin's gave these CPUs to other running containers. The runtime does not report whether that
    succeeded: the cgroups show it."""

    cpus: Mapping[ContainerId, CpuSet]
    time_ns: int


class Disconnected(NamedTuple):
    """The connection has ended: no event will come before the next `Synced`."""


NriEvent = Synced | PodEvent | ContainerEvent | CpusGiven | Disconnected


class UndecodedCall(NamedTuple):
    """A call that needed no decision: its event is decoded when it is taken from the queue, because a call by itself
    takes ten times as long as one of several. `event` returns None for a call without a usable id."""

    sandbox: SandboxId
    event: Callable[[], PodEvent | ContainerEvent | None]


class CallFacts(NamedTuple):
    """What shows whether a call's event may wait: `handler` is the pod's runtime handler, `cpus` the container's (None
    for none). `container` is "" in a call about a pod. `creates_late`: the runtime creates containers on the host
    after POST_CREATE."""

    verb: Verb
    pod: SandboxId
    container: ContainerId
    handler: str
    cpus: CpuSet | None
    creates_late: bool = False


#: Whether an event may wait for those that follow it. Called in the plugin's thread.
CanWait = Callable[[CallFacts], bool]


def never_waits(call: CallFacts) -> bool:
    return False


class NriUpdate(NamedTuple):
    """CPUs for a container, to be sent in the answer to a Synchronize; not sent if the runtime lists the container
    with other CPUs than `listed` (None: with any): they were changed in the meantime."""

    cpus: CpuSet
    listed: CpuSet | None = None


@dataclass
class NriCounters:
    """Totals since the plugin was created, for the status. Only the plugin's thread changes them, but for `dropped`,
    which also counts where an `UndecodedCall` is decoded."""

    connects: int = 0  #: Connections.
    syncs: int = 0  #: Connections over which the runtime listed everything.
    events: int = 0  #: Events put into the queue.
    refused: int = 0  #: Connections closed because the received bytes were not NRI.
    dropped: int = 0  #: Pods and containers without a usable id, and invalid CPU lists.
    unknown: int = 0  #: Calls and events that vmpin does not handle.
    overflows: int = 0  #: Queue overflows; each drops all events and requests another list.
    last_error: str = ""


class CpuAnswer(NamedTuple):
    """A decider's answer to a call; empty: the runtime's own CPUs stay. `refusal` is the error that makes the call
    fail; "" for none."""

    adjustment: Adjustment | None = None
    updates: Sequence[SideUpdate] = ()
    refusal: str = ""


class CpuDecider(Protocol):
    """Decides which CPUs containers get (the allocator does). Called in the plugin's thread, while the runtime holds
    every container: no method may wait. An exception is logged, and the answer is then empty."""

    #: The verbs whose events `record` is called for.
    records: AbstractSet[Verb]

    def decide(self, verb: Verb, container: RequestedContainer, pod: NriPod | None) -> CpuAnswer:
        """Decide on CREATE, UPDATE or STOP. :param pod: None if the call has none."""

    def synchronize(self, listed: Listed, pods: Sequence[NriPod]) -> CpuAnswer:
        """Process the runtime's list, which begins a connection. Only `CpuAnswer.updates` are sent."""

    def record(self, event: PodEvent | ContainerEvent) -> None:
        """Process a call whose answer cannot set CPUs: all except those of `decide`."""

