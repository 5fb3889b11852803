"""Which nodes a set may touch, by the distance between them: a key for each die counts the touched nodes of each
package (cpu_groups), so that a given number of nodes is touched and these have CPUs enough.

There can be far too many such choices to try all: which nodes are nearest to each other is an NP-hard question. They
are tried best-first, by a bound that no completion is below: the first one that is complete is the nearest. Where the
effort is spent before, the least bound proves how near any could be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from operator import add

from vmpin.features.allocator.search.cpu_groups import CpuGroups
from vmpin.named_tuple import NamedTuple

#: Bits in which the touched nodes of one package are counted.
PACKAGE_BITS = 12
#: Choices that are improved where not all can be tried.
_STARTS = 4


class Effort:
    """The steps that a search may still take. They are counted, not timed, so that a search has the same answer on
    every machine: one is about an addition of two costs, 0.1 µs."""

    def __init__(self, steps: int) -> None:
        self.left = steps


class Choice(NamedTuple):
    """The distance between the touched nodes, and each die's key."""

    distance: int
    keys: tuple[int, ...]


class _Partial(NamedTuple):
    """A choice for the last dies. `dies` are still open, the first ones. `to_package`: how far one more node of each
    package is from the touched ones. Of equal bounds the most complete one comes first."""

    least: int  #: No completion has a smaller distance.
    dies: int
    serial: int
    nodes: int  #: Nodes yet to be touched.
    cpus: int  #: CPUs that these need to have.
    distance: int
    to_package: list[int]
    keys: tuple[int, ...]


class NodeChoices:
    """:param dies: the most CPUs of each die by key. :param number: of nodes to touch. :param size: CPUs that these
    need to have."""

    def __init__(self, groups: CpuGroups, dies: Sequence[Mapping[int, int]], number: int, size: int) -> None:
        packages = range(max(groups.packages) + 1)
        self._between = [[groups.between.get((min(one, other), max(one, other)), 0) for other in packages]
                         for one in packages]
        self._dies, self._number, self._size = dies, number, size
        #: The most CPUs of the first dies (of none, one, two …), by the number of touched nodes.
        self.capacities = _capacities(dies)
        self._rests: dict[int, tuple[list[int], list[list[int]]]] = {}
        self._open: list[_Partial] = []
        if self.capacities[-1].get(number, -1) >= size:
            self._open.append(self._partial(len(dies), 0, number, size, 0, [0] * len(packages), ()))

    @property
    def least(self) -> int | None:
        """No choice that `ascending` has not returned has a smaller distance. None: there is no other choice."""
        return self._open[0].least if self._open else None

    def ascending(self, effort: Effort) -> Iterator[Choice]:
        """The choices by rising distance, until no effort is left."""
        serial = 0
        while self._open and effort.left > 0:
            partial = heappop(self._open)
            if not partial.dies:
                yield Choice(partial.distance, partial.keys)
                continue
            dies = partial.dies - 1
            for key, most in self._dies[dies].items():
                nodes, cpus = partial.nodes - touched(key), partial.cpus - most
                if nodes not in self.capacities[dies] or self.capacities[dies][nodes] < cpus:
                    continue
                serial += 1
                effort.left -= 60 + 3 * dies
                distance, to_package = self._with(key, partial.distance, partial.to_package)
                heappush(self._open, self._partial(dies, serial, nodes, cpus, distance, to_package,
                                                   (key, *partial.keys)))

    def near(self) -> list[Choice]:
        """Some choices of small distance, the nearest first: from each node on, the nearest one is added to those
        there are; the best of these choices are improved by exchanging node for node."""
        fewest = [min(die, key=touched) for die in self._dies]
        starts = {self._grown([*fewest[:die], key, *fewest[die + 1:]]) for die, keys in enumerate(self._dies)
                  for key in keys if touched(key) == touched(fewest[die]) + 1}
        best = sorted(choice for choice in starts if choice is not None)[:_STARTS]
        return sorted(set(map(self._exchanged, best)))

    def distance(self, key: int) -> int:
        """The distance between the nodes that a key counts, of any dies."""
        return self._with(key, 0, [0] * len(self._between))[0]

    def _with(self, key: int, distance: int, to_package: list[int]) -> tuple[int, list[int]]:
        """The distance with the nodes that a key counts, and that of one more node of each package to all."""
        for package in _packages_of(key):
            distance += to_package[package]
            to_package = list(map(add, to_package, self._between[package]))
        return distance, to_package

    def _partial(self, dies: int, serial: int, nodes: int, cpus: int, distance: int, to_package: list[int],
                 keys: tuple[int, ...]) -> _Partial:
        """A choice with its bound: each further node is as far from the touched ones as it is, and at least half as
        far from the other further ones as from the nearest that there may be (half: both nodes of a pair count it)."""
        least = distance
        if nodes:
            packages, nearest = self._rest(dies)
            twice = sorted([2 * to_package[package] + nearest[package][nodes - 1] for package in packages])
            least += (sum(twice[:nodes]) + 1) // 2
        return _Partial(least, dies, serial, nodes, cpus, distance, to_package, keys)

    def _rest(self, dies: int) -> tuple[list[int], list[list[int]]]:
        """The package of each node that the first dies may touch; and by package the distance of a node of it to none
        of the others, to the nearest one, to the nearest two and so on."""
        if dies not in self._rests:
            packages: list[int] = []
            for keys in self._dies[:dies]:
                for package in range(len(self._between)):
                    packages += [package] * max(key >> PACKAGE_BITS * package & _COUNT for key in keys)
            nearest: list[list[int]] = [[] for _ in self._between]
            for package in set(packages):
                others = sorted(self._between[package][other] for other in packages)
                others.remove(self._between[package][package])  # the node itself
                nearest[package] = [0, *accumulate(others)]
            self._rests[dies] = packages, nearest
        return self._rests[dies]

    def _grown(self, keys: list[int]) -> Choice | None:
        """The choice that adds the nearest node again and again, of those with which the nodes can still have CPUs
        enough. None: there is none."""
        distance, to_package = self._with(sum(keys), 0, [0] * len(self._between))
        cpus = sum(die[key] for die, key in zip(self._dies, keys, strict=True))
        for more in range(self._number - sum(map(touched, keys)), 0, -1):
            added = [(to_package[package], die, key, self._dies[die][key] - self._dies[die][keys[die]])
                     for die, package, key in self._changed(keys, 1)]
            gains = sorted((gain for *_, gain in added), reverse=True)
            others, last = sum(gains[:more - 1]), gains[more - 1] if len(gains) >= more else 0
            enough = [node for node in added
                      if cpus + others + (node[3] if node[3] < last else last) >= self._size]
            if not enough:
                return None
            far, die, key, gain = min(enough)
            _, to_package = self._with(key - keys[die], 0, to_package)
            distance, cpus, keys = distance + far, cpus + gain, [*keys[:die], key, *keys[die + 1:]]
        return Choice(distance, tuple(keys)) if cpus >= self._size else None

    def _exchanged(self, choice: Choice) -> Choice:
        """A choice after exchanges of a node for another, each the one that brings the nodes nearest."""
        distance, keys = choice.distance, list(choice.keys)
        while True:
            cpus = sum(die[key] for die, key in zip(self._dies, keys, strict=True))
            _, to_package = self._with(sum(keys), 0, [0] * len(self._between))
            fewer = [(die, package, key, self._dies[die][keys[die]] - self._dies[die][key])
                     for die, package, key in self._changed(keys, -1)]
            more = [(die, package, key, self._dies[die][key] - self._dies[die][keys[die]])
                    for die, package, key in self._changed(keys, 1)]
            nearer, die, key, other, other_key = min(
                ((to_package[new] - self._between[old][new] - to_package[old] + self._between[old][old], die, key,
                  other, other_key) for die, old, key, lost in fewer for other, new, other_key, gained in more
                 if die != other and cpus - lost + gained >= self._size), default=(0, 0, 0, 0, 0))
            if nearer >= 0:
                return Choice(distance, tuple(keys))
            distance += nearer
            keys[die], keys[other] = key, other_key

    def _changed(self, keys: Sequence[int], nodes: int) -> Iterator[tuple[int, int, int]]:
        """The dies that can touch a node of a package more (1) or less (-1), with the package and their key then."""
        for die, key in enumerate(keys):
            for package in range(len(self._between)):
                other = key + nodes * (1 << PACKAGE_BITS * package)
                if other in self._dies[die]:
                    yield die, package, other


_COUNT = (1 << PACKAGE_BITS) - 1


def _capacities(dies: Sequence[Mapping[int, int]]) -> list[dict[int, int]]:
    capacities: list[dict[int, int]] = [{0: 0}]
    for die in dies:
        most: dict[int, int] = {}
        for before, capacity in capacities[-1].items():
            for key, cpus in die.items():
                nodes = before + touched(key)
                most[nodes] = max(most.get(nodes, 0), capacity + cpus)
        capacities.append(most)
    return capacities


def touched(key: int) -> int:
    """The number of nodes that a key counts."""
    return len(_packages_of(key))


@lru_cache(maxsize=4096)
def _packages_of(key: int) -> tuple[int, ...]:
    """The package of each node that a key counts. Kept: a search asks for the same few some ten thousand times."""
    packages: list[int] = []
    package = 0
    while key:
        packages += [package] * (key & _COUNT)
        key >>= PACKAGE_BITS
        package += 1
    return tuple(packages)
