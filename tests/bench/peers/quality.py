"""Parts that need no other program: how good the grants are and what they leave free, and what a decision takes."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from peers import greedy, histories
from peers.figures import VMPIN, Measure
from peers.grants import PeerGrants
from peers.histories import Grant
from peers.judge import Left, left, spread
from peers.machines import Machine, random_machine

sys.path.append(str(Path(__file__).parents[2] / "features/allocator"))

from exhaustive_cpus import legal_sets

from vmpin.features.allocator.grants.cpu_request import CpuQuery

GREEDY = "greedy"
#: CPUs of a machine of which every set is tried.
_SMALL = 12
#: What a state has whole and free, by the judge's name.
_LEFT = {"cores": "fewer whole free cores", "caches": "fewer whole free caches", "nodes": "fewer whole free nodes",
         "largest_node": "a smaller largest free node"}

Grants = Mapping[int, Mapping[int, Grant]]


@dataclass
class Duel:
    """vmpin's grants and another allocator's on the same histories: in how many each is worse than the other."""

    grants: int = 0
    worse: int = 0
    better: int = 0
    states: int = 0
    fewer: Sequence[int] = (0,) * len(_LEFT)
    more: Sequence[int] = (0,) * len(_LEFT)
    refused: int = 0
    refused_by_vmpin: int = 0

    def measures(self, peer: str) -> list[Measure]:
        """Percentages: of vmpin's grants and states those that are worse than the peer's, and the reverse."""
        def percent(title: str, ours: int, theirs: int, count: int) -> Measure:
            return Measure(title, f"% of {count}", {VMPIN: [100 * ours / max(1, count)],
                                                    peer: [100 * theirs / max(1, count)]}, timed=False)

        of_left = [percent(f"leaves {title}", ours, theirs, self.states)
                   for title, ours, theirs in zip(_LEFT.values(), self.more, self.fewer, strict=True)]
        return [percent("grants worse than the other's", self.better, self.worse, self.grants), *of_left,
                percent("requests refused", self.refused_by_vmpin, self.refused,
                        self.grants + self.refused + self.refused_by_vmpin)]


def duel(machines: Sequence[Machine], ours: Grants, theirs: Grants) -> Duel:
    """Compare two allocators, each with its own history. `worse`, `fewer`: of the other one's."""
    sums = Duel()
    fewer, more = [0] * len(_LEFT), [0] * len(_LEFT)
    for machine in machines:
        if machine.id not in theirs:
            continue
        held: tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]] = ({}, {})
        for event in machine.events:
            if not event.cpus:
                for side in held:
                    side.pop(event.id, None)
                continue
            pair = ours[machine.id][event.id].cpus, theirs[machine.id][event.id].cpus
            for side, cpus in zip(held, pair, strict=True):
                if cpus is not None:
                    side[event.id] = cpus
            sums.refused_by_vmpin += pair[0] is None
            sums.refused += pair[1] is None
            if pair[0] is None or pair[1] is None:
                continue
            sums.grants += 1
            sums.worse += spread(machine, pair[1]) > spread(machine, pair[0])
            sums.better += spread(machine, pair[1]) < spread(machine, pair[0])
            sums.states += 1
            our_left, their_left = (left(machine, machine.usable - frozenset().union(*side.values()))
                                    for side in held)
            for at in range(len(Left._fields)):
                fewer[at] += their_left[at] < our_left[at]
                more[at] += their_left[at] > our_left[at]
    return replace(sums, fewer=fewer, more=more)


def quality(machines: Sequence[Machine], peers: Sequence[PeerGrants], oracle_rounds: int) -> list[Measure]:
    of_quality = [machine for machine in machines if machine.purpose == "quality"]
    ours = {machine.id: histories.played(machine, greedy.vmpin) for machine in of_quality}
    simple = {machine.id: histories.played(machine, greedy.greedy) for machine in of_quality}
    measures = [oracle(oracle_rounds)]
    for peer in (PeerGrants(GREEDY, simple), *peers):
        measures += duel(of_quality, ours, peer.grants).measures(peer.peer)
    return measures


def oracle(rounds: int, seed: int = 29) -> Measure:
    """Beside the best of all sets, on machines that are small enough to try them: how many grants are worse."""
    chance = random.Random(seed)
    worse = {VMPIN: 0, GREEDY: 0}
    count = 0
    while count < rounds:
        machine = random_machine(chance, _SMALL)
        free = frozenset(cpu for cpu in machine.usable if chance.random() < 0.8)
        if not free:
            continue
        size = chance.randint(1, len(free))
        best = spread(machine, frozenset(legal_sets(machine.topology, free, CpuQuery(size))[0].cpus))
        count += 1
        for name, allocator in ((VMPIN, greedy.vmpin), (GREEDY, greedy.greedy)):
            cpus = allocator(machine, free, size).cpus
            worse[name] += cpus is None or spread(machine, cpus) != best
    return Measure(f"grants worse than the best of all sets, machines of up to {_SMALL} CPUs", f"% of {rounds}",
                   {name: [100 * times / rounds] for name, times in worse.items()}, timed=False)


def decisions(machines: Sequence[Machine], peers: Sequence[PeerGrants]) -> list[Measure]:
    """vmpin's and the greedy one's CPU time, a peer's by its own clock: no pairs, as each has its own history."""
    measures = []
    for machine in machines:
        if machine.purpose != "decisions":
            continue
        times = {name: [grant.microseconds for grant in histories.played(machine, allocator).values()]
                 for name, allocator in ((VMPIN, greedy.vmpin), (GREEDY, greedy.greedy))}
        for peer in peers:
            spent = [grant.microseconds for grant in peer.grants.get(machine.id, {}).values() if grant.microseconds]
            if spent:
                times[peer.peer] = spent
        measures.append(Measure(f"a decision, {machine.cpus} CPUs", "µs", times, pairs=False))
    return measures


