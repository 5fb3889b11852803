"""The messages between the host and the agent in a guest, as types with their JSON form.

A field that is None was absent or is unknown."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple, Union

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.named_tuple import NamedTuple
from vmpin.protocol.frames import clean, format_ids

VERSION = 1
#: The limit on the threads outside that are listed.
MAX_OUTSIDE = 16


class Ping(NamedTuple):
    id: Optional[int] = None


class Unpin(NamedTuple):
    """Restore everything. Answered with an `Applied` without containers."""

    id: Optional[int] = None


class ContainerVcpus(NamedTuple):
    """A container's vCPUs by hardware id, ascending. `host` are the host's CPUs behind them, if the host discloses
    them; they are only exported (`VcpuMap.export`)."""

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


class Pong(NamedTuple):
    """`version` is the agent's; `note` describes a doubt, as that the CPUs' hardware ids are guessed."""

    id: Optional[int]
    version: str
    note: str = ""


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
    """The outcome for one container, or for the guest's own processes. `wanted` and `effective` are guest CPUs;
    `cgroup` is the one that was written, None if threads were pinned one by one; `outside` the first threads that may
    run on other CPUs."""

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


class NeedMap(NamedTuple):
    """The agent has no map, as after a restart. Sent at a new connection, and after garbage on the serial port."""

    id: Optional[int] = None


class Failure(NamedTuple):
    """The answer to a message that could not be carried out."""

    id: Optional[int]
    error: str


HostMessage = Union[Ping, VcpuMap, Unpin]
AgentMessage = Union[Pong, Applied, NeedMap, Failure]

_TYPES = {Ping: "ping", VcpuMap: "map", Unpin: "unpin", Pong: "pong", Applied: "applied", NeedMap: "need_map",
          Failure: "error"}


def as_json(message: Union[HostMessage, AgentMessage]) -> Dict[str, Any]:
    """The JSON object of a message, as `frames.encode` takes it; without the id if that is None."""
    fields = {name: _value(value) for name, value in message._asdict().items() if (name, value) != ("id", None)}
    if isinstance(message, VcpuMap) and message.system is not None:
        fields["system"] = {"hw": format_ids(message.system)}
    elif isinstance(message, Failure):
        fields["error"] = clean(message.error)
    return {"v": VERSION, "type": _TYPES[type(message)], **fields}


def _value(value: Any) -> Any:
    if isinstance(value, (ContainerVcpus, ContainerOutcome)):
        return value.data()
    return {name: _value(item) for name, item in value.items()} if isinstance(value, Mapping) else value
