"""The messages between the host and the agent in a guest, as types with their JSON form.

Shared by both ends: standard library only, Python 3.9. A field that is None was absent or is unknown. Used by guests
on the host and by the agent. What stays out: frames (frames), and reading messages (parsing).
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.protocol.frames import clean, format_ids

VERSION = 1
#: The limit on the threads outside that are listed.
MAX_OUTSIDE = 16


class Ping(NamedTuple):
    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("ping", self.id)


class InventoryRequest(NamedTuple):
    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("inventory", self.id)


class Unpin(NamedTuple):
    """Restore everything. Answered with an `Applied` without containers."""

    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("unpin", self.id)


class Subscribe(NamedTuple):
    """Send events from now on, and an `Applied` without id when an outcome changes. Answered with an `Inventory`."""

    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("subscribe", self.id)


class ContainerVcpus(NamedTuple):
    """A container's vCPUs by hardware id, ascending.

    `host` are the host's CPUs behind them, if the host discloses them; they are only exported (`VcpuMap.export`).
    """

    hw: Tuple[int, ...]
    exclusive: bool = False
    host: CpuSet = EMPTY

    def data(self) -> Dict[str, Any]:
        host = {"host": str(self.host)} if self.host else {}
        return {"hw": format_ids(self.hw), "exclusive": self.exclusive, **host}


class VcpuMap(NamedTuple):
    """The complete assignment. `system` are the vCPUs of the guest's own processes; None leaves those alone."""

    id: Optional[int]
    generation: int
    sandbox: str
    containers: Mapping[str, ContainerVcpus]
    system: Optional[Tuple[int, ...]] = None
    export: bool = False

    def message(self) -> Dict[str, Any]:
        containers = {cid: share.data() for cid, share in self.containers.items()}
        system = None if self.system is None else {"hw": format_ids(self.system)}
        return _message("map", self.id, generation=self.generation, sandbox=self.sandbox, containers=containers,
                        system=system, export=self.export)


class Pong(NamedTuple):
    """`version` is the agent's, `uptime` the guest's in seconds."""

    id: Optional[int]
    version: str
    boot_id: str
    uptime: float

    def message(self) -> Dict[str, Any]:
        return _message("pong", self.id, version=self.version, boot_id=self.boot_id, uptime=self.uptime)


class GuestCpu(NamedTuple):
    """One CPU of the guest.

    `hw` is its hardware id; None for an offline CPU of x86, which does not show its APIC id.
    """

    cpu: int
    hw: Optional[int]
    online: bool
    node: int


class GuestContainer(NamedTuple):
    id: str
    cgroup: str
    processes: int


class Inventory(NamedTuple):
    """The guest as the agent sees it.

    `cgroup` is v1, v2, hybrid or none; `note` describes a doubt, as that `hw` is guessed.
    """

    id: Optional[int]
    cpus: Sequence[GuestCpu]
    containers: Sequence[GuestContainer]
    cgroup: str
    python: str
    note: str = ""

    def message(self) -> Dict[str, Any]:
        return _message("inventory", self.id, cpus=[each._asdict() for each in self.cpus],
                        containers=[each._asdict() for each in self.containers], cgroup=self.cgroup,
                        python=self.python, note=self.note)


#: Every thread is within its CPUs.
APPLIED = "applied"
#: Not complete: vCPUs are not online, or threads are still outside. The agent continues by itself.
PENDING = "pending"
#: There is no such container in the guest, possibly not yet.
UNKNOWN = "unknown"
#: `error` has the reason.
ERROR = "error"
STATES = (APPLIED, PENDING, UNKNOWN, ERROR)


class ContainerOutcome(NamedTuple):
    """The outcome for one container, or for the guest's own processes.

    `wanted` and `effective` are guest CPUs; `cgroup` is the one that was written, None if threads were pinned one by
    one; `outside` the first threads that may run on other CPUs.
    """

    state: str
    cgroup: Optional[str] = None
    wanted: CpuSet = CpuSet()
    effective: CpuSet = CpuSet()
    processes: int = 0
    threads: int = 0
    outside: Tuple[int, ...] = ()
    error: str = ""

    def data(self) -> Dict[str, Any]:
        return {**self._asdict(), "wanted": str(self.wanted), "effective": str(self.effective),
                "outside": list(self.outside[:MAX_OUTSIDE]), "error": clean(self.error)}


class Applied(NamedTuple):
    """The outcomes of the map of `generation`; without `id` if it reports a change and answers no request."""

    id: Optional[int]
    generation: int
    containers: Mapping[str, ContainerOutcome]
    system: Optional[ContainerOutcome] = None

    def message(self) -> Dict[str, Any]:
        return _message("applied", self.id, generation=self.generation,
                        containers={cid: outcome.data() for cid, outcome in self.containers.items()},
                        system=None if self.system is None else self.system.data())


class GuestEvent(NamedTuple):
    """A change in the guest.

    `kind` is "cpus" (`online` are the CPUs online now) or "containers" (`started`, `stopped`).
    """

    kind: str
    online: CpuSet = CpuSet()
    started: Tuple[str, ...] = ()
    stopped: Tuple[str, ...] = ()

    def message(self) -> Dict[str, Any]:
        return _message("event", None, kind=self.kind, online=str(self.online), started=list(self.started),
                        stopped=list(self.stopped))


class NeedMap(NamedTuple):
    """The agent has no map, as after a restart. Sent at a new connection, and after garbage on the serial port."""

    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("need_map", self.id)


class Failure(NamedTuple):
    """The answer to a message that could not be carried out."""

    id: Optional[int]
    error: str

    def message(self) -> Dict[str, Any]:
        return _message("error", self.id, error=clean(self.error))


HostMessage = Union[Ping, InventoryRequest, VcpuMap, Unpin, Subscribe]
AgentMessage = Union[Pong, Inventory, Applied, GuestEvent, NeedMap, Failure]


def _message(type: str, id: Optional[int], **fields: object) -> Dict[str, Any]:
    return {"v": VERSION, "type": type, **({} if id is None else {"id": id}), **fields}
