"""Scenarios: a node described in YAML, placed by the rules that the watcher uses (`vmpin plan --scenario`).

Reads the outer format into the inner model, and writes placements as JSON data. Nothing on the machine is touched; a
value that cannot be used is refused with the file, the place in it and the value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vmpin.bounded import load_json
from vmpin.config import yaml_file
from vmpin.config.scenario_allocation import AllocationScenario
from vmpin.config.scenario_events import read_events, read_settings
from vmpin.config.scenario_pods import read_pods
from vmpin.config.scenario_topology import read_topology
from vmpin.config.scenario_values import ScenarioValues
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole, Vcpu, VcpuId
from vmpin.domain.topology import Topology
from vmpin.errors import ConfigError
from vmpin.placement.ownership import Collision, Node, Ownership, claims_of, find_collisions, ownership
from vmpin.placement.policy import Policy, parse_rule
from vmpin.placement.rules import Placement, PlacementRequest, place
from vmpin.placement.vcpus import Previous

MAX_PLAN = 64 << 20  #: Bytes: a plan of a full node has some 2 MB.


class ScenarioSandbox(NamedTuple):
    request: PlacementRequest
    iothreads: int
    vhost: int


class Scenario(NamedTuple):
    node: Node
    policy: Policy
    sandboxes: tuple[ScenarioSandbox, ...]
    allocation: AllocationScenario | None = None  #: None: CPUs are not given out there.


class ScenarioOutcome(NamedTuple):
    """The placements of a scenario, with what they collide in."""

    placements: tuple[Placement, ...]
    sandboxes: tuple[ScenarioSandbox, ...]
    collisions: tuple[Collision, ...]
    own: Ownership
    moves: int  #: How many vCPUs have other CPUs than in the previous plan.

    def data(self) -> dict[str, Any]:
        """Return the result as `vmpin plan --scenario -o json` prints it."""
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
    return ScenarioOutcome(placements, scenario.sandboxes, tuple(find_collisions(own)), own, moves)


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


def load(path: Path, machine: Topology | None = None, needed: bool = False) -> Scenario:
    """Read a scenario.
    :param machine: stands in for an absent topology. :param needed: whether an empty file is refused, too.
    :raises ConfigError: in one line."""
    document = yaml_file.load(path, pipe=True)
    if needed and not document:
        raise ConfigError(f"{path}: is empty: a scenario has `sandboxes`, `pods` or `events`")
    return _Reader(path).scenario(document, machine)


def load_previous(path: Path) -> dict[SandboxId, Previous]:
    """Read an earlier output of `vmpin plan -o json`. :raises ConfigError: in one line."""
    try:
        data = load_json(yaml_file.read(path, MAX_PLAN, pipe=True))
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


class _Reader(ScenarioValues):
    """Turns YAML values into the model."""

    def scenario(self, document: object, machine: Topology | None) -> Scenario:
        top = self.mapping({} if document is None else document, "the document",
                           ("topology", "housekeeping", "shared_pool", "policy", "sandboxes", "allocate", "pods",
                            "events"))
        topology = machine if top.get("topology") is None else read_topology(self, top["topology"])
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
                        tuple(sandboxes.values()), self.allocation(top, topology))

    def allocation(self, top: Mapping[str, object], topology: Topology) -> AllocationScenario | None:
        if not {"allocate", "pods", "events"} & set(top):
            return None
        for key in ("sandboxes", "shared_pool"):
            if "pods" in top and top.get(key) is not None:
                raise self.wrong(key, "cannot stand beside `pods`: there another program has given the CPUs out, here "
                                 "`allocate` does")
        pods = read_pods(self, top.get("pods"), topology.all_cpus)
        return AllocationScenario(topology, read_settings(self, top.get("allocate"), topology.all_cpus),
                                  (*pods, *read_events(self, top.get("events"), topology.all_cpus, pods)))

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
        keys = self.mapping(value, at, ("id", "vcpus", "iothreads", "vhost", "nic_node", "containers"))
        sandbox = SandboxId(self.id(keys.get("id"), f"{at}.id"))
        containers: dict[ContainerId, Container] = {}
        for place_at, entry in self.items(keys.get("containers"), f"{at}.containers"):
            container = self.container(entry, place_at, valid, sandbox)
            if container.id in containers:
                raise self.wrong(f"{place_at}.id", f"{container.id!r} is there twice")
            containers[container.id] = container
        nic = None if keys.get("nic_node") is None else self.count(keys["nic_node"], f"{at}.nic_node")
        return ScenarioSandbox(PlacementRequest(sandbox, self.vcpus(keys.get("vcpus", 0), f"{at}.vcpus"),
                                       tuple(containers.values()), nic_node=nic),
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
        exclusive, spare = keys.get("exclusive"), EMPTY
        if isinstance(exclusive, str):
            own = self.cpuset(exclusive, f"{at}.exclusive", cpus or EMPTY, "its cpuset")
            exclusive, spare = bool(own), (cpus or EMPTY) - own
        if exclusive is not None and not isinstance(exclusive, bool):
            raise self.wrong(f"{at}.exclusive", f"{exclusive!r:.80} is neither true nor false, nor a CPU list")
        if exclusive and not cpus:
            raise self.wrong(f"{at}.exclusive", "is true, but the container has no cpuset")
        state = keys.get("state", "running")
        if state not in list(ContainerState):
            raise self.wrong(f"{at}.state", f"{state!r:.80} is none of {', '.join(ContainerState)}")
        return Container(ContainerId(name), name, cpus or None, exclusive, ContainerState(str(state)),
                         pause=name == sandbox, spare=spare if exclusive else EMPTY)
