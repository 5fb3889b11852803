"""What keys of a feature describe in a scenario, and what comes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from vmpin.domain.held_cpus import HeldCpus


class PlayedPart(NamedTuple):
    """What comes of a feature's part of a scenario.

    :param members: of the document that `vmpin plan --scenario -o json` prints. :param lines: of its text.
    :param refused: something cannot be as the scenario has it. :param held: which CPUs containers have then."""

    members: Mapping[str, Any]
    lines: Sequence[str]
    refused: bool
    held: HeldCpus | None


class ScenarioPart(Protocol):
    """What a feature's keys describe."""

    def played(self) -> PlayedPart:
        """Return what comes of it."""
