"""Reads scenarios and earlier plans: from the values of YAML or JSON to the model.

A value that cannot be used is refused with the file, its place there and the value."""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, Vcpu, VcpuId
from vmpin.domain.policy import Policy, parse_rule
from vmpin.domain.sandbox_placement import Previous
from vmpin.domain.terminal import number_of
from vmpin.domain.topology import Topology
from vmpin.feature import features
from vmpin.features.common.scenario_values import MAX_COUNT, ScenarioValues
from vmpin.features.scenarios.node_scenario import Scenario, ScenarioSandbox
from vmpin.placement.ownership import Node
from vmpin.placement.rules import PlacementRequest

_KEYS = ("online", "cores", "caches", "sockets", "dies", "nodes", "distances", "kinds", "isolated", "devices")
_KINDS = ("performance", "efficient")


def read_topology(values: ScenarioValues, given: object) -> Topology:
    """`topology`. A NUMA node whose CPU list is empty is one of memory alone. :raises ConfigError: with the place."""
    keys = values.mapping(given, "topology", _KEYS)
    if keys.get("online") is None:
        raise values.wrong("topology.online", "is missing")
    online = values.cpuset(keys["online"], "topology.online")
    if not online:
        raise values.wrong("topology.online", "names no CPU")
    cores, caches, sockets, dies = (
        [values.cpuset(item, at) for at, item in values.items(keys.get(key), f"topology.{key}")]
        for key in ("cores", "caches", "sockets", "dies"))
    nodes = _nodes(values, keys.get("nodes"))
    kinds = {str(kind): values.cpuset(cpus, f"topology.kinds.{kind}")
             for kind, cpus in _mapping(values, keys.get("kinds"), "topology.kinds", _KINDS).items()}
    isolated = EMPTY if keys.get("isolated") is None else values.cpuset(keys["isolated"], "topology.isolated")
    try:
        return Topology.build(
            online, cores, caches, nodes, isolated, distances=_distances(values, keys.get("distances"), nodes),
            sockets=sockets, dies=dies, kinds=kinds, memory_nodes=CpuSet(nodes),
            devices=_devices(values, keys.get("devices"), nodes))
    except ValueError as err:
        raise values.wrong("topology", str(err)) from err


def _mapping(values: ScenarioValues, given: object, at: str, keys: tuple[str, ...] | None) -> dict[str, object]:
    return values.mapping({} if given is None else given, at, keys)


def _nodes(values: ScenarioValues, given: object) -> dict[int, CpuSet]:
    nodes: dict[int, CpuSet] = {}
    for key, cpus in _mapping(values, given, "topology.nodes", None).items():
        at = f"topology.nodes.{key}"
        text = parse_whole(key, MAX_COUNT) if isinstance(key, str) else None
        number = values.count(key if text is None else text, at)
        if number in nodes:
            raise values.wrong(at, "is there twice")
        nodes[number] = values.cpuset(cpus, at)
    return nodes


def _distances(values: ScenarioValues, given: object, nodes: Mapping[int, CpuSet]) -> dict[int, dict[int, int]]:
    """A matrix: a row for each node, with a number for each node, both in ascending order of the nodes."""
    if given is None:
        return {}
    numbers, at = sorted(nodes), "topology.distances"
    rows = [(place, values.items(row, place)) for place, row in values.items(given, at)]
    for place, entries in [(at, len(rows)), *((place, len(row)) for place, row in rows)]:
        if entries != len(numbers):
            raise values.wrong(place, f"has {number_of(entries, 'entry')} for {number_of(len(numbers), 'node')}")
    return {node: {other: values.count(number, place) for other, (place, number) in zip(numbers, row, strict=True)}
            for node, (_, row) in zip(numbers, rows, strict=True)}


def _devices(values: ScenarioValues, given: object, nodes: Mapping[int, CpuSet]) -> dict[str, int]:
    devices: dict[str, int] = {}
    for name, number in _mapping(values, given, "topology.devices", None).items():
        at = f"topology.devices.{name}"
        node = values.count(number, at)
        if not isinstance(name, str):
            raise values.wrong(at, "is no name of a device")
        if node not in nodes:
            raise values.wrong(at, f"node {node} is not among the nodes")
        devices[name] = node
    return devices


def read_scenario(source: str, document: object, machine: Topology | None) -> Scenario:
    """Read a scenario from a YAML document.
    :param source: the file's name, for errors. :param machine: stands in for an absent topology.
    :raises ConfigError: in one line."""
    return _Reader(source).scenario(document, machine)


def read_previous(source: str, data: object) -> dict[SandboxId, Previous]:
    """Read the data of an earlier `vmpin plan -o json`. :raises ConfigError: in one line after `source`."""
    reader = _Reader(source)
    placements = {}
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
        placements[SandboxId(reader.id(sandbox.get("id"), f"{at}.id"))] = Previous(
            reader.cpuset(sandbox.get("mask", ""), f"{at}.mask"), vcpus)
    return placements


class _Reader(ScenarioValues):
    """Turns YAML values into the model."""

    def scenario(self, document: object, machine: Topology | None) -> Scenario:
        parts = {feature.name: feature.scenario for feature in features() if feature.scenario is not None}
        top = self.mapping({} if document is None else document, "the document", (
            "topology", "housekeeping", "shared_pool", "policy", "sandboxes",
            *(key for part in parts.values() for key in part.names)))
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
        of_features = {name: part.read(self, top, topology) for name, part in parts.items()
                       if not top.keys().isdisjoint(part.names)}
        return Scenario(Node(topology, pool, housekeeping), self.policy(top.get("policy"), valid),
                        tuple(sandboxes.values()), of_features)

    def policy(self, value: object, valid: CpuSet) -> Policy:
        rules = self.mapping({} if value is None else value, "policy", Policy._fields)
        for key, text in rules.items():
            try:
                rule = parse_rule(key, text)
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
        vcpus: dict[VcpuId, Vcpu] = {}
        for place_at, entry in self.items(value, at):
            keys = self.mapping(entry, place_at, ("id", "core", "node", "memory"))
            number = VcpuId(self.count(keys.get("id"), f"{place_at}.id"))
            if number in vcpus:
                raise self.wrong(f"{place_at}.id", f"vCPU {number} is there twice")
            core, node = (None if keys.get(key) is None else self.count(keys[key], f"{place_at}.{key}")
                          for key in ("core", "node"))
            memory = frozenset(self.count(host, place) for place, host in self.items(
                keys.get("memory"), f"{place_at}.memory"))
            vcpus[number] = Vcpu(number, core, node, memory)
        return tuple(vcpus.values())

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
