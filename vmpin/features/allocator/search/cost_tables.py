"""A cost, and the CPUs that it is of, as one whole number: adding numbers adds costs and unites sets, and the smaller
number is the better set.

The parts of a cost (`CpuCost`) lie in fields, the first to compare in the highest; among them one that no cost shows,
for the CPUs that a container would have to move to. Below them lies, taken away, a number with a bit for each CPU that
may be taken, the lowest CPU in the highest: among sets of one size, the one with the lowest CPUs has the greatest.
"""

from __future__ import annotations

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


#: After what the container itself notices of its CPUs, and before what is left for others.
_MOVED, _BEFORE = "moved", "broken_nodes"


class CostCode:
    """The code for the CPUs that may be taken. :param present: as `CpuQuery.present`."""

    def __init__(self, alignment: Alignment, choice: CpuSet, present: CpuSet) -> None:
        parts = cost_order(alignment)
        at = parts.index(_BEFORE)
        self._order = (*parts[:at], _MOVED, *parts[at:])
        self._cpus = list(choice)[::-1]  # by bit
        self._cpu_bits = len(self._cpus)
        self._bit = {cpu: 1 << bit for bit, cpu in enumerate(self._cpus)}
        fields = len(self._order)
        ones = {name: 1 << (self._cpu_bits + _FIELD * (fields - 1 - at)) for at, name in enumerate(self._order)}
        moved = ones.pop(_MOVED)
        self._new = dict.fromkeys(choice - present, moved) if present else {}
        #: One of each part.
        self.one = CpuCost(**ones)
        #: Greater than twice each cost: no set at all.
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
