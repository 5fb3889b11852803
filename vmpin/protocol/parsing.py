"""Reads the messages between the host and the agent in a guest (messages) from the JSON objects in frames (frames).

Every message has `"v": 1` and a `"type"`; a request has an `"id"`, which its answer repeats. Unknown fields are
ignored; an unknown type or another version is answered with an error. Shared by both ends: standard library only,
Python 3.9. Each end treats the other as hostile: input is limited in length, depth, count and size of numbers, and
texts are made printable. Used by guests on the host and by the agent. What stays out: sockets and clocks.

    host -> agent   ping inventory map unpin subscribe
    agent -> host   pong inventory applied applied inventory; without a request: event applied need_map error

The host identifies vCPUs by their hardware id (`hw`): the APIC id on x86, which is KVM's vCPU id, and MPIDR on arm64.
In `wanted` and `effective` the agent uses the guest's own CPU numbers. A map has the host's CPU numbers only if the
host's configuration allows it.

A map is complete, and the newest generation wins: an older map is answered with the outcomes of the current one. A
host that receives a higher generation than its own, as after a change of its clock, continues from that one. The host
sends its map at every connection: over virtio-serial the guest does not notice a host that reconnects within a moment.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.protocol.frames import MAX_CPUS, MAX_HW, ProtocolError, clean, parse_ids
from vmpin.protocol.messages import (
    MAX_OUTSIDE,
    STATES,
    VERSION,
    AgentMessage,
    Applied,
    ContainerOutcome,
    ContainerVcpus,
    Failure,
    GuestContainer,
    GuestCpu,
    GuestEvent,
    HostMessage,
    Inventory,
    InventoryRequest,
    NeedMap,
    Ping,
    Pong,
    Subscribe,
    Unpin,
    VcpuMap,
)

#: The agent's AF_VSOCK port unless configured otherwise; Kata uses 1024 to 1027.
PORT = 10789
#: The name of the virtio-serial port.
SERIAL = "org.vmpin.agent.0"

MAX_CONTAINERS = 1024
#: The limit of ids, generations and counts.
MAX_NUMBER = (1 << 63) - 1

#: As on the host (domain.model.valid_id): one plain part of a path without characters that need escaping.
_CONTAINER = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.+:@-]{0,255}")


class VersionError(ProtocolError):
    """The message has another version of the protocol. Answered with an error that names both."""


class UnknownMessage(ProtocolError):
    """The message has a type that this end does not support. Answered with an error."""


def parse_request(message: Mapping[str, Any]) -> HostMessage:
    """Read a message of the host.

    :raises VersionError: it has another version. :raises UnknownMessage: it has an unsupported type.
    :raises ProtocolError: a field is invalid.
    """
    type, id = _envelope(message)
    if type == "map":
        return parse_map(message)
    if type == "ping":
        return Ping(id)
    if type == "inventory":
        return InventoryRequest(id)
    if type == "unpin":
        return Unpin(id)
    if type == "subscribe":
        return Subscribe(id)
    raise UnknownMessage("unknown message", id)


def parse_answer(message: Mapping[str, Any]) -> AgentMessage:
    """Read a message of the agent. :raises ProtocolError: as `parse_request`."""
    type, id = _envelope(message)
    get = _Fields(message, id)
    if type == "applied":
        return parse_applied(message)
    if type == "inventory":
        return parse_inventory(message)
    if type == "pong":
        return Pong(id, get.text("version", 64), get.text("boot_id", 64), get.seconds("uptime"))
    if type == "event":
        return GuestEvent(get.text("kind", 32), get.cpus("online"), get.containers("started"),
                          get.containers("stopped"))
    if type == "need_map":
        return NeedMap(id)
    if type == "error":
        return Failure(id, get.text("error", 400))
    raise UnknownMessage("unknown message", id)


def parse_map(message: Mapping[str, Any]) -> VcpuMap:
    """:raises ProtocolError: with the container and the invalid field."""
    _, id = _envelope(message)
    get = _Fields(message, id)
    containers = {}
    for cid, fields in get.objects("containers").items():
        share = _Fields(fields, id, f"container {_container(cid, id)}: ")
        containers[cid] = ContainerVcpus(share.hw(), share.flag("exclusive"), share.cpus("host"))
    system = message.get("system")
    return VcpuMap(id, get.number("generation", required=True), get.text("sandbox", 256), containers,
                   None if system is None else _Fields(system, id, "system: ").hw(), get.flag("export"))


def parse_applied(message: Mapping[str, Any]) -> Applied:
    """:raises ProtocolError: with the container and the invalid field."""
    _, id = _envelope(message)
    get = _Fields(message, id)
    containers = {cid: _outcome(_Fields(fields, id, f"container {_container(cid, id)}: "))
                  for cid, fields in get.objects("containers").items()}
    system = message.get("system")
    return Applied(id, get.number("generation", required=True), containers,
                   None if system is None else _outcome(_Fields(system, id, "system: ")))


def parse_inventory(message: Mapping[str, Any]) -> Inventory:
    """:raises ProtocolError: with the invalid field."""
    _, id = _envelope(message)
    get = _Fields(message, id)
    cpus = []
    for each in get.list("cpus", MAX_CPUS):
        one = _Fields(each, id, "cpus: ")
        hw = None if one.of.get("hw") is None else one.number("hw", MAX_HW)
        cpus.append(GuestCpu(one.number("cpu", MAX_CPUS - 1, required=True), hw, one.flag("online"),
                             one.number("node", MAX_CPUS)))
    containers = []
    for each in get.list("containers", MAX_CONTAINERS):
        one = _Fields(each, id, "containers: ")
        containers.append(GuestContainer(_container(one.of.get("id"), id), one.text("cgroup", 4096),
                                         one.number("processes")))
    return Inventory(id, cpus, containers, get.text("cgroup", 16), get.text("python", 64), get.text("note", 400))


def _outcome(get: _Fields) -> ContainerOutcome:
    state = get.text("state", 16)
    if state not in STATES:
        raise ProtocolError(f"{get.where}state {state!r} is none of {', '.join(STATES)}", get.id)
    outside = get.list("outside", MAX_OUTSIDE)
    if not all(_is_number(tid, 1 << 31) for tid in outside):
        raise ProtocolError(f"{get.where}outside holds no thread ids", get.id)
    cgroup = None if get.of.get("cgroup") is None else get.text("cgroup", 4096)
    return ContainerOutcome(state, cgroup, get.cpus("wanted"), get.cpus("effective"), get.number("processes"),
                            get.number("threads"), tuple(outside), get.text("error", 400))


def _envelope(message: Mapping[str, Any]) -> Tuple[str, Optional[int]]:
    """A message's type and id."""
    id = message.get("id")
    if id is not None and not _is_number(id, MAX_NUMBER):
        raise ProtocolError("id is no number")
    version = message.get("v")
    if version != VERSION or isinstance(version, bool):
        raise VersionError(f"the message is of version {clean(repr(version), 40)} of the protocol, this end speaks "
                           f"{VERSION}", id)
    type = message.get("type")
    if not isinstance(type, str):
        raise ProtocolError("type is no text", id)
    return type, id


def _is_number(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def is_container(text: str) -> bool:
    """Whether a text is a valid container id. Containers with another id are left out of maps and inventories."""
    return _CONTAINER.fullmatch(text) is not None


def _container(value: object, id: Optional[int]) -> str:
    if not isinstance(value, str) or not is_container(value):
        raise ProtocolError(f"{clean(repr(value), 80)} is no container's id", id)
    return value


class _Fields:
    """Typed access to the fields of an object; an absent field is 0, "", false or empty."""

    def __init__(self, of: object, id: Optional[int], where: str = "") -> None:
        if not isinstance(of, dict):
            raise ProtocolError(f"{where}no object", id)
        self.of = of
        self.id = id
        self.where = where

    def number(self, name: str, most: int = MAX_NUMBER, required: bool = False) -> int:
        value = self.of.get(name, None if required else 0)
        if value is None or not _is_number(value, most):
            raise self._wrong(name, f"a number from 0 to {most}")
        return int(value)

    def seconds(self, name: str) -> float:
        value = self.of.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise self._wrong(name, "a time in seconds")
        return float(value)

    def text(self, name: str, limit: int) -> str:
        value = self.of.get(name, "")
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return clean(value, limit)

    def flag(self, name: str) -> bool:
        value = self.of.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def list(self, name: str, limit: int) -> List[Any]:
        value = self.of.get(name, [])
        if not isinstance(value, list) or len(value) > limit:
            raise self._wrong(name, f"a list of at most {limit}")
        return value

    def containers(self, name: str) -> Tuple[str, ...]:
        return tuple(_container(each, self.id) for each in self.list(name, MAX_CONTAINERS))

    def objects(self, name: str) -> Dict[str, Any]:
        value = self.of.get(name, {})
        if not isinstance(value, dict) or len(value) > MAX_CONTAINERS:
            raise self._wrong(name, f"an object of at most {MAX_CONTAINERS}")
        return value

    def cpus(self, name: str) -> CpuSet:
        value = self.of.get(name, "")
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        try:
            return CpuSet.parse(value)
        except CpuSetError as err:
            raise ProtocolError(f"{self.where}{name}: {clean(str(err))}", self.id) from None

    def hw(self) -> Tuple[int, ...]:
        try:
            return parse_ids(self.of["hw"] if isinstance(self.of.get("hw"), str) else "?")
        except ProtocolError as err:
            raise ProtocolError(f"{self.where}hw: {err}", self.id) from None

    def _wrong(self, name: str, what: str) -> ProtocolError:
        return ProtocolError(f"{self.where}{name} is not {what}", self.id)
