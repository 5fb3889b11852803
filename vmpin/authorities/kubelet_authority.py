"""The authority `kubelet`: the checkpoint of its CPU manager decides if the policy is static, on every container.

The static policy writes its checkpoint first (at admission), and the cpusets of running containers up to its reconcile
period later (pkg/kubelet/cm/cpumanager: cpuManagerReconcilePeriod, 10 s). The kubelet writes a file beside the
checkpoint and renames it (pkg/kubelet/util/store/filestore.go), so an opened file is one checkpoint, and a change
shows as an event of its directory (daemon.feeds)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from vmpin.authorities.authority import GivenAuthority
from vmpin.domain.assignments import Assignments, Rank
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.errors import SourceError
from vmpin.host import boottime
from vmpin.host.files import Stamp, lasting_stamp, open_regular, stamp
from vmpin.runtime.kubelet import MAX_BYTES, NAME, parse_checkpoint

_TRIES = 3  #: Attempts to read a file that is written to meanwhile.


class KubeletCheckpoint:
    """The checkpoint in `directory` (/var/lib/kubelet), read again after each change. If a checkpoint of the static
    policy is removed, its last content stays in force: the kubelet has it in memory, and writes it again at its next
    allocation. Only a checkpoint with another policy ends it.
    :param warn: called with a line for each new trouble. :param last: the last good checkpoint of an earlier process
    in this boot."""

    def __init__(self, directory: Path, warn: Callable[[str], None], last: CpuManagerState | None = None) -> None:
        self.path = directory / NAME
        self.warn = warn
        #: When the checkpoint in force was written, CLOCK_REALTIME ns; 0 for none.
        self.written = 0 if last is None else last.written
        self.stale = False  #: Whether the file is gone, and the last good checkpoint is in force.
        self.trouble = ""  #: The trouble with the current file, "" for none.
        self.bad = 0  #: Count of unusable files.
        #: When the file was last checked (CLOCK_BOOTTIME ns).
        self._checked = 0
        self._stamp: Stamp | None = None
        self._raw: bytes | None = None
        self._usable, self._state = False, last
        self._warned: set[str] = set()

    def read(self) -> CpuManagerState | None:
        """Read the file if it has changed.
        :returns: the checkpoint in force, the same object while it does not change; None without one. An unusable file
            leaves the previous checkpoint in force."""
        before, self._checked = self._checked, boottime.now()
        try:
            if stamp(os.stat(self.path, follow_symlinks=False)) == self._stamp:
                return self._state
            raw, info = _load(self.path)
        except (FileNotFoundError, NotADirectoryError):
            self._stamp = self._raw = None
            return self._gone()
        except (OSError, SourceError) as err:
            # No bytes were read: the next ones are parsed even if they have not changed.
            self._stamp = self._raw = None
            return self._refused(f"{self.path}: {err.strerror}" if isinstance(err, OSError) else str(err))
        self.stale = False
        self._stamp = lasting_stamp(info)
        if raw == self._raw:
            if self._usable:
                self.written = info.st_mtime_ns
            return self._state
        self._raw, self._usable = raw, False
        reserved = self._state.reserved if self._state is not None else ()
        try:
            self._state = parse_checkpoint(raw, str(self.path), reserved)._replace(written=info.st_mtime_ns).dated(
                boottime.of_wall(info.st_mtime_ns, before), self._state)
        except SourceError as err:
            return self._refused(str(err))
        self.written, self._usable = info.st_mtime_ns, True
        self._note(f"{self.path}: {self._state.trouble}" if self._state.trouble else "")
        return self._state

    def _gone(self) -> CpuManagerState | None:
        self.stale = self._state is not None and self._state.static
        if not self.stale:
            self.written, self._state = 0, None
        self._note(f"{self.path}: is gone: the last checkpoint is used until there is another" if self.stale else "")
        return self._state

    def _refused(self, why: str) -> CpuManagerState | None:
        trouble = why + (": the checkpoint before it is used" if self._state else "")
        self.bad += trouble != self.trouble
        self._note(trouble)
        return self._state

    def _note(self, trouble: str) -> None:
        """Record the trouble, and warn of a new one."""
        self.trouble = trouble
        if not trouble or len(self._warned) > 100:
            self._warned.clear()
        if trouble and trouble not in self._warned:
            self._warned.add(trouble)
            self.warn(trouble)


def _load(path: Path) -> tuple[bytes, os.stat_result]:
    """A file's bytes at one moment, and its status: the kubelet never writes into the file, but an editor may.
    :raises SourceError: if it is too long, or constantly written to. :raises OSError: if it cannot be read."""
    fd = open_regular(path)
    try:
        info = os.fstat(fd)
        for _ in range(_TRIES):
            if info.st_size > MAX_BYTES:
                raise SourceError(str(path), f"is {info.st_size} bytes long, at most {MAX_BYTES} are read")
            raw = os.pread(fd, MAX_BYTES, 0)
            before, info = info, os.fstat(fd)
            if stamp(before) == stamp(info) and len(raw) == info.st_size:
                return raw, info
    finally:
        os.close(fd)
    raise SourceError(str(path), "is being written to")


def kubelet_authority(kubelet: CpuManagerState | None) -> GivenAuthority:
    """The authority `kubelet` by a checkpoint. :param kubelet: None without one."""
    return GivenAuthority(Rank.KUBELET, assignments_of(kubelet))


def assignments_of(kubelet: CpuManagerState | None) -> Assignments | None:
    """The assignments in a checkpoint; None without one, and if its policy is not static. The shared pool is the
    default set, even if that is empty."""
    if kubelet is None or not kubelet.static:
        return None
    return Assignments({**kubelet.entries, **{(uid, ""): cpus for uid, cpus in kubelet.pods.items()}},
                       kubelet.default, complete=True, since=kubelet.since)
