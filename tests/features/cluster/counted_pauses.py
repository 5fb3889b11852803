"""Pauses of a reporter's loop that are short and counted."""

from __future__ import annotations

import logging
import threading

from vmpin.errors import VmpinError
from vmpin.features.cluster.reporter.loop_pauses import LASTED, Pauses


class CountedPauses(Pauses):
    """`tries` counts errors, `in_a_row` those since the pauses were short last. A connection has lasted at once."""

    def __init__(self, stopping: threading.Event) -> None:
        super().__init__(stopping, 0.001, 0.01)
        self.tries = self.in_a_row = 0

    def after(self, err: VmpinError, level: int = logging.WARNING) -> None:
        self.tries += 1
        self.in_a_row += 1
        super().after(err, level)

    def lasted(self, seconds: float) -> None:
        super().lasted(LASTED)

    def reset(self) -> None:
        self.in_a_row = 0
        super().reset()
