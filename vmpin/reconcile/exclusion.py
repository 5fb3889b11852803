"""Restores the masks of sandboxes that vmpin placed and that `watch.only` excludes since.

Called by the reconciler in each resync that acts. What stays out: leaving a node (teardown), guests' maps (guests).
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from vmpin.domain.model import SandboxId
from vmpin.pinning.apply import Outcome

if TYPE_CHECKING:
    from vmpin.reconcile.reconciler import Reconciler

logger = logging.getLogger(__name__)


class Exclusion:
    def __init__(self) -> None:
        #: Sandboxes that still have masks of vmpin's; each is logged once.
        self._refused: set[SandboxId] = set()

    def restore(self, reconciler: Reconciler) -> None:
        """Set the original masks, and forget them. A mask that the kernel refuses is tried again at the next call."""
        only = reconciler.inventory.only
        excluded = [sandbox for sandbox in reconciler.originals.masks if not fnmatchcase(sandbox, only)]
        self._refused &= set(excluded)
        for sandbox in excluded:
            results = reconciler.restore(sandbox)
            if sandbox not in reconciler.originals.masks:
                logger.info("excluded sandbox=%s only=%s: its threads have their masks from before, changed=%d",
                            sandbox, only, sum(result.got != result.operation.was for result in results
                                               if result.outcome is not Outcome.GONE))
            elif sandbox not in self._refused:
                self._refused.add(sandbox)
                why = next((result.why for result in results if result.outcome is Outcome.REFUSED), "not all were met")
                logger.error("excluded sandbox=%s only=%s: not all of its threads have their masks from before: %s",
                             sandbox, only, why)
