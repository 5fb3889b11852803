"""What is no scenario is refused in one line, with the place and the value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from scenario_example import EXAMPLE

from vmpin.errors import ConfigError
from vmpin.features.scenarios import scenario_file


def refusal(tmp_path: Path, text: str | bytes) -> str:
    """What is said of a scenario, after the name of the file."""
    path = tmp_path / "node.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        scenario_file.load(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:")
    assert said.isprintable()
    assert len(said) < 1000
    return said.removeprefix(f"{path}:").strip()


def changed(*path: str | int, to: object, drop: bool = False) -> str:
    """EXAMPLE with one value changed, as YAML."""
    document: Any = yaml.safe_load(EXAMPLE)
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return yaml.safe_dump(document)


BOX = ("sandboxes", 0, "containers", 0)


@pytest.mark.parametrize(("path", "value", "place", "why"), [
    # an unknown key, at every level
    (("sandbox",), [], "the document", "unknown key 'sandbox'"),
    (("topology", "socket"), 1, "topology", "unknown key 'socket'"),
    (("policy", "vcpu"), "auto", "policy", "unknown key 'vcpu'"),
    (("sandboxes", 0, "vpcus"), 3, "sandboxes[0]", "unknown key 'vpcus'"),
    (("sandboxes", 0, "vcpus"), [{"id": 0, "socket": 1}], "sandboxes[0].vcpus[0]", "unknown key 'socket'"),
    ((*BOX, "cpus"), "2", "sandboxes[0].containers[0]", "unknown key 'cpus'"),
    ((1,), "x", "the document", "unknown key 1"),
    # a CPU that is not in the topology
    (("housekeeping",), "16", "housekeeping", "CPUs 16 of '16' are not in the topology (0-15)"),
    (("shared_pool",), "0,20-21", "shared_pool", "CPUs 20-21 of '0,20-21' are not in the topology (0-15)"),
    ((*BOX, "cpuset"), "2-99", "sandboxes[0].containers[0].cpuset", "CPUs 16-99 of '2-99' are not in the topology"),
    (("policy", "iothreads"), "3,17", "policy.iothreads", "CPUs 17 of '3,17' are not in the topology"),
    # no CPU list
    ((*BOX, "cpuset"), "3-1", "sandboxes[0].containers[0].cpuset", "'3-1'"),
    ((*BOX, "cpuset"), "99999", "sandboxes[0].containers[0].cpuset", "'99999'"),
    ((*BOX, "cpuset"), "two", "sandboxes[0].containers[0].cpuset", "'two'"),
    ((*BOX, "cpuset"), -1, "sandboxes[0].containers[0].cpuset", "'-1'"),
    ((*BOX, "cpuset"), True, "sandboxes[0].containers[0].cpuset", "True is no CPU list"),
    ((*BOX, "cpuset"), 2.5, "sandboxes[0].containers[0].cpuset", "2.5 is no CPU list"),
    ((*BOX, "cpuset"), [2, 3], "sandboxes[0].containers[0].cpuset", "[2, 3] is no CPU list"),
    (("housekeeping",), {"a": 1}, "housekeeping", "{'a': 1} is no CPU list"),
    # the topology itself
    (("topology", "online"), None, "topology.online", "is missing"),
    (("topology", "online"), "", "topology.online", "names no CPU"),
    (("topology", "online"), "0-", "topology.online", "'0-'"),
    (("topology",), [], "topology", "[] is no mapping"),
    (("topology", "cores"), "0,8", "topology.cores", "'0,8' is no list"),
    (("topology", "cores"), ["0,8", "8,9"], "topology", "CPU 8 is in two cores"),
    (("topology", "cores"), ["0,8", "x"], "topology.cores[1]", "'x'"),
    (("topology", "nodes"), ["0-7"], "topology.nodes", "['0-7'] is no mapping"),
    (("topology", "nodes"), {0: "0-7", 1: "7"}, "topology", "CPU 7 is in two nodes"),
    (("topology", "nodes"), {-1: "0-7"}, "topology.nodes.-1", "-1 is no number"),
    (("topology", "nodes"), {"x": "0-7"}, "topology.nodes.x", "'x' is no number"),
    (("topology", "nodes"), {True: "0-7"}, "topology.nodes.True", "True is no number"),
    (("topology", "nodes"), {0: "0-3", "0": "4-7"}, "topology.nodes.0", "is there twice"),
    (("topology", "nodes"), {"9" * 5000: "0"}, "topology.nodes.999", "is no number"),
    (("topology", "nodes"), {"a\nb": "0"}, r"'topology.nodes.a\nb'", r"'a\nb' is no number"),
    (("topology", "caches"), "0-7", "topology.caches", "'0-7' is no list"),
    (("topology", "caches"), ["0-7", "7-9"], "topology", "CPU 7 is in two caches"),
    (("topology", "sockets"), [None], "topology.sockets[0]", "None is no CPU list"),
    (("topology", "sockets"), ["0-7", "0-8"], "topology", "CPU 0 is in two sockets"),
    (("topology", "dies"), ["0-3", "3-7"], "topology", "CPU 3 is in two dies"),
    (("topology", "isolated"), ["1"], "topology.isolated", "['1'] is no CPU list"),
    (("topology", "kinds"), {"fast": "0"}, "topology.kinds", "unknown key 'fast' (known: performance, efficient)"),
    (("topology", "kinds"), {"efficient": "x"}, "topology.kinds.efficient", "'x'"),
    (("topology", "kinds"), {"efficient": "0-3", "performance": "3"}, "topology", "CPU 3 is in two kinds"),
    (("topology", "distances"), {0: 10}, "topology.distances", "{0: 10} is no list"),
    (("topology", "distances"), [], "topology.distances", "has 0 entries for 2 nodes"),
    (("topology", "distances"), [10, 20], "topology.distances[0]", "10 is no list"),
    (("topology", "distances"), [[10, 20], [20]], "topology.distances[1]", "has 1 entry for 2 nodes"),
    (("topology", "distances"), [[10, 20], [20, "x"]], "topology.distances[1][1]", "'x' is no number"),
    (("topology", "devices"), ["eth0"], "topology.devices", "['eth0'] is no mapping"),
    (("topology", "devices"), {"eth0": 2}, "topology.devices.eth0", "node 2 is not among the nodes"),
    (("topology", "devices"), {"eth0": "0"}, "topology.devices.eth0", "'0' is no number"),
    (("topology", "devices"), {0: 0}, "topology.devices.0", "is no name of a device"),
    # ids
    (("sandboxes", 0, "id"), None, "sandboxes[0].id", "None is no id"),
    (("sandboxes", 0, "id"), "", "sandboxes[0].id", "'' is no id"),
    (("sandboxes", 0, "id"), "../etc", "sandboxes[0].id", "'../etc' is no id"),
    (("sandboxes", 0, "id"), "a\nb", "sandboxes[0].id", r"'a\nb' is no id"),
    (("sandboxes", 0, "id"), True, "sandboxes[0].id", "True is no id"),
    (("sandboxes", 0, "id"), 1.5, "sandboxes[0].id", "1.5 is no id"),
    (("sandboxes",), [{"id": "a"}, {"id": "a"}], "sandboxes[1].id", "'a' is there twice"),
    (("sandboxes",), [{"id": 1}, {"id": "1"}], "sandboxes[1].id", "'1' is there twice"),
    (("sandboxes", 0, "containers"), [{"id": "c"}, {"id": "c"}], "sandboxes[0].containers[1].id",
     "'c' is there twice"),
    ((*BOX, "id"), "a/b", "sandboxes[0].containers[0].id", "'a/b' is no id"),
    (("sandboxes", 0, "vcpus"), [{"id": 3}, {"id": 3}], "sandboxes[0].vcpus[1].id", "vCPU 3 is there twice"),
    # counts
    (("sandboxes", 0, "vcpus"), -1, "sandboxes[0].vcpus", "-1 is no number between 0 and 4096"),
    (("sandboxes", 0, "vcpus"), 4097, "sandboxes[0].vcpus", "4097 is no number"),
    (("sandboxes", 0, "vcpus"), 10 ** 18, "sandboxes[0].vcpus", "1000000000000000000 is no number"),
    (("sandboxes", 0, "vcpus"), True, "sandboxes[0].vcpus", "True is no number"),
    (("sandboxes", 0, "vcpus"), "3", "sandboxes[0].vcpus", "'3' is no number"),
    (("sandboxes", 0, "vcpus"), 2.0, "sandboxes[0].vcpus", "2.0 is no number"),
    (("sandboxes", 0, "vcpus"), None, "sandboxes[0].vcpus", "None is no number"),
    (("sandboxes", 0, "vcpus"), [3], "sandboxes[0].vcpus[0]", "3 is no mapping"),
    (("sandboxes", 0, "vcpus"), [{"core": 1}], "sandboxes[0].vcpus[0].id", "None is no number"),
    (("sandboxes", 0, "vcpus"), [{"id": -2}], "sandboxes[0].vcpus[0].id", "-2 is no number"),
    (("sandboxes", 0, "vcpus"), [{"id": 0, "core": -2}], "sandboxes[0].vcpus[0].core", "-2 is no number"),
    (("sandboxes", 0, "vcpus"), [{"id": 0, "node": False}], "sandboxes[0].vcpus[0].node", "False is no number"),
    (("sandboxes", 0, "iothreads"), -1, "sandboxes[0].iothreads", "-1 is no number"),
    (("sandboxes", 0, "iothreads"), False, "sandboxes[0].iothreads", "False is no number"),
    (("sandboxes", 0, "vhost"), 10 ** 9, "sandboxes[0].vhost", "1000000000 is no number"),
    (("sandboxes", 0, "nic_node"), "eth0", "sandboxes[0].nic_node", "'eth0' is no number"),
    # containers
    ((*BOX, "exclusive"), "yes", "sandboxes[0].containers[0].exclusive", "invalid CPU list 'yes'"),
    ((*BOX, "exclusive"), "0-15", "sandboxes[0].containers[0].exclusive", "are not in its cpuset"),
    ((*BOX, "exclusive"), 1, "sandboxes[0].containers[0].exclusive", "1 is neither true nor false"),
    ((*BOX, "cpuset"), "", "sandboxes[0].containers[0].exclusive", "is true, but the container has no cpuset"),
    ((*BOX, "state"), "paused", "sandboxes[0].containers[0].state", "'paused' is none of created, running, stopped"),
    ((*BOX, "state"), 1, "sandboxes[0].containers[0].state", "1 is none of"),
    # the policy
    (("policy", "vcpus"), "pinned", "policy", "vcpus: 'pinned' is none of auto, union, off"),
    (("policy", "vcpus"), "0-3", "policy", "vcpus: '0-3' is none of auto, union, off"),
    (("policy", "spare_vcpus"), "off", "policy", "spare_vcpus: 'off' is none of sandbox, shared, housekeeping"),
    (("policy", "iothreads"), "", "policy",
     "iothreads: '' is none of apart, sandbox, shared, housekeeping, off or a CPU list"),
    (("policy", "iothreads"), "near", "policy",
     "iothreads: 'near' is none of apart, sandbox, shared, housekeeping, off or a CPU list"),
    (("policy", "vhost"), "far", "policy",
     "vhost: 'far' is none of apart, sandbox, shared, housekeeping, near, off or a CPU list"),
    (("policy", "iothreads"), True, "policy", "iothreads: True is none of"),
    (("policy", "emulator"), ["sandbox"], "policy", "emulator: ['sandbox'] is none of"),
    (("policy",), "auto", "policy", "'auto' is no mapping"),
    # shapes
    (("sandboxes",), {"id": "a"}, "sandboxes", "{'id': 'a'} is no list"),
    (("sandboxes",), ["pod-a"], "sandboxes[0]", "'pod-a' is no mapping"),
    (("sandboxes", 0, "containers"), "main", "sandboxes[0].containers", "'main' is no list"),
    (("sandboxes", 0, "containers"), [[]], "sandboxes[0].containers[0]", "[] is no mapping"),
])
def test_what_makes_no_sense_is_refused_in_one_line_with_place_and_value(
        tmp_path: Path, path: tuple[str | int, ...], value: object, place: str, why: str) -> None:
    said = refusal(tmp_path, changed(*path, to=value))
    assert said.startswith(place)
    assert why in said


def test_without_a_topology_there_is_nothing_to_place_on(tmp_path: Path) -> None:
    assert refusal(tmp_path, changed("topology", to=0, drop=True)) == "topology: is missing"


BOMB = "\n".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9) if at else 'x'}]" for at in range(12))


@pytest.mark.parametrize(("text", "why"), [
    ("[1, 2]", "the document: [1, 2] is no mapping"),
    ("pod-a", "the document: 'pod-a' is no mapping"),
    ("sandboxes: [", "1: expected the node content"),
    ("a: b: c", "1: "),
    ("%&", "1: "),
    ("\t- x", "1: "),
    ("sandboxes: *nowhere", "1: found undefined alias"),
    ("--- {}\n--- {}", "2: but found another document"),
    ("x: !!python/object/apply:os.system ['true']", "1: could not determine a constructor"),
    ("topology: {online: 0}\nsandboxes: []\nsandboxes: []", "3: key 'sandboxes' cannot be used or is there twice"),
    ("sandboxes: [{id: a, id: b}]", "1: key 'id' cannot be used or is there twice"),
    ("? [a]\n: b", "1: key ['a'] cannot be used or is there twice"),
    ("topology: !!bool maybe", "not YAML: 'maybe'"),
    ("topology: !!int ''", "not YAML: "),
    ("topology: !!float ''", "not YAML: "),
    ("topology: !!timestamp x", "not YAML: "),
    ("topology: 2026-02-31", "not YAML: day "),
    ("x: " + "[" * 1100, "not YAML: "),
    ("x: " + "[" * 60 + "]" * 60, "is nested more than 32 deep"),
    ("&a [*a]", "is nested more than 32 deep"),
    (BOMB, "holds more than 1048576 values"),
    ("topology: {online: 0x" + "f" * 9000 + "}", "'online' holds a number of 36000 bits"),
    ("topology: {online: " + "9" * 9000 + "}", "not YAML: Exceeds the limit"),
    ("topology: " + repr(["x" * 500] * 100), "topology: ['xxx"),
    ("topology: {online: 0}\nsandboxes: " + "x" * 999, "sandboxes: 'xxx"),
    (b"sandboxes: \xff", "not UTF-8 text (byte 11)"),
    (b"sandboxes: \x00", "not YAML: "),
    (b"#" * ((4 << 20) + 1), "larger than 4 MiB"),
])
def test_what_is_no_scenario_at_all_is_refused_in_one_line(tmp_path: Path, text: str | bytes, why: str) -> None:
    assert refusal(tmp_path, text).startswith(why)


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        for read in (scenario_file.load, scenario_file.load_previous):
            with pytest.raises(ConfigError) as caught:
                read(path)
            assert str(caught.value) == f"{path}: cannot be read: {why}"


@pytest.mark.parametrize(("text", "why"), [
    ("", "not JSON: "),
    ("{", "not JSON: "),
    ("[" * 100_000, "not JSON: "),
    ("[" * 60 + "]" * 60, "is nested more than 32 deep"),
    ("\ud800", "not JSON: "),
    ("9" * 5000, "not JSON: "),
    ("[]", "the document: [] is no mapping"),
    ('{"sandboxes": {}}', "sandboxes: {} is no list"),
    ('{"sandboxes": [1]}', "sandboxes[0]: 1 is no mapping"),
    ('{"sandboxes": [{}]}', "sandboxes[0].id: None is no id"),
    ('{"sandboxes": [{"id": "a", "mask": "x"}]}', "sandboxes[0].mask: invalid CPU list 'x'"),
    ('{"sandboxes": [{"id": "a", "vcpus": [{"id": -1, "cpus": "2"}]}]}', "sandboxes[0].vcpus[0].id: -1 is no number"),
    ('{"sandboxes": [{"id": "a", "vcpus": [{"id": 1, "cpus": [2]}]}]}',
     "sandboxes[0].vcpus[0].cpus: [2] is no CPU list"),
    ('{"sandboxes": [{"id": "a", "vcpus": [{"id": 1, "cpus": "2", "container": "/"}]}]}',
     "sandboxes[0].vcpus[0].container: '/' is no id"),
])
def test_an_earlier_outcome_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "previous.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError) as caught:
        scenario_file.load_previous(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: {why}")
    assert said.isprintable()
