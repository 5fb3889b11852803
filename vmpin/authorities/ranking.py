"""The authorities of a node in their order (domain.assignments.Rank), and the rulings that follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.authorities.authority import Authority, GivenAuthority
from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Rank, Ruling, Rulings
from vmpin.domain.desired_state import DesiredState
from vmpin.placement.rulings import DECLARED, outside_pool


class Authorities:
    """:param more: those beside `declared` and `pool`, which every node has.
    :param pool: the configured shared pool, None or empty for none."""

    def __init__(self, pool: CpuSet | None, more: Iterable[Authority] = ()) -> None:
        self._by_rank: list[Authority] = []
        for authority in (*more, GivenAuthority("declared", Rank.DECLARED, DECLARED)):
            self.put(authority)
        self.use_pool(pool)

    def put(self, authority: Authority) -> None:
        """Add an authority; one of the same name is replaced."""
        others = [other for other in self._by_rank if other.name != authority.name]
        self._by_rank = sorted([*others, authority], key=lambda each: each.rank)

    def use_pool(self, pool: CpuSet | None) -> None:
        """Use another configured shared pool, None or empty for none."""
        self.put(GivenAuthority("pool", Rank.POOL, outside_pool(pool or None)))

    def rulings(self, state: DesiredState) -> Rulings:
        """Return the rulings in force, down to the first complete one; a pool that this names none of is that of the
        next one that does."""
        rulings: list[Ruling] = []
        complete, pool = False, None
        for authority in self._by_rank:
            assignments = authority.assignments(state)
            if assignments is None:
                continue
            if not complete:
                rulings.append(Ruling(authority.name, assignments))
                complete = assignments.complete
            pool = assignments.pool if pool is None else pool
            if complete and pool is not None:
                break
        return Rulings(tuple(rulings), pool)
