"""The kernel's inotify, on files of the test's own and on real cgroups."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import lacking, need_root

from vmpin.host.cgroup import Cgroups
from vmpin.host.inotify import IN_DELETE, IN_MODIFY, IN_MOVED_TO, Inotify, InotifyEvent

IN_CREATE = 0x100  #: include/uapi/linux/inotify.h


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    made = Inotify()
    yield made
    made.close()


def test_a_file_renamed_into_a_directory_is_reported_once_and_what_is_done_beside_it_is_not(
        inotify: Inotify, tmp_path: Path) -> None:
    wd = inotify.watch(tmp_path, IN_MOVED_TO)
    assert wd is not None
    assert inotify.read() == []
    (tmp_path / ".tmp").write_bytes(b"x" * 10_000)
    os.rename(tmp_path / ".tmp", tmp_path / "cpu_manager_state")
    assert inotify.read() == [InotifyEvent(wd, IN_MOVED_TO)]
    assert inotify.read() == []


def test_files_names_may_have_any_length(inotify: Inotify, tmp_path: Path) -> None:
    wd = inotify.watch(tmp_path, IN_CREATE)
    lengths = (1, 15, 16, 17, 255)
    for length in lengths:
        (tmp_path / ("x" * length)).touch()
    assert inotify.read() == [InotifyEvent(wd or 0, IN_CREATE)] * len(lengths)


def test_what_is_not_there_cannot_be_watched(inotify: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for path in ("none", "file/below", "loop", "x" * 300):
        assert inotify.watch(tmp_path / path, IN_MODIFY) is None


def test_a_watch_ends_with_what_it_is_on(inotify: Inotify, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    gone, stays = inotify.watch(tmp_path / "gone", IN_CREATE), inotify.watch(tmp_path, IN_DELETE)
    (tmp_path / "gone").rmdir()
    events = inotify.read()
    assert [event.wd for event in events if event.ended] == [gone]
    assert [event.wd for event in events if event.mask & IN_DELETE] == [stays]
    (tmp_path / "gone").mkdir()
    again = inotify.watch(tmp_path / "gone", IN_CREATE)
    assert again not in (None, gone, stays)
    assert gone is not None
    inotify.unwatch(gone)  # has ended already
    assert inotify.read() == []


def test_an_unwatched_path_is_not_reported(inotify: Inotify, tmp_path: Path) -> None:
    wd = inotify.watch(tmp_path, IN_CREATE)
    assert wd is not None
    assert inotify.watch(tmp_path, IN_CREATE) == wd
    inotify.unwatch(wd)
    (tmp_path / "file").touch()
    assert [event.ended for event in inotify.read()] == [True]


def test_lost_events_are_reported(inotify: Inotify, tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip(f"fs.inotify.max_queued_events is {limit}")
    inotify.watch(tmp_path, IN_MODIFY)
    files = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in "ab"]
    try:
        for turn in range(limit + 10):
            os.pwrite(files[turn % 2], b"x", 0)  # two files: the same event twice in a row is reported once
    finally:
        for fd in files:
            os.close(fd)
    events = []
    while part := inotify.read():
        events += part
    assert [event.wd for event in events if event.overflow] == [-1]
    assert len(events) == limit + 1


def test_a_closed_one_holds_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    made = Inotify()
    made.close()
    made.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    with pytest.raises(OSError) as caught:
        made.watch(tmp_path, IN_MODIFY)
    assert caught.value.errno == errno.EBADF


def test_an_event_loop_is_woken(inotify: Inotify, tmp_path: Path) -> None:
    async def wait() -> list[InotifyEvent]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[list[InotifyEvent]] = loop.create_future()
        loop.add_reader(inotify.fd, lambda: None if arrived.done() else arrived.set_result(inotify.read()))
        loop.call_later(0.02, (tmp_path / "new").touch)
        try:
            async with asyncio.timeout(120):
                return await arrived
        finally:
            loop.remove_reader(inotify.fd)

    wd = inotify.watch(tmp_path, IN_CREATE)
    assert asyncio.run(wait()) == [InotifyEvent(wd or 0, IN_CREATE)]


# --- cgroups ---------------------------------------------------------------------------------------------------------

@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cpuset cgroup of the test's own."""
    need_root()
    own = Cgroups().cpuset_path(os.getpid())
    if own is None or not (own / "cpuset.cpus").exists():
        top = Path("/sys/fs/cgroup")
        with contextlib.suppress(OSError):
            (top / "cgroup.subtree_control").write_text("+cpuset")
        own = top
    made = own / f"vmpin-test-inotify-{os.getpid()}"
    made.mkdir()
    try:
        if not (made / "cpuset.cpus").exists():
            lacking("needs a cpuset controller")
        yield made
    finally:
        made.rmdir()


def test_a_written_cpuset_is_reported_at_once_to_its_watcher(inotify: Inotify, cpuset: Path) -> None:
    """fsnotify sits in the system call, so it is so in cgroup v1 and v2 alike."""
    cpu = min(os.sched_getaffinity(0))
    wd = inotify.watch(cpuset / "cpuset.cpus", IN_MODIFY)
    by_directory = inotify.watch(cpuset, IN_MODIFY)
    assert wd is not None
    code = f"open({os.fspath(cpuset / 'cpuset.cpus')!r}, 'w').write('{cpu}')"
    subprocess.run([sys.executable, "-c", code], check=True)
    events = inotify.read()
    assert wd in [event.wd for event in events if event.mask & IN_MODIFY]
    assert by_directory in [event.wd for event in events]
    assert (cpuset / "cpuset.cpus").read_text().strip() == str(cpu)
