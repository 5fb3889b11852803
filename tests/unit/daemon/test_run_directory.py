"""The run directory goes from under a watcher: what was in it comes back, or is another's for good."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import need_root, need_unshare

from vmpin.config import loading as config
from vmpin.config.settings import Config
from vmpin.daemon.run_directory import Listener, RunDirectory
from vmpin.errors import ConfigError, LockHeldError, WatcherError
from vmpin.host import sockets
from vmpin.host.lock import Lock


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return config.load(None, {}, {"paths.run": str(tmp_path / "run")})


@pytest.fixture
def lock(settings: Config) -> Iterator[Lock]:
    with Lock(settings.paths.lock_file) as held:
        yield held


class Other:
    """A process that holds the lock that lies there now."""

    def __init__(self, settings: Config) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from pathlib import Path; from vmpin.host.lock import Lock\n"
             "with Lock(Path(sys.argv[1])): print('held', flush=True); input()", str(settings.paths.lock_file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate("\n")


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.connect(os.fspath(path))
        except OSError:
            return False
        return True


# --- the lock --------------------------------------------------------------------------------------------------------

def test_a_lock_whose_file_is_gone_or_another_is_not_held(settings: Config, lock: Lock) -> None:
    assert lock.held()
    settings.paths.lock_file.unlink()
    assert not lock.held()
    settings.paths.lock_file.touch()
    assert not lock.held()
    lock.again()
    assert lock.held()
    assert settings.paths.lock_file.read_text() == f"{os.getpid()}\n"
    shutil.rmtree(settings.paths.run)
    lock.again()
    assert lock.held()


def test_a_lock_that_another_holds_by_now_is_not_taken(settings: Config, lock: Lock) -> None:
    shutil.rmtree(settings.paths.run)
    fds = len(os.listdir("/proc/self/fd"))
    with Other(settings) as other:
        with pytest.raises(WatcherError, match=f"another vmpin \\(pid {other.process.pid}\\) is at work"):
            lock.again()
        assert not lock.held()
    assert len(os.listdir("/proc/self/fd")) == fds
    lock.again()
    assert lock.held()


def test_its_own_lock_that_could_not_be_seen_for_a_moment_is_not_called_anothers(
        settings: Config, lock: Lock) -> None:
    """The watcher would end, as before a directory that is another's by now."""
    run = settings.paths.run
    run.rename(run.with_name("away"))
    assert not lock.held()
    run.with_name("away").rename(run)
    with pytest.raises(WatcherError) as raised:
        lock.again()
    assert not isinstance(raised.value, LockHeldError)
    assert lock.held()
    with pytest.raises(LockHeldError):
        Lock(lock.path).__enter__()


def test_a_fifo_in_the_locks_place_is_reported(settings: Config) -> None:
    settings.paths.run.mkdir()
    os.mkfifo(settings.paths.lock_file)
    with pytest.raises(WatcherError, match="is no regular file"), Lock(settings.paths.lock_file):
        pass


# --- the sockets -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("what", ["everything", "hook", "control", "status", "lock"])
def test_what_was_removed_is_made_again(settings: Config, lock: Lock, what: str) -> None:
    directory = RunDirectory(settings, lock)
    directory.open()
    assert not directory.renew(settings)
    if what == "everything":
        shutil.rmtree(settings.paths.run)
    else:
        {"hook": settings.paths.hook_socket, "control": settings.paths.control_socket,
         "status": settings.paths.status_socket,
         "lock": settings.paths.lock_file}[what].unlink()
    assert directory.renew(settings)
    assert lock.held()
    assert answers(settings.paths.hook_socket)
    assert answers(settings.paths.control_socket)
    assert answers(settings.paths.status_socket)
    assert not directory.renew(settings)
    directory.close()
    assert sorted(os.listdir(settings.paths.run)) == [settings.paths.lock_file.name, "status"]
    assert os.listdir(settings.paths.status_socket.parent) == []


def test_a_socket_that_another_put_there_is_replaced_while_the_lock_is_held(settings: Config, lock: Lock) -> None:
    directory = RunDirectory(settings, lock)
    directory.open()
    settings.paths.hook_socket.unlink()
    settings.paths.hook_socket.write_text("in the way")
    assert directory.renew(settings)
    assert answers(settings.paths.hook_socket)
    directory.close()


def test_another_watchers_directory_is_left_as_it_is(settings: Config, lock: Lock) -> None:
    directory = RunDirectory(settings, lock)
    directory.open()
    shutil.rmtree(settings.paths.run)
    with Other(settings), sockets.listen(settings.paths.hook_socket):
        with pytest.raises(WatcherError, match="another vmpin"):
            directory.renew(settings)
        directory.close()
        assert answers(settings.paths.hook_socket)
    assert settings.paths.hook_socket.exists()


def test_where_it_cannot_be_made_it_is_tried_again(settings: Config, lock: Lock) -> None:
    directory = RunDirectory(settings, lock)
    directory.open()
    shutil.rmtree(settings.paths.run)
    settings.paths.run.write_text("in the way")
    with pytest.raises(WatcherError, match="File exists") as found:
        directory.renew(settings)
    assert not isinstance(found.value, LockHeldError)
    settings.paths.run.unlink()
    settings.paths.run.mkdir()
    settings.paths.hook_socket.mkdir()
    with pytest.raises(IsADirectoryError):
        directory.renew(settings)
    settings.paths.hook_socket.rmdir()
    assert directory.renew(settings)
    assert answers(settings.paths.hook_socket)
    directory.close()


def test_a_lock_that_cannot_be_written_is_left_to_be_taken_again(settings: Config, lock: Lock) -> None:
    """A full file system (ENOSPC), as a file size limit of 0 does it (EFBIG)."""
    shutil.rmtree(settings.paths.run)
    before, fds = resource.getrlimit(resource.RLIMIT_FSIZE), len(os.listdir("/proc/self/fd"))
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        for _ in range(2):  # the first failure does not keep the file locked against the second try
            with pytest.raises(WatcherError, match="File too large") as found:
                lock.again()
            assert not isinstance(found.value, LockHeldError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(os.listdir("/proc/self/fd")) == fds
    lock.again()
    assert lock.held()


def test_a_blocked_control_socket_leaves_the_hooks_served(settings: Config, lock: Lock) -> None:
    async def run() -> None:
        renewed: list[bool] = []
        directory = RunDirectory(settings, lock, lambda: renewed.append(True))
        directory.open()

        async def upper(raw: bytes, uid: int) -> bytes:
            return raw.upper()

        serving = asyncio.create_task(directory.restarted(
            lambda: sockets.serve(directory.hook.dup(), 100, upper, line=True, deadline=60.0))())
        shutil.rmtree(settings.paths.run)
        settings.paths.control_socket.mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            directory.renew(settings)
        assert renewed == [True]
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_unix_connection(settings.paths.hook_socket)
            writer.write(b"hello\n")
            assert await reader.readline() == b"HELLO\n"
            writer.close()
        with pytest.raises(IsADirectoryError):
            directory.control.dup()
        hook = settings.paths.hook_socket.stat().st_ino
        with pytest.raises(IsADirectoryError):
            directory.renew(settings)
        assert renewed == [True]
        settings.paths.control_socket.rmdir()
        assert directory.renew(settings)
        assert answers(settings.paths.control_socket)
        assert settings.paths.hook_socket.stat().st_ino == hook
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        directory.close()

    asyncio.run(run())


# --- who serves them -------------------------------------------------------------------------------------------------

def test_a_source_is_started_again_when_its_socket_was_made_again(settings: Config, lock: Lock) -> None:
    async def run() -> None:
        directory = RunDirectory(settings, lock)
        directory.open()

        async def upper(raw: bytes, uid: int) -> bytes:
            return raw.upper()

        async def asked() -> bytes:
            async with asyncio.timeout(120):
                reader, writer = await asyncio.open_unix_connection(settings.paths.control_socket)
                writer.write(b"hello\n")
                line = await reader.readline()
                writer.close()
                return line

        serving = asyncio.create_task(directory.restarted(
            lambda: sockets.serve(directory.control.dup(), 100, upper, line=True, deadline=60.0))())
        assert await asked() == b"HELLO\n"
        for _ in range(3):
            shutil.rmtree(settings.paths.run)
            assert directory.renew(settings)
            assert await asked() == b"HELLO\n"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        directory.close()

    asyncio.run(run())


def test_a_source_that_fails_by_itself_fails(settings: Config, lock: Lock) -> None:
    async def run() -> None:
        directory = RunDirectory(settings, lock)
        directory.open()

        async def broken() -> None:
            raise OSError("broken")

        with pytest.raises(OSError, match="broken"):
            await directory.restarted(broken)()
        directory.close()

    asyncio.run(run())


# --- a listener ------------------------------------------------------------------------------------------------------

@pytest.mark.root
def test_a_socket_that_cannot_be_given_to_its_group_leaves_nothing() -> None:
    """A user cannot give a file to a group that is not the user's."""
    need_root()
    script = ("import os, sys; from pathlib import Path; from vmpin.daemon.run_directory import Listener\n"
              "os.setgroups([]); os.setgid(12345); os.setuid(12345); listener = Listener(Path(sys.argv[1], 'sock'))\n"
              "def opened():\n"
              "    try: listener.open('0')\n"
              "    except PermissionError: return len(os.listdir('/proc/self/fd'))\n"
              "print(opened() - opened(), listener.path.exists())\n")
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o777)
        child = subprocess.run([sys.executable, "-c", script, open_to_all], capture_output=True, text=True, check=True)
    assert (child.stdout, child.stderr) == ("0 False\n", "")


@pytest.mark.root
def test_a_socket_that_cannot_be_removed_keeps_no_watcher_from_its_end(tmp_path: Path) -> None:
    """Features would not give back what they changed. A mount point is one (EBUSY), as all are on a disk that has
    become read-only."""
    need_root()
    need_unshare("-m")  # where mounts are permitted
    settings = config.load(None, {}, {"paths.run": str(tmp_path / "run")})
    with Lock(settings.paths.lock_file) as lock:
        directory = RunDirectory(settings, lock)
        directory.open()
        subprocess.run(["mount", "--bind", settings.paths.hook_socket, settings.paths.hook_socket], check=True)
        try:
            directory.close()
            assert settings.paths.hook_socket.exists()
        finally:
            subprocess.run(["umount", settings.paths.hook_socket], check=True)
        assert not settings.paths.control_socket.exists()


def test_a_listener_without_a_socket_says_why_and_keeps_nothing_of_each_attempt(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "sock")
    with pytest.raises(ConfigError):
        listener.open("no-such-group")
    frames = []
    for _ in range(3):
        with pytest.raises(ConfigError, match="no group 'no-such-group'") as caught:
            listener.dup()
        frames.append(len(caught.traceback))
    assert frames == frames[:1] * 3
