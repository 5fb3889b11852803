"""The messages that the host and the agent in a guest exchange, as types that know how they are sent.

Shared by both ends, so it is the standard library only and runs on Python 3.9. A field that is None was not said, or
is not known. What stays out: reading them (guestproto).
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.protocol.frames import clean, format_ids

VERSION = 1
#: How many threads that are outside are named.
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
    """Everything back to what it was; answered with an `Applied` of no container."""

    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("unpin", self.id)


class Subscribe(NamedTuple):
    """From now on events, and an `Applied` without id when the outcome changes; answered with an `Inventory`."""

    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("subscribe", self.id)


class ContainerVcpus(NamedTuple):
    """A container's vCPUs by hardware id, ascending. `host` are the host's CPUs behind them, where the guest is to
    know; nothing is done with those but shown (`VcpuMap.export`)."""

    hw: Tuple[int, ...]
    exclusive: bool = False
    host: CpuSet = EMPTY

    def data(self) -> Dict[str, Any]:
        host = {"host": str(self.host)} if self.host else {}
        return {"hw": format_ids(self.hw), "exclusive": self.exclusive, **host}


class VcpuMap(NamedTuple):
    """All that is wanted. `system` are the vCPUs of the guest's own processes, None leaves those alone."""

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
    """`hw` None: an x86 CPU tells its APIC id only while it is online."""

    cpu: int
    hw: Optional[int]
    online: bool
    node: int


class GuestContainer(NamedTuple):
    id: str
    cgroup: str
    processes: int


class Inventory(NamedTuple):
    """`cgroup` is v1, v2, hybrid or none; `note` says what could not be told, as that `hw` is guessed."""

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


#: Every thread is where it should be.
APPLIED = "applied"
#: Not yet: vCPUs are not online, or threads are still outside. Goes on by itself.
PENDING = "pending"
#: There is no such container in the guest (yet).
UNKNOWN = "unknown"
#: `error` says why.
ERROR = "error"
STATES = (APPLIED, PENDING, UNKNOWN, ERROR)


class ContainerOutcome(NamedTuple):
    """What became of a container, or of the guest's own processes.

    `wanted` and `effective` are guest CPUs; `cgroup` is the one that was written, None where threads were pinned one
    by one; `outside` the first threads that may run elsewhere.
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
    """What became of the map of `generation`: without `id` when it changed since it was told."""

    id: Optional[int]
    generation: int
    containers: Mapping[str, ContainerOutcome]
    system: Optional[ContainerOutcome] = None

    def message(self) -> Dict[str, Any]:
        return _message("applied", self.id, generation=self.generation,
                        containers={cid: outcome.data() for cid, outcome in self.containers.items()},
                        system=None if self.system is None else self.system.data())


class GuestEvent(NamedTuple):
    """`kind` is "cpus" (then `online` are those now) or "containers" (`started` and `stopped`)."""

    kind: str
    online: CpuSet = CpuSet()
    started: Tuple[str, ...] = ()
    stopped: Tuple[str, ...] = ()

    def message(self) -> Dict[str, Any]:
        return _message("event", None, kind=self.kind, online=str(self.online), started=list(self.started),
                        stopped=list(self.stopped))


class NeedMap(NamedTuple):
    """The agent has no map: it was started again. Said when a connection is made, and when serial is clean again."""

    id: Optional[int] = None

    def message(self) -> Dict[str, Any]:
        return _message("need_map", self.id)


class Failure(NamedTuple):
    """A message that could not be dealt with."""

    id: Optional[int]
    error: str

    def message(self) -> Dict[str, Any]:
        return _message("error", self.id, error=clean(self.error))


HostMessage = Union[Ping, InventoryRequest, VcpuMap, Unpin, Subscribe]
AgentMessage = Union[Pong, Inventory, Applied, GuestEvent, NeedMap, Failure]


def _message(type: str, id: Optional[int], **fields: object) -> Dict[str, Any]:
    return {"v": VERSION, "type": type, **({} if id is None else {"id": id}), **fields}
