"""Keeps a reconciler's state over a restart: the state file, the notes for what cannot wait for it, and the original
masks a second time, as they alone cannot be rebuilt from what runs.

A failure is logged once, and everything else goes on.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.errors import StateFileError
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.reconcile import state_file, state_format
from vmpin.reconcile.state_format import SavedState

logger = logging.getLogger(__name__)


class StateStore:
    """:param boot_id: files of another boot are not used.
    :param originals: the second file of the original masks; None for one beside the state file."""

    def __init__(self, state: Path, notes: Path, boot_id: str, originals: Path | None = None) -> None:
        self._state, self._notes, self._boot_id = state, notes, boot_id
        self._originals = originals or state.with_name("originals.json")
        #: Neither file had the original masks when they were loaded: what vmpin set in this boot is not known.
        self.lost = False
        self._copied: Mapping[SandboxId, OriginalMasks] | None = None
        #: Why the state could not be saved when it was last tried, "" if it could.
        self.failing = ""
        self._unnoted = False
        self._written: state_format.Written = {}

    def load(self, set_aside: bool) -> SavedState:
        """Return what was saved last, with the notes since. :param set_aside: whether a damaged file is moved away."""
        kept, trouble = state_file.load_kept(self._state, self._boot_id, set_aside)
        if trouble:
            logger.warning("%s", trouble)
        if kept is None:
            kept, trouble = state_file.load_kept(self._originals, self._boot_id, set_aside)
            if trouble:
                logger.warning("%s", trouble)
            self.lost = kept is None
        return state_file.with_notes(self._notes, self._boot_id, kept or SavedState())

    def save(self, kept: SavedState) -> bool:
        """Replace the state file, and remove the notes that it contains. :returns: False when that failed."""
        try:
            self._copy(kept.originals)
            state_file.save(self._state, self._boot_id, kept, self._written)
        except StateFileError as err:
            if str(err) != self.failing:
                logger.error("%s (%s)", err, err.hint)
            self.failing = str(err)
            return False
        if self.failing:
            logger.info("%s: the state can be saved again", self._state)
        self.failing = ""
        self._notes.unlink(missing_ok=True)
        return True

    def _copy(self, originals: Mapping[SandboxId, OriginalMasks]) -> None:
        """Write the original masks a second time, if they changed. :raises StateFileError:"""
        exists = self._originals.exists()
        if (originals and not exists) or (exists and originals != self._copied):
            state_file.save(self._originals, self._boot_id, SavedState(originals=originals))
            self._copied = dict(originals)

    def note(self, sandbox: SandboxId, main: ThreadId, had: CpuSet) -> None:
        """Append a process's original mask to the notes, ahead of the state file."""
        try:
            state_file.note(self._notes, self._boot_id, sandbox, main, had)
        except StateFileError as err:
            if not self._unnoted:
                logger.error("%s (%s)", err, err.hint)
            self._unnoted = True
        else:
            self._unnoted = False
