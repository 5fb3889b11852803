"""The cpuset.cpus files of the cgroups that containers' first processes and VMMs are in, by process.

The watcher watches these files.
"""

from collections.abc import Container, Iterable
from pathlib import Path

from vmpin.domain.model import ThreadId
from vmpin.host.cgroup import Cgroups


class CpusetFiles:
    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        #: None for a process of the top cgroup, or of none.
        self._file_of: dict[ThreadId, Path | None] = {}

    def paths(self, processes: Iterable[ThreadId], turn: int) -> set[Path]:
        """The files of these processes; all others are forgotten.
        :param turn: a number that grows with each pass: the cgroup of a process is read when it is first named here,
            and then in one of sixteen passes."""
        found: dict[ThreadId, Path | None] = {}
        for process in processes:
            if process in self._file_of and (process.tid ^ turn) & 15:
                found[process] = self._file_of[process]
            else:
                path = self._cgroups.cpuset_path(process.tid)
                found[process] = None if path is None or self._cgroups.is_top(path) else (
                    self._cgroups.cpus_file(path))
        self._file_of = found
        return {path for path in found.values() if path is not None}

    def forget(self, process: ThreadId) -> None:
        """Have the cgroup of a process read at the next call of `paths`: the runtime may be moving it."""
        self._file_of.pop(process, None)

    def among(self, process: ThreadId, files: Container[Path]) -> bool:
        """Whether the file of a process is one of `files`."""
        path = self._file_of.get(process)
        return path is not None and path in files
