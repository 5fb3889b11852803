"""How long the search for the best CPUs takes, over random ledgers: what a container's creation waits for.

Beside it a pass over the same free CPUs that sorts them by node, cache and core: the least that could choose."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from measure import Figure

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuQuery, FoundCpus, SmtUse
from vmpin.features.allocator.search.best_set import best_cpus

#: CPUs, nodes, caches, nodes of one socket (2 of 16: SNC on eight sockets; 0: distances at random, so that no two are
#: alike). Two threads a core, as Linux numbers them.
MACHINES = {"allocate_96": ((96, 2, 2, 1), (96, 4, 8, 2)),
            "allocate_512": ((512, 1, 32, 1), (512, 2, 32, 1), (512, 8, 32, 4), (512, 16, 32, 2)),
            "allocate_scattered": ((256, 16, 16, 0), (512, 32, 32, 0))}
_LIMITS = {"allocate_96": 5, "allocate_512": 50, "allocate_scattered": 200}


def machine(count: int, nodes: int, caches: int, in_socket: int) -> Topology:
    cores = [CpuSet((cpu, cpu + count // 2)) for cpu in range(count // 2)]

    def parts(number: int) -> list[CpuSet]:
        each = len(cores) // number
        return [union(cores[at:at + each]) for at in range(0, len(cores), each)]

    chance = random.Random(nodes)

    def distance(a: int, b: int) -> int:
        if a == b or in_socket:
            return 10 if a == b else 12 if a // in_socket == b // in_socket else 32
        return chance.randint(12, 60)

    distances = {a: {b: distance(a, b) for b in range(nodes)} for a in range(nodes)}
    return Topology.build(CpuSet(range(count)), cores, parts(caches), dict(enumerate(parts(nodes))),
                          distances=distances)


def ledgers(topology: Topology, count: int, seed: int) -> Iterator[tuple[CpuSet, CpuQuery]]:
    """Free CPUs and a request. Every other time after random containers came and went, else any CPUs at random."""
    chance = random.Random(seed)
    granted: list[CpuSet] = []
    for number in range(count):
        free = topology.online - union(granted)
        if number % 2:
            share = chance.random()
            free = CpuSet(cpu for cpu in topology.online if chance.random() < share) or topology.online
        elif not free or chance.random() < 0.4:
            granted = [cpus for cpus in granted if chance.random() < 0.6]
            free = topology.online - union(granted)
        largest = len(free) if number % 2 else max(1, min(len(free), len(topology.online) // 8))
        query = CpuQuery(chance.randint(1, largest), chance.choice(list(Alignment)),
                         smt=chance.choice([SmtUse.PREFER, SmtUse.PREFER, SmtUse.SPREAD]),
                         near=frozenset(chance.sample(sorted(topology.nodes), 1) if chance.random() < 0.3 else ()))
        yield free, query
        found = best_cpus(topology, free, query)
        if not number % 2 and isinstance(found, FoundCpus):
            granted.append(found.cpus)


def _sorted(topology: Topology, free: CpuSet) -> list[tuple[int, int, int, int]]:
    return sorted((topology.node_of(cpu) or 0, topology.cache_of(cpu).first, topology.core_of(cpu).first, cpu)
                  for cpu in free)


def _cpu_ms(call: Callable[[], object]) -> float:
    """CPU time: the search waits for nothing, and what else the machine does is no part of it."""
    begin = time.thread_time()
    call()
    return (time.thread_time() - begin) * 1000


def percentile(times: list[float]) -> float:
    """The 95th."""
    return statistics.quantiles(times, n=20)[-1]


def allocate(name: str, rounds: int) -> Figure:
    """The slowest of the machines counts. `unproven`: the answers that need not be the best."""
    found: dict[str, tuple[float, float]] = {}
    unproven = 0
    for shape in MACHINES[name]:
        topology = machine(*shape)
        best_cpus(topology, EMPTY, CpuQuery(1))  # its groups are found once for all requests of a node
        times, floors = [], []
        for free, query in ledgers(topology, rounds, seed=1):
            times.append(_cpu_ms(partial(best_cpus, topology, free, query)))
            floors.append(_cpu_ms(partial(_sorted, topology, free)))
            best = best_cpus(topology, free, query) if name == "allocate_scattered" else None
            unproven += isinstance(best, FoundCpus) and best.least_distance is not None
        found[f"{shape[1]}_nodes_{shape[2]}_caches"] = percentile(times), percentile(floors)
    value, floor = max(found.values())
    return Figure(name, value, "ms", floor, _LIMITS[name], "value",
                  {"rounds": rounds, "unproven": unproven,
                   "by_machine": {shape: round(each[0], 4) for shape, each in found.items()}})
