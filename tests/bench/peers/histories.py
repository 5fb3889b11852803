"""Random histories of containers that want CPUs of their own: the same for every allocator. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from peers.machines import Event, Machine, random_machine, shaped

#: Machines of the part `decisions`: CPUs, nodes, caches.
SIZES = ((16, 1, 2), (96, 2, 12), (256, 8, 32), (512, 8, 64))
_EVENTS = 60


class Grant(NamedTuple):
    """`cpus` is None where the request was refused. `microseconds`: of the decision; 0 where it is not known."""

    cpus: frozenset[int] | None
    microseconds: float = 0.0


#: Chooses CPUs for a request: machine, free CPUs, how many.
Allocator = Callable[[Machine, frozenset[int], int], Grant]


def made(count: int, seed: int = 29) -> list[Machine]:
    """`count` machines for the quality, a third of them with requests for whole cores, and one of each size for the
    times of decisions."""
    chance = random.Random(seed)
    machines: list[Machine] = []
    while len(machines) < count:
        machine = replace(random_machine(chance, 256), id=len(machines), whole_cores=len(machines) % 3 == 2)
        if machine.whole_cores and machine.threads == 1:
            continue
        machines.append(replace(machine, events=tuple(history(chance, machine))))
    for cpus, nodes, caches in SIZES:
        machine = replace(shaped(cpus, nodes, caches, 2), id=len(machines), purpose="decisions")
        machines.append(replace(machine, events=tuple(history(chance, machine, 300))))
    return machines


def history(chance: random.Random, machine: Machine, events: int = _EVENTS) -> Iterator[Event]:
    """Creations up to a random share of the machine, and removals. One core stays with the shared pool."""
    most = (len(machine.usable) - machine.threads) * chance.uniform(0.5, 1)
    of_node = machine.cpus // len(machine.distances)
    sizes = (1, 1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16, of_node // 4, of_node // 2, of_node, of_node * 3 // 2)
    there: dict[int, int] = {}
    for number in range(events):
        cpus = max(1, chance.choice(sizes))
        if machine.whole_cores:
            cpus = -(-cpus // machine.threads) * machine.threads
        if sum(there.values()) + cpus > most or (there and chance.random() < 0.3):
            if there:
                gone = chance.choice(sorted(there))
                del there[gone]
                yield Event(gone, 0)
            continue
        there[number] = cpus
        yield Event(number, cpus)


def played(machine: Machine, allocator: Allocator) -> dict[int, Grant]:
    """An allocator's grants by request. What it gave before is what is not free."""
    held: dict[int, frozenset[int]] = {}
    grants: dict[int, Grant] = {}
    for event in machine.events:
        if not event.cpus:
            held.pop(event.id, None)
            continue
        free = machine.usable - frozenset().union(*held.values())
        grant = grants[event.id] = allocator(machine, free, event.cpus)
        if grant.cpus is not None:
            held[event.id] = grant.cpus
    return grants
