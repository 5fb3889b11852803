"""The topology of a scenario: a node's CPUs, caches, sockets, NUMA nodes and devices, as written in YAML."""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.terminal import number_of
from vmpin.domain.topology import Topology
from vmpin.scenario.scenario_values import MAX_COUNT, ScenarioValues

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
