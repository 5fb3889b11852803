"""Tables of least costs, and how two of them are added: the min-plus convolution of a knapsack.

Entry n of a table is the least cost of n CPUs. A cost and its CPUs are one whole number (`CostCode`): adding numbers
adds costs and unites sets, and the smaller number is the better set. `LeastCosts` keeps the least number of each size,
`TwoLeastCosts` the least two that differ, as `vmpin status --explain` needs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, combinations, islice
from operator import add
from typing import Generic, TypeVar

from vmpin.cpuset import CpuSet
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuCost

#: Bits of a field: each part counts CPUs or groups of them, or adds up the distances of some hundred pairs of nodes.
_FIELD = 24
_MASK = (1 << _FIELD) - 1
#: The parts that come first, by alignment; the others follow in the order of `CpuCost`.
_FIRST = {Alignment.NODE: (), Alignment.SOCKET: (), Alignment.CACHE: ("caches",), Alignment.CORE: ("partial_cores",)}


def cost_order(alignment: Alignment) -> tuple[str, ...]:
    """The names of the cost's parts in the order in which they are compared."""
    first = _FIRST[alignment]
    return (*first, *(name for name in CpuCost._fields if name not in first))


#: The CPUs that a container would have to move to: a part that no cost shows, after those that the container itself
#: notices, and before those about what is left for others.
_MOVED, _BEFORE = "moved", "broken_nodes"


class CostCode:
    """The numbers for sets of the CPUs that may be taken.

    The parts of a cost (`CpuCost`) lie in fields, the first to compare in the highest. Below them lies, subtracted, a
    number with a bit for each CPU that may be taken, the lowest CPU in the highest: of sets of one size and cost, the
    one with the lowest CPUs has the smallest number. :param present: as `CpuQuery.present`."""

    def __init__(self, alignment: Alignment, choice: CpuSet, present: CpuSet) -> None:
        parts = cost_order(alignment)
        at = parts.index(_BEFORE)
        self._order = (*parts[:at], _MOVED, *parts[at:])
        self._cpus = list(choice)[::-1]  # by bit
        self._cpu_bits = len(self._cpus)
        self._bit = {cpu: 1 << bit for bit, cpu in enumerate(self._cpus)}
        fields = len(self._order)
        units = {name: 1 << (self._cpu_bits + _FIELD * (fields - 1 - at)) for at, name in enumerate(self._order)}
        moved = units.pop(_MOVED)
        self._new = dict.fromkeys(choice - present, moved) if present else {}
        #: The cost of one of each part.
        self.unit = CpuCost(**units)
        #: Greater than twice each cost: the code of no set.
        self.never = 1 << (self._cpu_bits + _FIELD * (fields + 1))

    def cpu(self, cpu: int) -> int:
        """Return the cost of one CPU by itself."""
        return self._new.get(cpu, 0) - self._bit[cpu]

    def parts(self, code: int) -> int:
        """The cost without the CPUs; costs compare as these numbers do."""
        return -(-code >> self._cpu_bits)

    def before_distance(self, code: int) -> int:
        """The parts that are compared before the distance."""
        return self.parts(code) >> (_FIELD * (len(self._order) - self._order.index("distance")))

    def cost(self, code: int) -> CpuCost:
        parts = self.parts(code)
        by_name = {name: parts >> (_FIELD * place) & _MASK for place, name in enumerate(reversed(self._order))}
        del by_name[_MOVED]
        return CpuCost(**by_name)

    def cpus(self, code: int) -> CpuSet:
        mirrored = (self.parts(code) << self._cpu_bits) - code
        return CpuSet(self._cpus[bit] for bit in CpuSet.from_bits(mirrored))


Entry = TypeVar("Entry")


class CostTables(ABC, Generic[Entry]):
    """How tables are made, added and compared. `breadth`: the most costs that an entry keeps."""

    breadth: int
    never: Entry  #: The entry of a size that no set has.

    @abstractmethod
    def entry(self, costs: Iterable[int]) -> Entry:
        """Make the entry of some sets' costs, all of one size and in ascending order."""

    @abstractmethod
    def costs(self, entry: Entry) -> tuple[int, ...]:
        """Return the costs that an entry keeps, ascending."""

    @abstractmethod
    def mark(self, cost: int) -> int:
        """Return the value by which any two costs of an entry differ."""

    @abstractmethod
    def priced(self, table: Sequence[Entry], prices: Sequence[int | None]) -> list[Entry]:
        """Return the table with a price added to each entry; a price of None rules out that number of CPUs."""

    def of_core(self, cpus: Sequence[int], prices: Sequence[int | None]) -> list[Entry]:
        """Return the table of a core. :param cpus: their costs, ascending. :param prices: by the number of CPUs."""
        return [self.never if price is None else
                self.entry(price + sum(some) for some in islice(combinations(cpus, taken), self.breadth))
                for taken, price in zip(range(len(cpus) + 1), prices, strict=False)]

    @abstractmethod
    def least(self, left: Sequence[Entry], right: Sequence[Entry]) -> list[Entry]:
        """Merge two tables: keep the better entry for each number of CPUs."""

    @abstractmethod
    def added(self, left: Sequence[Entry], right: Sequence[Entry], least: int, most: int) -> list[Entry]:
        """The table of two groups of CPUs together, up to `most` CPUs; `never` below `least`."""

    @abstractmethod
    def at(self, left: Sequence[Entry], right: Sequence[Entry], number: int) -> Entry:
        """Return one entry of the table that `added` would make."""

    def sum(self, tables: Sequence[Sequence[Entry]], most: int) -> Sequence[Entry]:
        """The table of all these groups together, up to `most` CPUs. Neighbours are added first, as long tables cost
        most."""
        if not tables:
            return [self.entry((0,))]
        while len(tables) > 1:
            pairs = [self.added(tables[at], tables[at + 1], 0, most) for at in range(0, len(tables) - 1, 2)]
            tables = [*pairs, *tables[2 * len(pairs):]]
        return tables[0][:most + 1]

    def sum_at(self, tables: Sequence[Sequence[Entry]], number: int) -> Entry:
        """One entry of the table that `sum` would make."""
        half = (len(tables) + 1) // 2
        return self.at(self.sum(tables[:half], number), self.sum(tables[half:], number), number)


class LeastCosts(CostTables[int]):
    """An entry is the least cost, or at least half of `never`."""

    breadth = 1

    def __init__(self, never: int) -> None:
        self.never = never
        self._limit = never // 2

    def entry(self, costs: Iterable[int]) -> int:
        return next(iter(costs), self.never)

    def costs(self, entry: int) -> tuple[int, ...]:
        return (entry,) if entry < self._limit else ()

    def mark(self, cost: int) -> int:
        return cost

    def priced(self, table: Sequence[int], prices: Sequence[int | None]) -> list[int]:
        return [self.never if price is None else cost + price for cost, price in zip(table, prices, strict=True)]

    def of_core(self, cpus: Sequence[int], prices: Sequence[int | None]) -> list[int]:
        return [self.never if price is None else price + cost
                for price, cost in zip(prices, accumulate(cpus, initial=0), strict=False)]

    def least(self, left: Sequence[int], right: Sequence[int]) -> list[int]:
        longer, shorter = (left, right) if len(left) > len(right) else (right, left)
        return [*map(min, longer, shorter), *longer[len(shorter):]]

    def added(self, left: Sequence[int], right: Sequence[int], least: int, most: int) -> list[int]:
        left, skipped = self._trimmed(left)
        right, right_skipped = self._trimmed(right)
        skipped += right_skipped
        reversed_left, length = left[::-1], len(left)
        table = [self.never] * max(skipped, least)
        for number in range(len(table) - skipped, min(most - skipped + 1, length + len(right) - 1)):
            first, end = max(0, number - length + 1), min(number + 1, len(right))
            at = length - 1 - number
            # The fastest in Python: no bytecode runs within.
            cost = min(map(add, right[first:end], reversed_left[at + first:at + end]))
            table.append(cost if cost < self._limit else self.never)
        return table[:most + 1]

    def _trimmed(self, table: Sequence[int]) -> tuple[Sequence[int], int]:
        """The table from the first size on that some set has, and the number of sizes before it."""
        if table[0] < self._limit:
            return table, 0
        first = next((at for at, cost in enumerate(table) if cost < self._limit), len(table) - 1)
        return table[first:], first

    def at(self, left: Sequence[int], right: Sequence[int], number: int) -> int:
        return min((left[taken] + right[number - taken] for taken in
                    range(max(0, number - len(right) + 1), min(number + 1, len(left)))), default=self.never)


class TwoLeastCosts(CostTables[tuple[int, ...]]):
    """An entry is the least cost and the least of those that differ from it in `distinct`; or fewer."""

    breadth = 2
    never = ()

    def __init__(self, distinct: Callable[[int], int]) -> None:
        self._distinct = distinct

    def mark(self, cost: int) -> int:
        return self._distinct(cost)

    def entry(self, costs: Iterable[int]) -> tuple[int, ...]:
        ordered = sorted(set(costs))
        others = (cost for cost in ordered[1:] if self.mark(cost) != self.mark(ordered[0]))
        return (*ordered[:1], *islice(others, 1))

    def costs(self, entry: tuple[int, ...]) -> tuple[int, ...]:
        return entry

    def priced(self, table: Sequence[tuple[int, ...]], prices: Sequence[int | None]) -> list[tuple[int, ...]]:
        return [() if price is None else tuple(cost + price for cost in entry)
                for entry, price in zip(table, prices, strict=True)]

    def least(self, left: Sequence[tuple[int, ...]], right: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        longer, shorter = (left, right) if len(left) > len(right) else (right, left)
        return [*(self.entry(a + b) for a, b in zip(longer, shorter, strict=False)), *longer[len(shorter):]]

    def added(self, left: Sequence[tuple[int, ...]], right: Sequence[tuple[int, ...]], least: int,
              most: int) -> list[tuple[int, ...]]:
        return [self.at(left, right, number) if number >= least else ()
                for number in range(min(most + 1, len(left) + len(right) - 1))]

    def at(self, left: Sequence[tuple[int, ...]], right: Sequence[tuple[int, ...]], number: int) -> tuple[int, ...]:
        return self.entry(a + b for taken in range(max(0, number - len(right) + 1), min(number + 1, len(left)))
                          for a in left[taken] for b in right[number - taken])
