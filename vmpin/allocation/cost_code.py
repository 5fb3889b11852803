"""A cost, and the CPUs that it is of, as one whole number: adding numbers adds costs and unites sets, and the smaller
number is the better set.

The parts of a cost (`CpuCost`) lie in fields, the first to compare in the highest. Below them lies, taken away, a
number with a bit for each CPU, CPU 0 in the highest: among sets of one size, the one with the lowest CPUs has the
greatest. Used by search_space and search.
"""

from __future__ import annotations

from vmpin.allocation.cpu_request import Alignment, CpuCost
from vmpin.cpuset import MAX_CPU, CpuSet

#: Bits of a field: each part counts CPUs or groups of them, and distances between at most some hundred nodes.
_FIELD = 32
_MASK = (1 << _FIELD) - 1
#: The parts that come first, by alignment; the others follow in the order of `CpuCost`.
_FIRST = {Alignment.NODE: (), Alignment.SOCKET: (), Alignment.CACHE: ("caches",), Alignment.CORE: ("partial_cores",)}


class CostCode:
    """The code for a machine whose highest CPU is `last`."""

    def __init__(self, alignment: Alignment, last: int = MAX_CPU) -> None:
        first = _FIRST[alignment]
        self._order = (*first, *(name for name in CpuCost._fields if name not in first))
        self._last = last
        self._cpu_bits = last + 1
        #: One of each part.
        self.one = CpuCost(*(1 << (self._cpu_bits + _FIELD * (len(self._order) - 1 - self._order.index(name)))
                             for name in CpuCost._fields))
        #: More than every cost, and than no set at all: what cannot be.
        self.never = 1 << (self._cpu_bits + _FIELD * (len(self._order) + 1))

    def cpu(self, cpu: int) -> int:
        """What one CPU adds by its number."""
        return -(1 << (self._last - cpu))

    def before_distance(self, code: int) -> int:
        """The parts that are compared before the distance."""
        return self._parts(code) >> (_FIELD * (len(self._order) - self._order.index("distance")))

    def cost(self, code: int) -> CpuCost:
        parts = self._parts(code)
        by_name = {name: parts >> (_FIELD * place) & _MASK for place, name in enumerate(reversed(self._order))}
        return CpuCost(**by_name)

    def rank(self, cost: CpuCost) -> tuple[int, ...]:
        """The parts in the order in which they are compared."""
        return tuple(getattr(cost, name) for name in self._order)

    def cpus(self, code: int) -> CpuSet:
        mirrored = (self._parts(code) << self._cpu_bits) - code
        return CpuSet(self._last - bit for bit in CpuSet.from_bits(mirrored))

    def _parts(self, code: int) -> int:
        return -(-code >> self._cpu_bits)
