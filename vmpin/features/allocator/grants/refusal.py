"""A refusal: its kind, by which refusals are counted, and its reason, a sentence with numbers for people.

The code that finds the reason sets the kind; no program reads the sentence, so its text may change.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class RefusalKind(enum.StrEnum):
    """The values of the label `reason` of vmpin_allocation_refusals_total."""

    CPUS = "cpus"  #: Too few CPUs are free.
    ALIGNMENT = "alignment"  #: None are aligned as asked.
    REQUEST = "request"  #: The container may not have what it asks for.


class Refusal(NamedTuple):
    kind: RefusalKind
    reason: str
