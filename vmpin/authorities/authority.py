"""What an authority has to answer, and one whose answer is handed over.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from vmpin.domain.assignments import Assignments, Rank
from vmpin.domain.desired_state import DesiredState


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
