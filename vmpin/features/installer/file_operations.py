"""Writing and removing single files of a node's configuration, as operations that describe themselves.

A file is written whole or not at all, and keeps the owner, mode and labels of the one that it replaces."""

import contextlib
import errno
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vmpin.errors import UsageError

#: As the kernel follows (MAXSYMLINKS).
_MAX_LINKS = 40


@dataclass(frozen=True)
class WriteFile:
    """Puts `data` at `path`, whole or not at all. An `executable` one is run with --help before it takes the place. An
    existing file keeps its owner, mode and extended attributes (ACLs, labels), and a symbolic link to it stays a link.
    A hard link is parted: both cannot be kept whole."""

    path: Path
    data: bytes
    executable: bool = False

    def describe(self) -> str:
        return f"write {self.path}"

    def execute(self) -> None:
        """Write the file, whole or not at all. :raises UsageError: when it cannot be written, or a script cannot be
        run; nothing has changed then."""
        with failing_as(self.describe()):
            path = _behind_links(self.path)
            tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path)
            try:
                _write_through(tmp, self.data, 0o755 if self.executable else 0o644)
                _copy_attributes(path, tmp, 0o555 if self.executable else 0)
                if self.executable:
                    _try_script(tmp)
                tmp.rename(path)
            finally:
                tmp.unlink(missing_ok=True)
            _sync_directory(path.parent)


@dataclass(frozen=True)
class RemoveFile:
    """Removes the file at `path`, which need not be there, and each of `directories` (the deepest first) that is then
    empty. The file lists the directories, so it goes last: before each directory it is moved up one. A removal that
    was interrupted can be completed from there."""

    path: Path
    directories: tuple[Path, ...] = ()

    def describe(self) -> str:
        return f"remove {self.path}" + "".join(f", {path} if it is empty" for path in self.directories)

    def execute(self) -> None:
        """Remove the file and directories. :raises UsageError: when the file cannot be moved or removed."""
        path = self.path
        with failing_as(self.describe()):
            _remove_stale(path)
            for directory in self.directories:
                if directory == path.parent:
                    above = directory.parent / path.name
                    if os.listdir(directory) != [path.name] or os.path.lexists(above):
                        break
                    path = path.rename(above)
                with contextlib.suppress(OSError):
                    directory.rmdir()
            path.unlink(missing_ok=True)
            _sync_directory(path.parent)


Operation = WriteFile | RemoveFile


def missing_directories(path: Path) -> list[Path]:
    """Return the directories that WriteFile would make for a file at `path`, the deepest first."""
    return [parent for parent in path.parents if not os.path.lexists(parent)]


def execute(operations: Sequence[Operation]) -> None:
    """Carry operations out in order. :raises UsageError: at the first that fails; the ones after it are not done."""
    for operation in operations:
        operation.execute()


@contextlib.contextmanager
def failing_as(operation: str) -> Iterator[None]:
    """Turns an OSError into a UsageError that names the operation ("write /etc/x")."""
    try:
        yield
    except OSError as err:
        raise UsageError(f"cannot {operation}: {err.strerror or err}", "run it as root, on a file system that can be "
                         "written") from err


def _remove_stale(path: Path) -> None:
    """Remove what a killed process has left of a new `path`."""
    for name in os.listdir(path.parent):
        pid = name.removeprefix(f".{path.name}.").removesuffix(".tmp")
        if name == f".{path.name}.{pid}.tmp" and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            (path.parent / name).unlink(missing_ok=True)


def _write_through(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)  # whatever the umask is, the runtime has to run it
        file.write(data)
        file.flush()
        os.fsync(fd)


def _behind_links(path: Path) -> Path:
    """The path that symbolic links in the last part of `path` lead to. :raises UsageError: for a link of another
    user's: it may lead to any file (fs.protected_symlinks guards open(2) and not rename)."""
    for _ in range(_MAX_LINKS):
        try:
            info = path.lstat()
        except FileNotFoundError:
            return path
        if not stat.S_ISLNK(info.st_mode):
            return path
        if info.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{path} is a symbolic link of uid {info.st_uid}'s", "name the file itself")
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))


def _copy_attributes(existing: Path, new: Path, bits: int) -> None:
    """Give `new` the owner, mode and extended attributes of `existing`; nothing where there is no such file.
    :param bits: mode bits to set in any case."""
    try:
        info = existing.lstat()
    except FileNotFoundError:
        return
    os.chown(new, info.st_uid, info.st_gid)
    new.chmod(stat.S_IMODE(info.st_mode) | bits)
    with contextlib.suppress(OSError):  # a file system without them
        for name in os.listxattr(existing):
            os.setxattr(new, name, os.getxattr(existing, name))


def _try_script(script: Path) -> None:
    """A directory mounted noexec, or an interpreter that does not start, would fail every container."""
    try:
        subprocess.run([script, "--help"], capture_output=True, timeout=30, check=True, env={})
    except (OSError, subprocess.SubprocessError) as err:
        raise UsageError(f"the hook cannot be run from {script.parent}: {err}",
                         "is the directory mounted noexec? nothing was registered") from err


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
