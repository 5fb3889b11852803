"""Scenarios: a node described in YAML, placed by the rules that the watcher uses (`vmpin plan --scenario`).

Reads the outer format into the inner model, and writes placements as JSON data. Nothing on the machine is touched; a
value that cannot be used is refused with the file, the place in it and the value. What stays out: the rules
(placement). Called by cli.plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vmpin.config import yaml_file
from vmpin.cpuset import EMPTY, CpuSet, CpuSetError, union
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole, Vcpu, VcpuId, valid_id
from vmpin.domain.topology import Topology
from vmpin.errors import ConfigError
from vmpin.placement.ownership import Collision, Node, Ownership, claims_of, find_collisions, ownership
from vmpin.placement.policy import Policy, parse_rule
from vmpin.placement.rules import Placement, PlacementRequest, place
from vmpin.placement.vcpus import Previous

#: KVM's own limit is 4096 vCPUs (KVM_MAX_VCPUS); no VM has more iothreads or queues than that either.
MAX_COUNT = 4096
MAX_PLAN = 64 << 20  #: Bytes: a plan of a full node has some 2 MB.


class ScenarioSandbox(NamedTuple):
    request: PlacementRequest
    iothreads: int
    vhost: int


class Scenario(NamedTuple):
    node: Node
    policy: Policy
    sandboxes: tuple[ScenarioSandbox, ...]


class ScenarioOutcome(NamedTuple):
    """The placements of a scenario, with what they collide in."""

    placements: tuple[Placement, ...]
    sandboxes: tuple[ScenarioSandbox, ...]
    collisions: tuple[Collision, ...]
    moves: int  #: How many vCPUs have other CPUs than in the previous plan.

    def data(self) -> dict[str, object]:
        """As `vmpin plan --scenario -o json` prints it."""
        return {"sandboxes": [_placement_data(placement, sandbox.iothreads)
                              for placement, sandbox in zip(self.placements, self.sandboxes, strict=True)],
                "collisions": [collision._asdict() for collision in self.collisions], "moves": self.moves}


def place_scenario(scenario: Scenario, previous: Mapping[SandboxId, Previous] | None = None) -> ScenarioOutcome:
    """Place every sandbox of a scenario."""
    before = previous or {}
    requests = [sandbox.request for sandbox in scenario.sandboxes]
    own = ownership({request.id: claims_of(request.containers, scenario.node) for request in requests}, scenario.node)
    placements = tuple(place(request, scenario.node, own, scenario.policy, before.get(request.id))
                       for request in requests)
    moves = 0
    for placement in placements:
        old = before.get(placement.sandbox, Previous()).vcpus
        moves += sum(vcpu.id in old and old[vcpu.id][0] != vcpu.cpus for vcpu in placement.vcpus)
    return ScenarioOutcome(placements, scenario.sandboxes, tuple(_collisions(own, placements)), moves)


def _collisions(own: Ownership, placements: Sequence[Placement]) -> list[Collision]:
    """Contested CPUs, and other pods' CPUs where a sandbox was placed for want of any other CPU."""
    found = {(collision.cpu, collision.sandboxes): collision for collision in find_collisions(own)}
    for placement in placements:
        cpus = union(cpus for cpus in (*placement.by_vcpu.values(), *placement.others.values()) if cpus is not None)
        for cpu in cpus & own.foreign(placement.sandbox):
            owners = own.owners(cpu)
            sandboxes = tuple(dict.fromkeys([*(sandbox for sandbox, _ in owners), placement.sandbox]))
            found[cpu, sandboxes] = Collision(cpu, sandboxes, f"exclusive to {own.owner_names(cpu)}, but "
                                              f"{placement.sandbox} may run there: no other CPU is left for it")
    return sorted(found.values())


def _line(text: str) -> str:
    """`text` on one line of a decent length: keys and values of any kind come into it."""
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= 400 else f"{shown[:300]}...{shown[-97:]}"


def _text(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def _placement_data(placement: Placement, iothreads: int) -> dict[str, object]:
    other = {role: _text(cpus) for role, cpus in placement.others.items()}
    return {"id": placement.sandbox, "mask": str(placement.mask), "verdict": str(placement.verdict),
            "reasons": list(placement.reasons), "vcpus": [{"id": vcpu.id, "cpus": _text(vcpu.cpus),
                                                           "container": vcpu.container} for vcpu in placement.vcpus],
            "iothreads": [{"index": index, "cpus": other[ThreadRole.IOTHREAD]} for index in range(iothreads)],
            "vhost": other[ThreadRole.VHOST], "emulator": other[ThreadRole.EMULATOR],
            "containers": [{"id": container, "vcpus": str(CpuSet(vcpus))}
                           for container, vcpus in placement.containers.items()]}


def load(path: Path, machine: Topology | None = None) -> Scenario:
    """Read a scenario. `machine` stands in for an absent topology.
    :raises ConfigError: in one line."""
    return _Reader(path).scenario(yaml_file.load(path, pipe=True), machine)


def load_previous(path: Path) -> dict[SandboxId, Previous]:
    """Read an earlier output of `vmpin plan -o json`. :raises ConfigError: in one line."""
    try:
        data = json.loads(yaml_file.read(path, MAX_PLAN, pipe=True))
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{path}: not JSON: {err}") from err
    yaml_file.check(path, data)
    reader = _Reader(path)
    found = {}
    top = reader.mapping(data, "the document", None)
    for at, entry in reader.items(top.get("sandboxes"), "sandboxes"):
        sandbox = reader.mapping(entry, at, None)
        vcpus: dict[VcpuId, tuple[CpuSet | None, ContainerId | None]] = {}
        for place_at, item in reader.items(sandbox.get("vcpus"), f"{at}.vcpus"):
            vcpu = reader.mapping(item, place_at, None)
            cpus = None if vcpu.get("cpus") is None else reader.cpuset(vcpu["cpus"], f"{place_at}.cpus")
            backs = vcpu.get("container")
            number = VcpuId(reader.count(vcpu.get("id"), f"{place_at}.id"))
            vcpus[number] = (cpus, None if backs is None else ContainerId(reader.id(backs, f"{place_at}.container")))
        found[SandboxId(reader.id(sandbox.get("id"), f"{at}.id"))] = Previous(
            reader.cpuset(sandbox.get("mask", ""), f"{at}.mask"), vcpus)
    return found


class _Reader:
    """Turns YAML values into the model, with the place of each value for the error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, at: str, why: str) -> ConfigError:
        return ConfigError(f"{self.path}: {_line(at)}: {_line(why)}")

    def mapping(self, value: object, at: str, keys: Sequence[str] | None) -> dict[str, object]:
        """A mapping with no keys but `keys` (None: any)."""
        if not isinstance(value, dict):
            raise self.wrong(at, f"{value!r} is no mapping of keys to values")
        for key in value:
            if keys is not None and key not in keys:
                raise self.wrong(at, f"unknown key {key!r} (known: {', '.join(keys)})")
        return value

    def items(self, value: object, at: str) -> list[tuple[str, object]]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(at, f"{value!r} is no list")
        return [(f"{at}[{index}]", item) for index, item in enumerate(value)]

    def cpuset(self, value: object, at: str, valid: CpuSet | None = None) -> CpuSet:
        """A CPU list, or a single CPU as a number; within `valid` when given."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.wrong(at, f"{value!r} is no CPU list")
        try:
            cpus = CpuSet.parse(str(value))
        except CpuSetError as err:
            raise self.wrong(at, str(err)) from err
        if valid is not None and not cpus <= valid:
            raise self.wrong(at, f"CPUs {cpus - valid} of {str(value)!r} are not in the topology ({valid})")
        return cpus

    def count(self, value: object, at: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise self.wrong(at, f"{value!r} is no number between 0 and {MAX_COUNT}")
        return value

    def id(self, value: object, at: str) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not valid_id(text):
            raise self.wrong(at, f"{value!r} is no id (letters, digits and _.+:@-)")
        return text

    def scenario(self, document: object, machine: Topology | None) -> Scenario:
        top = self.mapping({} if document is None else document, "the document",
                           ("topology", "housekeeping", "shared_pool", "policy", "sandboxes"))
        topology = machine if top.get("topology") is None else self.topology(top["topology"])
        if topology is None:
            raise self.wrong("topology", "is missing")
        valid = topology.all_cpus
        pool = None if top.get("shared_pool") is None else self.cpuset(top["shared_pool"], "shared_pool", valid)
        idle = top.get("housekeeping")
        housekeeping = EMPTY if idle is None else self.cpuset(idle, "housekeeping", valid)
        sandboxes: dict[SandboxId, ScenarioSandbox] = {}
        for at, entry in self.items(top.get("sandboxes"), "sandboxes"):
            sandbox = self.sandbox(entry, at, valid)
            if sandbox.request.id in sandboxes:
                raise self.wrong(f"{at}.id", f"{sandbox.request.id!r} is there twice")
            sandboxes[sandbox.request.id] = sandbox
        return Scenario(Node(topology, pool, housekeeping), self.policy(top.get("policy"), valid),
                        tuple(sandboxes.values()))

    def topology(self, value: object) -> Topology:
        keys = self.mapping(value, "topology", ("online", "cores", "nodes"))
        if keys.get("online") is None:
            raise self.wrong("topology.online", "is missing")
        online = self.cpuset(keys["online"], "topology.online")
        if not online:
            raise self.wrong("topology.online", "names no CPU")
        cores = [self.cpuset(item, at) for at, item in self.items(keys.get("cores"), "topology.cores")]
        nodes: dict[int, CpuSet] = {}
        given = keys.get("nodes")
        for key, cpus in self.mapping({} if given is None else given, "topology.nodes", None).items():
            at = f"topology.nodes.{key}"
            number = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key
            number = self.count(number, at)
            if number in nodes:
                raise self.wrong(at, "is there twice")
            nodes[number] = self.cpuset(cpus, at)
        try:
            return Topology.build(online, cores=cores, nodes=nodes)
        except ValueError as err:
            raise self.wrong("topology", str(err)) from err

    def policy(self, value: object, valid: CpuSet) -> Policy:
        rules = self.mapping({} if value is None else value, "policy", Policy._fields)
        for key, text in rules.items():
            try:
                rule = parse_rule(key, "off" if text is False else text)
            except ValueError as err:
                raise self.wrong("policy", str(err)) from err
            if isinstance(rule, CpuSet):
                self.cpuset(text, f"policy.{key}", valid)
        return Policy.of(rules)

    def sandbox(self, value: object, at: str, valid: CpuSet) -> ScenarioSandbox:
        keys = self.mapping(value, at, ("id", "vcpus", "iothreads", "vhost", "containers"))
        sandbox = SandboxId(self.id(keys.get("id"), f"{at}.id"))
        containers: dict[ContainerId, Container] = {}
        for place_at, entry in self.items(keys.get("containers"), f"{at}.containers"):
            container = self.container(entry, place_at, valid, sandbox)
            if container.id in containers:
                raise self.wrong(f"{place_at}.id", f"{container.id!r} is there twice")
            containers[container.id] = container
        return ScenarioSandbox(PlacementRequest(sandbox, self.vcpus(keys.get("vcpus", 0), f"{at}.vcpus"),
                                       tuple(containers.values())),
                               self.count(keys.get("iothreads", 0), f"{at}.iothreads"),
                               self.count(keys.get("vhost", 0), f"{at}.vhost"))

    def vcpus(self, value: object, at: str) -> tuple[Vcpu, ...]:
        if not isinstance(value, list):
            return tuple(Vcpu(VcpuId(number)) for number in range(self.count(value, at)))
        found: dict[VcpuId, Vcpu] = {}
        for place_at, entry in self.items(value, at):
            keys = self.mapping(entry, place_at, ("id", "core", "node"))
            number = VcpuId(self.count(keys.get("id"), f"{place_at}.id"))
            if number in found:
                raise self.wrong(f"{place_at}.id", f"vCPU {number} is there twice")
            core, node = (None if keys.get(key) is None else self.count(keys[key], f"{place_at}.{key}")
                          for key in ("core", "node"))
            found[number] = Vcpu(number, core, node)
        return tuple(found.values())

    def container(self, value: object, at: str, valid: CpuSet, sandbox: SandboxId) -> Container:
        keys = self.mapping(value, at, ("id", "cpuset", "exclusive", "state"))
        name = self.id(keys.get("id"), f"{at}.id")
        cpus = None if keys.get("cpuset") is None else self.cpuset(keys["cpuset"], f"{at}.cpuset", valid)
        exclusive = keys.get("exclusive")
        if exclusive is not None and not isinstance(exclusive, bool):
            raise self.wrong(f"{at}.exclusive", f"{exclusive!r} is neither true nor false")
        if exclusive and not cpus:
            raise self.wrong(f"{at}.exclusive", "is true, but the container has no cpuset")
        state = keys.get("state", "running")
        if state not in list(ContainerState):
            raise self.wrong(f"{at}.state", f"{state!r} is none of {', '.join(ContainerState)}")
        return Container(ContainerId(name), name, cpus or None, exclusive, ContainerState(str(state)),
                         pause=name == sandbox)
