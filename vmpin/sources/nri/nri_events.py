"""What a container runtime reports over NRI, as plain values, and what is sent to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.wire.nri_enums import Verb


class NriPod(NamedTuple):
    """A pod sandbox. `pid` is its pause process, or its VMM where the runtime is Kata; 0 when not known. `handler` is
    "" for the default runtime handler, `overhead` the whole CPUs in the overhead of its RuntimeClass."""

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
    """A container. `cpus` None: it has no cpuset of its own. `annotations` are those of its OCI bundle. `state` is a
    number of nri_enums; paused counts as running."""

    id: ContainerId
    pod: SandboxId
    name: str
    state: int
    cpus: CpuSet | None
    annotations: Mapping[str, str]
    pid: int
    cgroups_path: str


class Synced(NamedTuple):
    """All pods and containers, listed when a connection begins. Times are CLOCK_BOOTTIME ns of the reception. CPUs may
    be old (`ContainerSeen.listed`), but for the containers in `current`. `updated` are those whose CPUs the answer
    set; `runtime` is the pid of the runtime's process, 0 when not known. `stored`: the runtime keeps updates over its
    own restart, so that no list of its is old."""

    pods: tuple[NriPod, ...]
    containers: tuple[NriContainer, ...]
    time_ns: int
    updated: tuple[ContainerId, ...] = ()
    runtime: int = 0
    current: frozenset[ContainerId] = frozenset()
    stored: bool = False


class PodEvent(NamedTuple):
    """RUN_POD, STOP_POD or REMOVE_POD. containerd (1.7.24, 2.1.9) does not report the end of a pod that it was
    restarted during, only those of its containers."""

    verb: Verb
    pod: NriPod
    time_ns: int


class ContainerEvent(NamedTuple):
    """A call about a container. CREATE, START and UPDATE are requests, which may yet fail; POST_CREATE, POST_START and
    POST_UPDATE report that they have been done. `requested` is the cpuset that an UPDATE is to give the container."""

    verb: Verb
    pod: NriPod | None
    container: NriContainer
    time_ns: int
    requested: CpuSet | None = None


class CpusGiven(NamedTuple):
    """An answer of ours has given running containers these CPUs, beside the call that it answered. The runtime reports
    none of this, nor whether it could be done: the cgroups show that."""

    cpus: Mapping[ContainerId, CpuSet]
    time_ns: int


class Disconnected(NamedTuple):
    """The connection has ended: nothing is reported until the next `Synced`."""


NriEvent = Synced | PodEvent | ContainerEvent | CpusGiven | Disconnected


class NriUpdate(NamedTuple):
    """CPUs for a container, to be put into the answer to a Synchronize; left out of it when the runtime lists the
    container with other CPUs than `listed` (None: with any), as its CPUs were changed meanwhile."""

    cpus: CpuSet
    listed: CpuSet | None = None


@dataclass
class NriCounters:
    """Totals since the plugin was made, for the status; changed by the plugin's thread alone."""

    #: Connections that were made, and of those the ones that got as far as a full list.
    connects: int = 0
    syncs: int = 0
    events: int = 0  #: Events put into the queue.
    refused: int = 0  #: Connections closed because the bytes received were not NRI.
    dropped: int = 0  #: Pods and containers left out, without a usable id; and CPU lists that are none.
    unknown: int = 0  #: Calls and events that vmpin does not handle.
    #: Queue overflows: everything was dropped, and listed again.
    overflows: int = 0
    last_error: str = ""
