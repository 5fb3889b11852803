"""A node as its watcher reports it, from the lines of `follow`: its sandboxes, and the part about the node itself.

Names and texts in a line come from pods and images: they are cut to a length and hold nothing that steers a
terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from vmpin.bounded import MAX_INT64, checked_parse, checked_real, checked_whole, load_json
from vmpin.cpuset import MAX_CPU
from vmpin.domain.terminal import excerpt
from vmpin.errors import WireError
from vmpin.named_tuple import NamedTuple

VERSION = 1
MAX_SANDBOXES = 4096
_MOST = {"reasons": 16, "containers": 64, "collisions": 256, "vcpus": 1024, "refused": 64}
LONG, _SHORT, CPUS = 512, 256, 4096


class ContainerPinning(NamedTuple):
    """`cpus` are the host's, `vcpus` the guest's that back them ("" for none known); `guest` is its state in it."""

    name: str
    cpus: str
    exclusive: bool
    vcpus: str
    guest: str


class Repairs(NamedTuple):
    """How many threads of a sandbox were put back since its watcher started, by cause; `why` is the last cause in
    words."""

    counts: Mapping[str, int] = MappingProxyType({})
    why: str = ""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class SandboxPinning(NamedTuple):
    """One VM sandbox. `pod` is (namespace, name), `uid` as the runtime has it; both empty where no source named it.
    `vcpus` are the masks in the kernel, `misplaced` the threads whose masks are not the wanted ones."""

    id: str
    pod: tuple[str, str]
    uid: str
    handler: str
    verdict: str
    reasons: tuple[str, ...]
    mask: str
    runs: bool
    suspended: bool
    misplaced: int
    vcpus: Mapping[int, str]
    containers: tuple[ContainerPinning, ...]
    agent: str
    guest: str
    repairs: Repairs


class CpuCollision(NamedTuple):
    cpu: int
    sandboxes: tuple[str, ...]
    message: str


class RefusedChange(NamedTuple):
    """A running pod's changed annotation that the watcher refused. `uid` is the pod's as the runtime has it."""

    uid: str
    container: str
    why: str


class AllocatorPart(NamedTuple):
    """The CPUs that containers may get as their own from the watcher, and of these the free ones. `why` is the reason
    where that is not known. `refused` are changed annotations."""

    allocatable: str = ""
    free: str = ""
    why: str = ""
    refused: tuple[RefusedChange, ...] = ()


class NodePart(NamedTuple):
    """The part about the node itself. `topology` is plain JSON, which the watcher made from the kernel's files;
    `kubelet` has the settings of the running kubelet by key, as far as the watcher could read them. `allocator` is
    None where the watcher gives out no CPUs."""

    ready: bool = False
    why: str = ""
    version: str = ""
    online: str = ""
    shared_pool: str = ""
    exclusive: str = ""
    housekeeping: str = ""
    trouble: str = ""
    topology: Mapping[str, Any] = MappingProxyType({})
    collisions: tuple[CpuCollision, ...] = ()
    kubelet: Mapping[str, str] = MappingProxyType({})
    allocator: AllocatorPart | None = None


class ReportedNode(NamedTuple):
    """A node and its sandboxes by id, as of `time` (CLOCK_REALTIME of the node, seconds)."""

    time: float
    node: NodePart
    sandboxes: Mapping[str, SandboxPinning]

    def after(self, raw: bytes) -> ReportedNode:
        """Return the node as another line of `follow` changes it. :raises WireError: the line is malformed."""
        try:
            line = load_json(raw)
            if "error" in line:
                raise WireError("follow", text_of(line["error"], LONG))
            if line["version"] != VERSION:
                raise WireError("follow", f"version {line['version']!r}: is the watcher of another version?")
            everything, time = line["follow"] == "all", checked_real(line["time"], 1e11)
            node = _node(line["node"]) if "node" in line else self.node
            node = self.node if node == self.node else node  # the same objects where nothing is new
            if not everything and not line["gone"] and not line["sandboxes"]:
                return self._replace(time=time, node=node)
            sandboxes = {} if everything else dict(self.sandboxes)
            for gone in line["gone"]:
                sandboxes.pop(gone, None)
            sandboxes |= {entry["id"]: _sandbox(entry) for entry in line["sandboxes"]}
            if len(sandboxes) > MAX_SANDBOXES:
                raise WireError("follow", f"more than {MAX_SANDBOXES} sandboxes")
            return ReportedNode(time, node, sandboxes)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as err:
            raise WireError("follow", f"malformed line: {type(err).__name__}") from err


def _sandbox(entry: Mapping[str, Any]) -> SandboxPinning:
    pod, guest, drift = entry["pod"] or {}, entry["guest"] or {}, entry["drift"] or {}
    return SandboxPinning(
        text_of(entry["id"]), (text_of(pod.get("namespace")), text_of(pod.get("name"))), text_of(pod.get("uid")),
        text_of(entry["handler"]), text_of(entry["verdict"]), _texts(entry["reasons"], "reasons"),
        text_of(entry["mask"], CPUS),
        entry["vmm"] is not None, entry["suspended"] is True, checked_whole(entry["misplaced"], MAX_INT64),
        {checked_parse(vcpu, MAX_CPU): text_of(cpus, CPUS)
         for vcpu, cpus in list(entry["vcpus"].items())[:_MOST["vcpus"]]},
        tuple(ContainerPinning(text_of(container["name"]), text_of(container["cpus"], CPUS),
                               container["exclusive"] is True, text_of(container["vcpus"], CPUS),
                               text_of(container["guest"]))
              for container in entry["containers"][:_MOST["containers"]]),
        text_of(guest.get("by")), text_of(guest.get("state")),
        Repairs({text_of(cause): checked_whole(count, MAX_INT64) for cause, count in drift.get("repairs", {}).items()},
                text_of(drift.get("why"), LONG)))


def _node(entry: Mapping[str, Any]) -> NodePart:
    collisions = tuple(
        CpuCollision(checked_whole(collision["cpu"], MAX_CPU), _texts(collision["sandboxes"], "containers"),
                     text_of(collision["what"], LONG)) for collision in entry["collisions"][:_MOST["collisions"]])
    texts = {key: text_of(entry[key], CPUS) for key in (
        "version", "online", "shared_pool", "exclusive", "housekeeping", "trouble")}
    part = (entry.get("features") or {}).get("allocator")
    allocator = None if part is None else AllocatorPart(
        text_of(part.get("allocatable", ""), CPUS), text_of(part.get("free", ""), CPUS), text_of(part["why"], LONG),
        tuple(RefusedChange(text_of(change["uid"]), text_of(change["container"]), text_of(change["why"], LONG))
              for change in (part.get("refused") or ())[:_MOST["refused"]]))
    return NodePart(entry["ready"] is True, text_of(entry["why"], LONG), **texts, topology=dict(entry["topology"]),
                    collisions=collisions, kubelet={text_of(key): text_of(value, CPUS) for key, value in list(
                        (entry.get("kubelet") or {}).items())[:16]}, allocator=allocator)


def text_of(value: object, most: int = _SHORT) -> str:
    return excerpt(value, most)


def _texts(values: Sequence[object], key: str) -> tuple[str, ...]:
    return tuple(text_of(value, LONG) for value in values[:_MOST[key]])


NOTHING = ReportedNode(0.0, NodePart(), {})
