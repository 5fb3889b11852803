"""Reads the messages between the host and the agent in a guest (messages) from the JSON objects in frames (frames).

Every message has `"v": 1` and a `"type"`; a request has an `"id"`, which its answer repeats. Unknown fields are
ignored; an unknown type or another version is answered with an error. Each end treats the other as hostile: input is
limited, and texts are made printable.

    host -> agent   ping map unpin
    agent -> host   pong applied applied; without a request: applied (an outcome has changed), need_map, error

The host identifies vCPUs by their hardware id (`hw`): the APIC id on x86, which is KVM's vCPU id, and MPIDR on arm64.
In `wanted` and `effective` the agent uses the guest's own CPU numbers. A map has the host's CPU numbers only if the
host's configuration allows it.

A map is complete, and the newest generation wins: an older map is answered with the outcomes of the current one. A
host that receives a higher generation than its own, as after a change of its clock, continues from that one. The host
sends its map at every connection: over virtio-serial the guest does not notice a host that reconnects within a moment.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar

from vmpin.bounded import whole
from vmpin.cpuset import CpuLists, CpuSet, CpuSetError
from vmpin.protocol import messages
from vmpin.protocol.frames import MAX_CPUS, ProtocolError, clean, parse_ids

#: The agent's AF_VSOCK port unless configured otherwise; Kata uses 1024 to 1027.
PORT = 10789
#: The name of the virtio-serial port.
SERIAL = "org.vmpin.agent.0"

MAX_CONTAINERS = 1024
#: The limit on the hardware ids in all lists of a message that differ.
MAX_IDS = 4 * MAX_CPUS
#: The limit of ids, generations and counts.
MAX_NUMBER = (1 << 63) - 1

#: As on the host (domain.model.valid_id): one plain part of a path without characters that need escaping.
_CONTAINER = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.+:@-]{0,255}")

_Message = TypeVar("_Message")
_Value = TypeVar("_Value")


class VersionError(ProtocolError):
    """The message has another version of the protocol. Answered with an error that names both."""


class UnknownMessage(ProtocolError):
    """The message has a type that this end does not support. Answered with an error."""


def parse_request(message: Mapping[str, Any]) -> messages.HostMessage:
    """Read a message of the host. :raises VersionError: it has another version. :raises UnknownMessage: it has an
    unsupported type. :raises ProtocolError: a field is invalid."""
    return _read(message, _REQUESTS)


def parse_answer(message: Mapping[str, Any]) -> messages.AgentMessage:
    """Read a message of the agent. :raises ProtocolError: as `parse_request`."""
    return _read(message, _ANSWERS)


def _read(message: Mapping[str, Any], readers: Mapping[str, Callable[[_Fields], _Message]]) -> _Message:
    id = message.get("id")
    if id is not None and whole(id, MAX_NUMBER) is None:
        raise ProtocolError("id is no number")
    version = message.get("v")
    if version != messages.VERSION or isinstance(version, bool):
        raise VersionError(f"the message is of version {clean(repr(version), 40)} of the protocol, this end speaks "
                           f"{messages.VERSION}", id)
    type = message.get("type")
    if not isinstance(type, str):
        raise ProtocolError("type is no text", id)
    if type not in readers:
        raise UnknownMessage("unknown message", id)
    return readers[type](_Fields(message, id))


def _map(get: _Fields) -> messages.VcpuMap:
    containers = {}
    for cid, share in get.by_container():
        containers[cid] = messages.ContainerVcpus(share.hw(), share.flag("exclusive"), share.cpus("host"))
    system = get.part("system")
    return messages.VcpuMap(get.id, get.number("generation", required=True), get.text("sandbox", 256), containers,
                            None if system is None else system.hw(), get.flag("export"))


def _applied(get: _Fields) -> messages.Applied:
    containers = {cid: _outcome(outcome) for cid, outcome in get.by_container()}
    system = get.part("system")
    return messages.Applied(get.id, get.number("generation", required=True), containers,
                            None if system is None else _outcome(system))


def _outcome(get: _Fields) -> messages.ContainerOutcome:
    state = get.text("state", 16)
    if state not in messages.STATES:
        raise ProtocolError(f"{get.where}state {state!r} is none of {', '.join(messages.STATES)}", get.id)
    outside = get.list("outside", messages.MAX_OUTSIDE)
    if any(whole(tid, 1 << 31) is None for tid in outside):
        raise ProtocolError(f"{get.where}outside holds no thread ids", get.id)
    cgroup = None if get.of.get("cgroup") is None else get.text("cgroup", 4096)
    return messages.ContainerOutcome(state, cgroup, get.cpus("wanted"), get.cpus("effective"),
                                     get.number("processes"), get.number("threads"), tuple(outside),
                                     get.text("error", 400))


def is_container(text: str) -> bool:
    """Whether a text is a valid container id. Containers with another id are left out of maps."""
    return _CONTAINER.fullmatch(text) is not None


def _container(value: object, id: Optional[int]) -> str:
    if not isinstance(value, str) or not is_container(value):
        raise ProtocolError(f"{clean(repr(value), 80)} is no container's id", id)
    return value


class _IdLists:
    """Parses the lists of hardware ids of one message, as CpuLists those of CPUs: equal ones once, and all different
    ones together with MAX_IDS ids at most."""

    def __init__(self) -> None:
        self._left = MAX_IDS
        self._parsed: Dict[str, Tuple[int, ...]] = {}

    def parse(self, text: str) -> Tuple[int, ...]:
        ids = self._parsed.get(text)
        if ids is None:
            ids = self._parsed[text] = parse_ids(text, self._left)
            self._left -= len(ids)
        return ids


class _Fields:
    """Typed access to the fields of an object; an absent field is 0, "", false or empty."""

    def __init__(self, of: object, id: Optional[int], where: str = "", outer: Optional[_Fields] = None) -> None:
        if not isinstance(of, dict):
            raise ProtocolError(f"{where}no object", id)
        self.of = of
        self.id = id
        self.where = where
        self._cpu_lists: CpuLists = CpuLists() if outer is None else outer._cpu_lists
        self._id_lists: _IdLists = _IdLists() if outer is None else outer._id_lists

    def number(self, name: str, required: bool = False) -> int:
        value = whole(self.of.get(name, None if required else 0), MAX_NUMBER)
        if value is None:
            raise self._wrong(name, f"a number from 0 to {MAX_NUMBER}")
        return value

    def text(self, name: str, limit: int) -> str:
        return clean(self._get(name, "", "text"), limit)

    def flag(self, name: str) -> bool:
        return self._get(name, False, "true or false")

    def list(self, name: str, limit: int) -> List[Any]:
        return self._get(name, [], f"a list of at most {limit}", limit)

    def part(self, name: str) -> Optional[_Fields]:
        """The fields of an object in this one; None without it."""
        value = self.of.get(name)
        return None if value is None else _Fields(value, self.id, f"{name}: ", self)

    def by_container(self) -> Iterator[Tuple[str, _Fields]]:
        """The ids in `containers`, and the fields of each one's object."""
        default: Dict[str, Any] = {}
        for cid, fields in self._get("containers", default, f"an object of at most {MAX_CONTAINERS}",
                                     MAX_CONTAINERS).items():
            yield cid, _Fields(fields, self.id, f"container {_container(cid, self.id)}: ", self)

    def cpus(self, name: str) -> CpuSet:
        try:
            return self._cpu_lists.parse(self._get(name, "", "text"))
        except CpuSetError as err:
            raise ProtocolError(f"{self.where}{name}: {clean(str(err))}", self.id) from None

    def hw(self) -> Tuple[int, ...]:
        try:
            return self._id_lists.parse(self.of["hw"] if isinstance(self.of.get("hw"), str) else "?")
        except ProtocolError as err:
            raise ProtocolError(f"{self.where}hw: {err}", self.id) from None

    def _get(self, name: str, default: _Value, expected: str, limit: int = 0) -> _Value:
        """The field's value, which must have the default's type; an object or list has at most `limit` entries."""
        value: _Value = self.of.get(name, default)
        if type(value) is not type(default) or (isinstance(value, (dict, list)) and len(value) > limit):
            raise self._wrong(name, expected)
        return value

    def _wrong(self, name: str, expected: str) -> ProtocolError:
        return ProtocolError(f"{self.where}{name} is not {expected}", self.id)


_REQUESTS: Dict[str, Callable[[_Fields], messages.HostMessage]] = {
    "map": _map, "ping": lambda get: messages.Ping(get.id), "unpin": lambda get: messages.Unpin(get.id)}
_ANSWERS: Dict[str, Callable[[_Fields], messages.AgentMessage]] = {
    "applied": _applied, "need_map": lambda get: messages.NeedMap(get.id),
    "pong": lambda get: messages.Pong(get.id, get.text("version", 64), get.text("note", 400)),
    "error": lambda get: messages.Failure(get.id, get.text("error", 400))}
