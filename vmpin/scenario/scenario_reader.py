"""Reads scenarios and earlier plans: from YAML's or JSON's values to the model.

A value that cannot be used is refused with the file, the place in it and the value."""

from __future__ import annotations

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, Vcpu, VcpuId
from vmpin.domain.topology import Topology
from vmpin.feature import features
from vmpin.placement.ownership import Node
from vmpin.placement.policy import Policy, parse_rule
from vmpin.placement.rules import PlacementRequest
from vmpin.placement.vcpus import Previous
from vmpin.scenario.node_scenario import Scenario, ScenarioSandbox
from vmpin.scenario.scenario_topology import read_topology
from vmpin.scenario.scenario_values import ScenarioValues


def read_scenario(source: str, document: object, machine: Topology | None = None) -> Scenario:
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
        vcpus: dict[VcpuId, Vcpu] = {}
        for place_at, entry in self.items(value, at):
            keys = self.mapping(entry, place_at, ("id", "core", "node"))
            number = VcpuId(self.count(keys.get("id"), f"{place_at}.id"))
            if number in vcpus:
                raise self.wrong(f"{place_at}.id", f"vCPU {number} is there twice")
            core, node = (None if keys.get(key) is None else self.count(keys[key], f"{place_at}.{key}")
                          for key in ("core", "node"))
            vcpus[number] = Vcpu(number, core, node)
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
