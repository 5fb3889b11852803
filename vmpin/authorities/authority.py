"""What an authority has to answer, and those of a node in their order (domain.assignments.Rank): the rulings that
follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Assignments, Rank, Ruling, Rulings
from vmpin.domain.desired_state import DesiredState
from vmpin.placement.rulings import DECLARED, outside_pool


class Authority(Protocol):
    """What decides on the CPUs of containers. An answer that did not change is the same object."""

    @property
    def name(self) -> str:
        """The name that status shows as the reason ("by")."""

    @property
    def rank(self) -> Rank: ...

    @property
    def follows_containers(self) -> bool:
        """Whether its decision follows from what containers there are: it is asked in each pass then."""

    def assignments(self, state: DesiredState) -> Assignments | None:
        """Return its decision; None where it does not rule on this node.
        :param state: every container that a source has reported."""


class GivenAuthority(NamedTuple):
    """An authority whose decision does not follow from the containers."""

    name: str
    rank: Rank
    given: Assignments | None
    follows_containers: bool = False

    def assignments(self, state: DesiredState) -> Assignments | None:
        """Return what was handed over."""
        return self.given


class Authorities:
    """:param more: those beside `declared` and `pool`, which every node has.
    :param pool: the configured shared pool, None or empty for none."""

    def __init__(self, pool: CpuSet | None, more: Iterable[Authority] = ()) -> None:
        self._by_rank: list[Authority] = []
        #: The rulings in force; None when they are to be found again.
        self._rulings: Rulings | None = None
        for authority in (*more, GivenAuthority("declared", Rank.DECLARED, DECLARED)):
            self.put(authority)
        self.use_pool(pool)

    def put(self, authority: Authority) -> None:
        """Add an authority, or one that decides otherwise than before; one of the same name is replaced."""
        others = [other for other in self._by_rank if other.name != authority.name]
        self._by_rank = sorted([*others, authority], key=lambda each: each.rank)
        self._rulings = None

    def use_pool(self, pool: CpuSet | None) -> None:
        """Use another configured shared pool, None or empty for none."""
        self.put(GivenAuthority("pool", Rank.POOL, outside_pool(pool or None)))

    def rulings(self, state: DesiredState) -> Rulings:
        """Return the rulings in force, down to the first complete one. Where that names no pool, the next authority's
        is used. Where the shared pool is known, some program decides on CPUs already, and ownership is not observed.
        """
        if self._rulings is None or any(authority.follows_containers for authority in self._by_rank):
            self._rulings = self._decided(state)
        return self._rulings

    def _decided(self, state: DesiredState) -> Rulings:
        rulings: list[Ruling] = []
        complete, pool = False, None
        for authority in self._by_rank:
            if authority.rank is Rank.OBSERVED and (complete or pool is not None):
                break
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
