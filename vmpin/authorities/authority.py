"""The authorities of a node: the programs and settings that decide which container owns which CPUs. `Rank` (in
domain.assignments) is the table of all authorities in their order; `Authorities` derives the rulings in force from
those that a node has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Assignments, Rank, Ruling, Rulings, by_annotation, by_pool
from vmpin.domain.desired_state import DesiredState
from vmpin.named_tuple import NamedTuple


class Authority(Protocol):
    """Decides which container owns which CPUs."""

    @property
    def rank(self) -> Rank: ...

    def assignments(self, state: DesiredState) -> Assignments | None:
        """The decision; None if the authority does not rule on this node. Called in every pass, so it returns the same
        object while the decision does not change.
        :param state: every container that a source has reported."""


class GivenAuthority(NamedTuple):
    """An authority whose decision does not depend on the node's containers."""

    rank: Rank
    given: Assignments | None

    def assignments(self, state: DesiredState) -> Assignments | None:
        """`given`."""
        return self.given


class Authorities:
    """Authorities, one of each rank. `declared` and `pool` are on every node.
    :param pool: the configured shared pool, None or empty for none. :param more: the other authorities."""

    def __init__(self, pool: CpuSet | None, more: Iterable[Authority]) -> None:
        self._by_rank: dict[Rank, Authority] = {}
        for authority in (*more, GivenAuthority(Rank.DECLARED, Assignments(rule=by_annotation))):
            self.put(authority)
        self.use_pool(pool)

    def put(self, authority: Authority, rules: bool = True) -> None:
        """Add an authority, or replace the one of its rank. :param rules: False: remove it."""
        if rules:
            self._by_rank[authority.rank] = authority
        else:
            self._by_rank.pop(authority.rank, None)

    def use_pool(self, pool: CpuSet | None) -> None:
        """Use another configured shared pool, None or empty for none."""
        self.put(GivenAuthority(Rank.POOL, Assignments(pool=pool or None, rule=by_pool)))

    def listing(self, state: DesiredState) -> tuple[Ruling, ...]:
        """The authorities that list owners of CPUs, the strongest first: also those that a stronger one keeps from
        ruling, and none that derives owners from cpusets."""
        return tuple(Ruling(rank.label, assignments) for rank, authority in sorted(self._by_rank.items())
                     if rank is not Rank.OBSERVED and (assignments := authority.assignments(state)) is not None
                     and (assignments.exclusive or assignments.complete))

    def rulings(self, state: DesiredState) -> Rulings:
        """The rulings in force, from the strongest authority down to the first complete one. If none of them has a
        shared pool, that of the next weaker authority is used. With a complete ruling or a pool, another program
        decides on CPUs, and ownership is not observed."""
        rulings: list[Ruling] = []
        complete, pool = False, None
        for rank, authority in sorted(self._by_rank.items()):
            if rank is Rank.OBSERVED and (complete or pool is not None):
                break
            assignments = authority.assignments(state)
            if assignments is None:
                continue
            if not complete:
                rulings.append(Ruling(rank.label, assignments))
                complete = assignments.complete
            pool = assignments.pool if pool is None else pool
            if complete and pool is not None:
                break
        return Rulings(tuple(rulings), pool)
