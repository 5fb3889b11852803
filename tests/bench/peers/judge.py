"""What is better for a container, and what is left for the next one: the same judge for every allocator. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from peers.machines import Machine


class Spread(NamedTuple):
    """Of a grant; less is better, compared in this order. `distance`: summed over all pairs of its nodes."""

    nodes: int
    distance: int
    caches: int
    partial_cores: int


class Left(NamedTuple):
    """What is free and whole; more is better."""

    cores: int
    caches: int
    nodes: int
    largest_node: int


def spread(machine: Machine, cpus: frozenset[int]) -> Spread:
    nodes = sorted({machine.node[cpu] for cpu in cpus})
    cores = Counter(machine.core[cpu] for cpu in cpus)
    return Spread(len(nodes), sum(machine.distances[a][b] for a, b in combinations(nodes, 2)),
                  len({machine.cache[cpu] for cpu in cpus}), sum(held < machine.threads for held in cores.values()))


def left(machine: Machine, free: frozenset[int]) -> Left:
    return Left(_whole(machine.core, free), _whole(machine.cache, free), _whole(machine.node, free),
                max(Counter(machine.node[cpu] for cpu in free).values(), default=0))


def _whole(by_cpu: Sequence[int], free: frozenset[int]) -> int:
    """Groups whose CPUs are all free."""
    size = Counter(by_cpu)
    return sum(held == size[number] for number, held in Counter(by_cpu[cpu] for cpu in free).items())
