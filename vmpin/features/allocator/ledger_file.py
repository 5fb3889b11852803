"""The ledger's file, in the state file's envelope and replaced as a whole; and the assignments that placement follows,
from a ledger or its file: for the watcher, for a pass before its allocator exists, and for commands without a watcher.

It lies in the run directory and is of one boot. A damaged one is set aside: the ledger is then rebuilt from what the
runtime lists.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from vmpin.authorities.authority import GivenAuthority
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Assignments, Owner, Rank
from vmpin.domain.model import ContainerId
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.ledger import Grant, Ledger
from vmpin.features.allocator.texts import grant_data
from vmpin.reconcile.state_file import MAX_BYTES, read_kept, replace, sealed, set_file_aside, unsealed
from vmpin.reconcile.state_format import dumps

logger = logging.getLogger(__name__)

VERSION = 1


class LedgerFile:
    """:param boot_id: a file of another boot is not used: no container of it runs."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path, self._boot_id = path, boot_id
        self._failing = False
        #: Each grant that was written last, and its text.
        self._written: dict[ContainerId, tuple[Grant, str]] = {}

    def load(self, set_aside: bool = True) -> Ledger | None:
        """Return the ledger that was saved last. None where there is none, or it cannot be used.
        :param set_aside: whether to rename a damaged file and to log it; only while the run directory's lock is held.
        """
        raw, trouble = read_kept(self.path, MAX_BYTES)
        if trouble and set_aside:  # no regular file, or too large: the next one replaces it
            why = ValueError(trouble.removeprefix(f"{self.path}: "))
            logger.warning("%s", set_file_aside(self.path, why, aside=True))
        if raw is None:
            return None
        try:
            body = unsealed(raw, VERSION)
            return grant_data.from_data(body["ledger"]) if body["boot_id"] == self._boot_id else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            if set_aside:
                logger.warning("%s", set_file_aside(self.path, err, aside=True))
            return None

    def save(self, ledger: Ledger) -> None:
        """Replace the file. A failure is logged once, and there is no file then: each grant stands in its container's
        annotations, too, but an older ledger would come before these, and take back what was given since."""
        try:
            replace(self.path, sealed(self._text(ledger)))
        except OSError as err:
            with suppress(OSError):
                self.path.unlink()
            if not self._failing:
                logger.error("%s: the ledger cannot be saved: %s; free space or inodes there", self.path, err.strerror)
            self._failing = True
            return
        if self._failing:
            logger.info("%s: the ledger can be saved again", self.path)
        self._failing = False

    def _text(self, ledger: Ledger) -> str:
        """The text of the file, the same that json.dumps would produce, as the checksum depends on it. Grants that
        have not changed since the last one are not encoded again: the runtime waits for an answer meanwhile."""
        texts = {}
        for key in sorted(ledger.grants):
            grant, last = ledger.grants[key], self._written.get(key)
            texts[key] = last if last is not None and last[0] is grant else (grant, dumps(
                grant_data.grant_to_data(grant)))
        self._written = texts
        rest = dumps({"version": VERSION, "boot_id": self._boot_id,
                      "ledger": grant_data.to_data(ledger._replace(grants={}))})
        # Nothing before the grants is text of others.
        before, after = rest.split('"grants":[]', 1)
        return f'{before}"grants":[{",".join([text for _, text in texts.values()])}]{after}'


def assignments_by(ledger: Ledger) -> Assignments:
    """Return the CPUs of the live containers. The next authority decides on a container that the ledger does not have,
    or whose cpuset is another plugin's."""
    exclusive: dict[Owner, CpuSet] = {}
    spare: dict[Owner, CpuSet] = {}
    for grant in ledger.grants.values():
        owner = "", grant.container
        if grant.live and grant.policy is CpuPolicy.EXCLUSIVE and grant.cpus:
            exclusive[owner] = grant.cpus
            if grant.spare:
                spare[owner] = grant.spare
        elif grant.live and grant.policy is not CpuPolicy.EXCLUSIVE and not (grant.left_alone and grant.written):
            exclusive[owner] = EMPTY
    return Assignments(exclusive, ledger.shared, writes=True, spare=spare)


def ledger_authority(assignments: Assignments | None) -> GivenAuthority:
    """Return the authority of the ledger. :param assignments: None where nothing is given out."""
    return GivenAuthority(Rank.LEDGER, assignments)


def kept_assignments(path: Path, boot_id: str) -> Assignments | None:
    """Return the assignments of a watcher in this boot, None where no file shows any. The file stays as it is, so the
    run directory's lock need not be held."""
    ledger = LedgerFile(path, boot_id).load(set_aside=False)
    return None if ledger is None else assignments_by(ledger)
