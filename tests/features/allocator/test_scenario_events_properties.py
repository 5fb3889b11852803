"""`vmpin plan --scenario` with events against a solver of its own, which tries every set of CPUs.

The solver reads the scenario as data and shares nothing with the allocator: what it knows is docs/allocation.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from vmpin.cli.main import main
from vmpin.cpuset import CpuSet

Cpus = frozenset[int]
PARTS = ("nodes", "distance", "away", "caches", "partial_cores", "broken_nodes", "broken_caches", "broken_cores",
         "leftover", "node_left")
FIRST: dict[str, tuple[str, ...]] = {"node": (), "socket": (), "cache": ("caches",), "core": ("partial_cores",)}


def cpus(text: str) -> Cpus:
    return frozenset(CpuSet.parse(text))


def text(cpus_: Cpus) -> str:
    return str(CpuSet(cpus_))


class Machine(NamedTuple):
    online: Cpus
    cores: list[Cpus]
    caches: list[Cpus]
    sockets: list[Cpus]
    nodes: dict[int, Cpus]
    distances: list[list[int]]
    devices: dict[str, int]

    def data(self) -> dict[str, Any]:
        return {"online": text(self.online), "cores": list(map(text, self.cores)),
                "caches": list(map(text, self.caches)), "sockets": list(map(text, self.sockets)),
                "nodes": {node: text(each) for node, each in self.nodes.items()}, "distances": self.distances,
                "devices": self.devices}


class Wish(NamedTuple):
    size: int
    align: str
    required: bool
    smt: str
    near: str
    policy: str

    @property
    def whole(self) -> bool:
        return self.smt == "require" or (self.align == "core" and self.required)


def cost(machine: Machine, free: Cpus, wish: Wish, chosen: Cpus) -> dict[str, int]:
    units = machine.sockets if wish.align == "socket" else list(machine.nodes.values())
    touched = [unit for unit in units if unit & chosen]
    caches = [cache for cache in machine.caches if cache & chosen]
    cores = [core for core in machine.cores if core & chosen]
    near = machine.nodes[machine.devices[wish.near]] if wish.near else machine.online

    def between(one: Cpus, other: Cpus) -> int:
        return min(machine.distances[a][b] for a, b_cpus in machine.nodes.items() if b_cpus & one
                   for b, c_cpus in machine.nodes.items() if c_cpus & other)

    return {
        "nodes": len(touched), "distance": sum(between(*pair) for pair in combinations(touched, 2)),
        "away": len(chosen - near), "caches": len(caches),
        "partial_cores": 0 if wish.whole else sum(
            len(core & chosen) - 1 if wish.smt == "spread" else not core <= chosen for core in cores),
        "broken_nodes": sum(unit <= free and not unit <= chosen for unit in touched),
        "broken_caches": sum(cache <= free and not cache <= chosen for cache in caches),
        "broken_cores": sum(core <= free and not core <= chosen for core in cores),
        "leftover": sum(len(cache & free - chosen) for cache in caches),
        "node_left": sum(len(unit & free - chosen) for unit in touched)}


def solve(machine: Machine, free: Cpus, wish: Wish, spread: bool) -> tuple[Cpus, dict[str, int]] | None:
    """The best of all sets, None where none is allowed."""
    order = (*FIRST[wish.align], *(part for part in PARTS if part not in FIRST[wish.align]))
    units = machine.sockets if wish.align == "socket" else list(machine.nodes.values())
    gap = max(map(len, machine.cores)) if wish.whole else 1
    found = []
    for each in combinations(sorted(free), wish.size):
        chosen = frozenset(each)
        if wish.whole and any(core & chosen and not core <= chosen for core in machine.cores):
            continue
        parts = cost(machine, free, wish, chosen)
        if wish.required and (parts["caches"] if wish.align == "cache" else
                              parts["nodes"] if wish.align in ("node", "socket") else 1) > 1:
            continue
        shares = [len(unit & chosen) for unit in units if unit & chosen]
        uneven = spread and max(shares) - min(shares) > gap
        found.append((uneven, tuple(parts[part] for part in order), each, parts))
    if not found:
        return None
    *_, best, parts = min(found, key=lambda entry: entry[:3])
    return frozenset(best), parts


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """At most ten CPUs: sockets of nodes of caches of cores of threads, evenly, numbered in order or thread by thread,
    some of them offline."""
    threads = draw(st.integers(1, 2))
    shape = draw(st.sampled_from([(1, 1, 1, 4), (1, 2, 1, 2), (2, 1, 1, 2), (1, 2, 2, 1), (1, 1, 2, 2), (2, 2, 1, 1),
                                  (1, 3, 1, 1), (1, 1, 2, 1), (1, 5, 1, 1), (1, 1, 1, 5)]))
    sockets, nodes, caches, cores = shape
    total = sockets * nodes * caches * cores
    apart = draw(st.booleans())
    core_list = [frozenset((core + thread * total if apart else core * threads + thread) for thread in range(threads))
                 for core in range(total)]

    def grouped(size: int) -> list[Cpus]:
        return [frozenset().union(*core_list[at:at + size]) for at in range(0, total, size)]

    everything: Cpus = frozenset().union(*core_list)
    offline = draw(st.frozensets(st.sampled_from(sorted(everything)), max_size=2))
    online = everything - offline or everything

    def alive(groups: list[Cpus]) -> list[Cpus]:
        return [group & online for group in groups if group & online]

    node_groups = alive(grouped(caches * cores))
    count = len(node_groups)
    far = [[10] * count for _ in range(count)]
    for one, other in combinations(range(count), 2):
        far[one][other] = far[other][one] = draw(st.sampled_from([12, 21, 32]))
    return Machine(online, alive(core_list), alive(grouped(cores)), alive(grouped(nodes * caches * cores)),
                   dict(enumerate(node_groups)), far, {"eth0": draw(st.integers(0, count - 1))})


WISHES = st.builds(Wish, st.integers(1, 5), st.sampled_from(sorted(FIRST)), st.sampled_from([False, False, True]),
                   st.sampled_from(["prefer", "prefer", "require", "spread"]), st.sampled_from(["", "", "eth0"]),
                   st.sampled_from(["exclusive", "exclusive", "fixed"]))
#: A container on the pool, one with CPUs of its own, or the end of the nth one that is there.
STORIES = st.lists(st.one_of(st.none(), WISHES, WISHES, st.integers(0, 3)), min_size=1, max_size=6)


def run(scenario: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    out = io.StringIO()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file, contextlib.redirect_stdout(out):
        json.dump(scenario, file)
        file.flush()
        code = main(["plan", "--scenario", str(Path(file.name)), "-o", "json"])
    events: list[dict[str, Any]] = json.loads(out.getvalue())["events"]
    return code, events


@settings(max_examples=250, deadline=None, derandomize=True)
@given(machines(), STORIES, st.booleans(), st.booleans(), st.booleans())
def test_every_decision_is_the_best_of_all_sets(machine: Machine, story: list[Any], reserve: bool, strict: bool,
                                                spread: bool) -> None:
    reserved = frozenset([min(machine.online)]) if reserve else frozenset()
    held: dict[str, Cpus] = {}
    out_of_pool: dict[str, Cpus] = {}
    events: list[dict[str, Any]] = []
    wanted: list[tuple[Cpus, Cpus, dict[str, int] | None] | None] = []

    def pool() -> Cpus:
        return machine.online.difference(*out_of_pool.values()) - (reserved if strict else frozenset())

    for number, step in enumerate(story):
        pod = {"pod": f"a/p{number}", "container": "c"}
        if isinstance(step, int):
            if not held:
                continue
            gone = sorted(held)[step % len(held)]
            del held[gone]
            out_of_pool.pop(gone, None)
            events.append({"remove": {"pod": gone, "container": "c"}})
            wanted.append((frozenset(), pool(), None))
        elif step is None:
            if not pool():
                continue
            events.append({"create": {**pod, "cpus": 0.5}})
            wanted.append((pool(), pool(), None))
        else:
            wish = {"cpus": step.size, "policy": step.policy, "smt": step.smt,
                    "align": step.align + "!" * step.required} | ({"near": step.near} if step.near else {})
            events.append({"create": {**pod, **wish}})
            free = machine.online.difference(*held.values()) - reserved
            found = solve(machine, free, step, spread)
            if found is not None and step.policy == "exclusive" and pool() <= found[0]:
                found = None
            if found is not None:
                held[f"a/p{number}"] = found[0]
                out_of_pool |= {f"a/p{number}": found[0]} if step.policy == "exclusive" else {}
            wanted.append(None if found is None else (found[0], pool(), found[1]))
    code, outcomes = run({"topology": machine.data(), "events": events,
                          "allocate": {"reserved": text(reserved), "strict_reserved": strict,
                                       "spread": "nodes" if spread else "off"}})
    assert len(outcomes) == len(events)
    for outcome, want in zip(outcomes, wanted, strict=True):
        if want is None:
            assert outcome["refused"]
            assert "cost" not in outcome
            continue
        chosen, left, parts = want
        assert "refused" not in outcome
        assert (cpus(outcome["cpus"]), cpus(outcome["pool"]), outcome.get("cost")) == (chosen, left, parts)
    assert code == int(any(want is None for want in wanted))


CREATIONS = st.fixed_dictionaries({
    "pod": st.sampled_from(["a/p", "a/q", "kube-system/r", "b/s"]), "container": st.sampled_from(["c", "d"]),
    "cpus": st.sampled_from([0, 0.5, 1, 1, 2, 2, 3, 4, "1500m"])}, optional={
    "limit": st.sampled_from([0, 1, 2]), "cpuset": st.just("?"),
    "policy": st.sampled_from(["none", "exclusive", "exclusive", "fixed", "numa", "infra", "group:g", "group:h", "x"]),
    "align": st.sampled_from(["node", "cache!", "core!", "socket!", "socket", "die"]),
    "smt": st.sampled_from(["prefer", "require", "spread", ""]),
    "kind": st.sampled_from(["any", "performance", "efficient", "isolated"]),
    "near": st.sampled_from(["eth0", "devices", "nodes:0", "0000:00:00.0", "../x"]),
    "spare": st.sampled_from(["match", "own", 0, 1, 3, "-1"]), "vcpus": st.integers(0, 3),
    "overhead": st.integers(0, 2), "annotations": st.dictionaries(
        st.sampled_from(["topology.crane.io/cpu-policy", "topology.crane.io/topology-result",
                         "balloon.balloons.resource-policy.nri.io", "cpu-policy.vmpin.io/pod"]),
        st.sampled_from(["exclusive", "numa", "immovable", "[]", "[{}]", "g", "\n", "é"]), max_size=2)})
CHANGES = st.fixed_dictionaries({
    "pod": st.sampled_from(["a/p", "a/q", "b/s"]), "container": st.sampled_from(["c", "d"]),
    "policy": st.sampled_from(["none", "exclusive", "fixed", "group:g", "x"])}, optional={
        "align": st.sampled_from(["cache!", "socket", "die"]), "smt": st.sampled_from(["require", "spread"])})
REMOVALS = st.fixed_dictionaries({"pod": st.sampled_from(["a/p", "a/q", "kube-system/r", "b/s"]),
                                  "container": st.sampled_from(["c", "d"])})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(machines(), st.lists(st.one_of(CREATIONS, CREATIONS, CHANGES, REMOVALS), max_size=12), st.data())
def test_whatever_is_asked_for_no_cpu_is_two_containers(machine: Machine, story: list[dict[str, Any]],
                                                         data: st.DataObject) -> None:
    some = st.frozensets(st.sampled_from(sorted(machine.online)), max_size=2)
    isolated, reserved, fast = data.draw(some), data.draw(some), data.draw(some)
    known: set[tuple[str, str]] = set()
    events = []
    for step in story:
        name = (step["pod"], step["container"])
        if "cpus" in step:
            known.add(name)
            events.append({"create": step | ({"vm": True} if step["pod"] == "b/s" else {}) | (
                {"cpuset": str(min(machine.online))} if "cpuset" in step else {})})
        elif name in known:
            events.append({"set" if "policy" in step else "remove": step})
    _, outcomes = run({
        "topology": machine.data() | {"isolated": text(isolated), "kinds": {
            "performance": text(fast), "efficient": text(machine.online - fast)}},
        "events": events, "allocate": {"reserved": text(reserved), "honour": "crane,nri-plugins,cmk",
                                       "pool_headroom": data.draw(st.integers(0, 2)),
                                       "strict_reserved": data.draw(st.booleans())}})
    own: dict[tuple[str, str], Cpus] = {}
    for event, outcome in zip(events, outcomes, strict=True):
        name = (outcome["pod"], outcome["container"])
        pool = cpus(outcome["pool"])
        assert pool <= machine.online - isolated
        if "refused" in outcome:
            continue
        own.pop(name, None)
        if "cost" in outcome and cpus(outcome["cpus"]).isdisjoint(pool):
            own[name] = cpus(outcome["cpus"])
            assert "create" not in event or len(own[name]) == event["create"]["cpus"]
            assert own[name] <= machine.online - reserved
        assert pool.isdisjoint(frozenset().union(*own.values()))
        assert sum(map(len, own.values())) == len(frozenset().union(*own.values()))
