"""What was built once: directories outside the tree, named by a hash of what they were made from.

    rootfs-HASH/  kernel-6.1-HASH/  …        each with a lock file beside it, held shared while a node runs from it

A change of the recipe gives another name, so it is built anew; of each kind the two used last are kept. Two runs at
the same time wait for each other's building.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab.errors import LabError

KEPT = 2


def directory() -> Path:
    """VMPIN_LAB_CACHE, or vmpin-lab in the user's cache directory."""
    given = os.environ.get("VMPIN_LAB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(given) if given else Path(base) / "vmpin-lab"
    path = path.absolute()
    if set(str(path)) & set(":,\\\n"):  # they part the options of mount
        raise LabError(f"the cache cannot be in {str(path)!r}: set VMPIN_LAB_CACHE to a path without : , and \\")
    path.mkdir(parents=True, exist_ok=True)
    return path


def find_system_tools() -> None:
    """Have the tools of a build found: who became root by a plain su has no sbin in PATH."""
    path = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/sbin", "/usr/bin", "/bin"]
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys(path))


def name(kind: str, recipe: object) -> str:
    """The name of what `recipe` (plain data) makes."""
    text = json.dumps(recipe, sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def entry(kind: str, recipe: object, make: Callable[[Path, Path], None], fresh: bool = False) -> Iterator[Path]:
    """The directory that `recipe` makes, there until the end of the `with`.

    :param make: fills a directory; the second path is a log to write.
    :param fresh: build it again, with today's packages.
    """
    base = directory()
    path = base / name(kind, recipe)
    with (base / f"{path.name}.lock").open("a") as lock:
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if path.is_dir() and not fresh:
                break
            # From shared to exclusive and back is two steps: in between another may build it, or remove it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if fresh or not path.is_dir():
                _build(path, make)
                fresh = False
        os.utime(path)
        _prune(base, kind)
        yield path


def _build(path: Path, make: Callable[[Path, Path], None]) -> None:
    started = time.monotonic()
    say(f"building {path.name} in {path.parent}")
    partial = path.with_name(f"{path.name}.partial")
    log = path.with_name(f"{path.name}.log")
    log.unlink(missing_ok=True)
    remove(partial)
    partial.mkdir()
    try:
        make(partial, log)
        remove(path)
        partial.rename(path)
    except BaseException:
        remove(partial)
        raise
    say(f"built {path.name} in {time.monotonic() - started:.0f} s")


def _prune(base: Path, kind: str) -> None:
    """Remove what was not used for longest, if no process uses it now."""
    used = {}
    for path in base.glob(f"{kind}-????????????"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if path.is_dir():
                used[path] = path.stat().st_mtime
    for path in sorted(used, key=lambda path: used[path], reverse=True)[KEPT:]:
        _remove_unused(path)


def _remove_unused(path: Path) -> bool:
    lock_file = path.with_name(f"{path.name}.lock")
    with lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        remove(path)
        path.with_name(f"{path.name}.log").unlink(missing_ok=True)
    return True


def clean() -> None:
    """Remove everything that is not in use."""
    base = directory()
    for lock_file in sorted(base.glob("*.lock")):
        path = lock_file.with_suffix("")
        if _remove_unused(path):
            remove(path.with_name(f"{path.name}.partial"))
        else:
            say(f"{path.name} is in use: kept")
    for log in base.glob("*.log"):
        log.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a tree. Nothing is mounted in it: what a build mounts, it mounts where only it sees it (`run`)."""
    if not path.exists():
        return
    if any(os.path.ismount(mount) for mount in (path, *path.glob("root/*"))):
        raise LabError(f"{path}: something is mounted in it; it is not removed")
    shutil.rmtree(path)


#: A command in mount and process namespaces of its own: no other process sees its mounts, and when it or this process
#: ends, however, neither they nor a child of it are left.
PRIVATELY = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private", "--pid",
             "--fork", "--kill-child", "--mount-proc", "--")


def run(argv: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
    """Run a step of a build. :raises LabError: with the end of its output."""
    with log.open("ab") as output:
        output.write(f"+ {' '.join(argv)}\n".encode())
        output.flush()
        start = output.tell()
        done = subprocess.run([*PRIVATELY, *argv], env=environment, stdin=subprocess.DEVNULL, stdout=output,
                              stderr=output, check=False)
    if done.returncode != 0:
        tail = log.read_bytes()[start:].decode(errors="replace").splitlines()[-25:]
        raise LabError("\n".join([f"{argv[0]} failed with {done.returncode}; the whole of it is in {log}", *tail]))


def need(*names: str) -> None:
    """:raises LabError: when a tool is not installed."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise LabError(f"not installed: {', '.join(missing)} (Debian 12: debootstrap, kmod, util-linux, git)")


def say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)
