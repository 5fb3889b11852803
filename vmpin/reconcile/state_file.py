"""The state file: state that cannot be read back from the machine, with a checksum, always replaced as a whole.

It has the containers that only hooks reported, requests to the runtime in progress, the original masks, the previous
one-to-one pairs, the identified vCPU threads of VMMs without thread names, the kubelet's last good checkpoint, and the
suspended sandboxes. It lies in /run, and is valid for one boot. A damaged file is set aside, and the state is rebuilt
from the running system, except for the original masks, which are in a second file too. Notes have original masks that
are not yet in the state file."""

from __future__ import annotations

import json
import logging
import os
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vmpin.bounded import MAX_INT64, MAX_PID, checked_whole, load_json
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.errors import StateFileError
from vmpin.host import boottime
from vmpin.host.files import open_regular, read_regular
from vmpin.pinning.original_masks import OriginalMasks, ProcessMasks
from vmpin.reconcile.state_format import VERSION, SavedState, Written, dumps, text_of, unpack

logger = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
#: The mode of a file that may lack original masks, because a later one could not be written.
_BEHIND = 0o400
#: What a file of another boot has; and one that is missing, damaged or unreadable.
_OTHER_BOOT, _UNREAD = SavedState(), SavedState()
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class StateStore:
    """Loads and saves the state file, the notes, and the second file of the original masks. A failure is logged once.
    :param boot_id: files of another boot are not used. :param originals: the second file."""

    def __init__(self, state: Path, notes: Path, boot_id: str, originals: Path) -> None:
        self._state, self._notes, self._boot_id, self._originals = state, notes, boot_id, originals
        #: Whether original masks may be missing: neither file had them, or both are behind. It is then unknown which
        #: masks vmpin set in this boot.
        self.lost = False
        self._copied: Mapping[SandboxId, OriginalMasks] | None = None
        #: Why the last attempt to save failed, "" if it succeeded.
        self.failing = ""
        #: What could not be loaded at the start, as text; "" for nothing.
        self.damage = ""
        self._marked = False  #: Whether the files were marked as behind since they were written.
        self._unnoted = False
        self._written: Written = {}

    def load(self, set_aside: bool) -> SavedState:
        """The state as saved last, with the notes since. :param set_aside: whether to rename a damaged file."""
        # Before a damaged one is set aside.
        state_behind, copy_behind = _is_behind(self._state), _is_behind(self._originals)
        kept, trouble = load(self._state, self._boot_id, set_aside)
        troubles = [trouble]
        self.lost = copy_behind and kept is not _OTHER_BOOT
        if kept is _UNREAD or ((state_behind or copy_behind) and kept is not _OTHER_BOOT):
            copy, trouble = load(self._originals, self._boot_id, set_aside)
            troubles.append(trouble)
            self.lost = self.lost or copy is _UNREAD
            if copy is not _UNREAD:  # it is written first
                kept = kept._replace(originals=copy.originals)
        for trouble in filter(None, troubles):
            logger.warning("%s", trouble)
        self.damage = "; ".join(filter(None, troubles))
        return with_notes(self._notes, self._boot_id, kept)

    def save(self, kept: SavedState) -> bool:
        """Replace the state file, and remove the notes, which it contains. :returns: False if that failed."""
        behind = [self._state, self._originals]
        try:
            self._copy(kept.originals)
            behind = [self._state]
            save(self._state, self._boot_id, kept, self._written)
            if self._marked:
                self._copied = None
                self._copy(kept.originals)
                self._marked = False
        except StateFileError as err:
            if str(err) != self.failing:
                logger.error("%s (%s)", err, err.hint)
            self.failing = str(err)
            self._mark_behind(*behind)
            return False
        if self.failing:
            logger.info("%s: the state can be saved again", self._state)
        self.failing = ""
        with suppress(OSError):  # it is gone, or a directory
            self._notes.unlink()
        return True

    def _mark_behind(self, *paths: Path) -> None:
        """Mark files, by their modes, which takes no space, as ones that may lack original masks; the next save
        replaces them."""
        self._marked = True
        for path in paths:
            with suppress(OSError):
                os.chmod(path, _BEHIND)

    def _copy(self, originals: Mapping[SandboxId, OriginalMasks]) -> None:
        """Write the second file of the original masks, if they changed. :raises StateFileError:"""
        exists = os.path.exists(self._originals)
        if (originals and not exists) or (exists and originals != self._copied):
            save(self._originals, self._boot_id, SavedState(originals=originals))
            self._copied = dict(originals)

    def note(self, sandbox: SandboxId, main: ThreadId, original: CpuSet) -> None:
        """Append a process's original mask to the notes."""
        try:
            note(self._notes, self._boot_id, sandbox, main, original)
        except StateFileError as err:
            if not self._unnoted:
                logger.error("%s (%s)", err, err.hint)
            self._unnoted = True
            self._mark_behind(self._state, self._originals)
        else:
            self._unnoted = False


def _is_behind(path: Path) -> bool:
    """Whether a file was marked as one that may lack original masks."""
    try:
        return stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode) == _BEHIND
    except OSError:
        return False


def save(path: Path, boot_id: str, kept: SavedState, written: Written | None = None) -> None:
    """Replace the file. :raises StateFileError: the old file is then still intact.
    :param written: pass the same object at each call, so that only changed sandboxes are encoded: hundreds of them
    take eight milliseconds, in which no new thread is placed."""
    body = text_of(boot_id, kept, {} if written is None else written)
    try:
        replace(path, sealed(body))
    except OSError as err:
        raise StateFileError(f"{path}: the state cannot be saved: {err.strerror}", "free space or inodes there; until "
                             "then a restart forgets what only hooks reported, and the original masks") from err


def note(path: Path, boot_id: str, sandbox: SandboxId, main: ThreadId, mask: CpuSet) -> None:
    """Append a process's original mask (EMPTY: unknown) to the notes, which takes a hundredth of the time of the state
    file. :raises StateFileError: if it cannot be written."""
    text = json.dumps([boot_id, sandbox, main.tid, main.starttime, str(mask) if mask else None])
    left = f"\n{text}\n".encode()  # begins a new line: a full disk may have cut the last one
    try:
        fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while left:  # an almost full disk takes a part, without an error
                left = left[os.write(fd, left):]
        finally:
            os.close(fd)
    except OSError as err:
        hint = "free space or inodes there"
        raise StateFileError(f"{path}: an original mask cannot be noted: {err.strerror}", hint) from err


def with_notes(path: Path, boot_id: str, kept: SavedState) -> SavedState:
    """Add the original masks of the notes. Invalid lines are skipped, such as a last one that was cut."""
    try:
        raw, _ = read_regular(path, MAX_BYTES)
    except OSError:
        return kept
    originals = dict(kept.originals)
    for line in raw.splitlines():
        try:
            boot, name, tid, starttime, mask = load_json(line)
            if boot != boot_id:
                continue
            # Else the state file, which takes them over, could not be loaded.
            main = ThreadId(checked_whole(tid, MAX_PID), checked_whole(starttime, MAX_INT64))
            sandbox = SandboxId(str(name))
            masks = originals.get(sandbox, OriginalMasks())
            cpus = EMPTY if mask is None else CpuSet.parse(mask)
            if (cpus or mask is None) and main not in masks.processes:
                originals[sandbox] = OriginalMasks({**masks.processes, main: ProcessMasks(cpus)})
        except (ValueError, TypeError, RecursionError):
            continue
    return kept if originals == kept.originals else kept._replace(originals=originals)


def load(path: Path, boot_id: str, set_aside: bool = True) -> tuple[SavedState, str]:
    """Read the file. :returns: its state, and the trouble with it ("" for none): a damaged file counts as empty, as
    does one of another boot.
    :param set_aside: whether to rename a damaged file to `NAME.bad`; only while the lock is held."""
    raw, trouble = read_kept(path, MAX_BYTES)
    if raw is None:
        return _UNREAD, trouble
    try:
        body = unsealed(raw, VERSION)
        if body["boot_id"] != boot_id:
            return _OTHER_BOOT, ""
        # A time in the future is replaced by now; otherwise no report would ever be later.
        now = boottime.now()
        return unpack(body, lambda kept: max(0, min(now, kept))), ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        return _UNREAD, set_file_aside(path, err, set_aside)


# Any file that is kept in the run directory


def replace(path: Path, content: bytes) -> None:
    """Write a temporary file, fsync, rename. :raises OSError: the old file is then intact, without a temporary one."""
    temporary = os.fspath(beside(path)[0])
    try:
        try:
            fd = os.open(temporary, _NEW, 0o600)
        except FileExistsError:  # left by a kill, or put there
            os.unlink(temporary)
            fd = os.open(temporary, _NEW, 0o600)
        try:
            while content:
                content = content[os.write(fd, content) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def beside(path: Path) -> tuple[Path, Path]:
    """The paths that may exist beside a file: of an unfinished one, and of one set aside."""
    return path.with_name(f".{path.name}.new"), path.with_name(f"{path.name}.bad")


def read_kept(path: Path, most: int) -> tuple[bytes | None, str]:
    """Read a file. :returns: its bytes, or None and the reason ("" if there is no such file)."""
    try:
        return read_regular(path, most)[0], ""
    except FileNotFoundError:
        return None, ""
    except OSError as err:
        return None, f"{path}: cannot be read: {err.strerror}"


def set_file_aside(path: Path, err: Exception, aside: bool, then: str = "the state is rebuilt from what runs") -> str:
    """Rename an unusable file to `NAME.bad`, if `aside`. :returns: a text with the reason and the consequence.
    :param aside: False for a process without the lock, such as `vmpin doctor`: the watcher may use the file.
    :param then: the consequence."""
    why = str(err)[:200]  # it may quote the file
    if aside:
        _, named = beside(path)
        with suppress(OSError):
            os.replace(path, named)
            return f"{path}: {why}: set aside as {named.name}, {then}"
    return f"{path}: {why}: its content is not used"


def sealed(body: str) -> bytes:
    """The content of a file: JSON with a checksum."""
    return f'{{"crc32":{_digest(body)},"body":{body}}}\n'.encode()


def unsealed(raw: bytes, version: int) -> dict[str, Any]:
    """The JSON in a sealed file. :raises ValueError, KeyError, TypeError: if it is damaged, or of another version."""
    envelope = load_json(raw)
    body: dict[str, Any] = envelope["body"]
    if envelope["crc32"] != _digest(dumps(body)):
        raise ValueError("the checksum is wrong")
    if body["version"] != version:
        raise ValueError(f"version {body['version']!r:.80} is unknown")
    return body


def _digest(body: str) -> int:
    """Protects against torn and rotten files, not against people: the file belongs to root."""
    return zlib.crc32(body.encode())
