"""A decision of the allocator's, with the ledger that it leaves."""

from __future__ import annotations

from typing import NamedTuple

from vmpin.domain.runtime_call import Adjustment, SideUpdate
from vmpin.features.allocator.grants.ledger import Ledger


class Answer(NamedTuple):
    """A decision. `ledger` is to be kept before the answer is sent. `updates` in their order: those that take CPUs
    away come first. `refusal` is the error for the call, "" for none; the grants are then as before. `notes` are
    lines for the log."""

    ledger: Ledger
    adjustment: Adjustment | None = None
    updates: tuple[SideUpdate, ...] = ()
    refusal: str = ""
    notes: tuple[str, ...] = ()
