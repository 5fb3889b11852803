"""The watcher followed over its socket: what it sends is taken in, and a directory that is gone is noticed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from counted_pauses import CountedPauses
from kube_given import entry, line, node_part

from vmpin.features.cluster.reporter.loop_pauses import Pauses
from vmpin.features.cluster.reporter.status_stream import StatusStream


class Followed:
    """A stream in its thread, and the socket that it connects to."""

    def __init__(self, path: Path) -> None:
        self.stopping, self.changed = threading.Event(), threading.Event()
        self.stream = StatusStream(path, self.changed.set, self.stopping,
                                   pauses=Pauses(self.stopping, 0.001, 0.002))
        self.made = socket.socket(socket.AF_UNIX)
        self.made.bind(os.fspath(path))
        self.made.listen()
        self.made.settimeout(120)
        self.thread = threading.Thread(target=self.stream.run)
        self.thread.start()

    def accept(self) -> socket.socket:
        connection, _ = self.made.accept()
        connection.settimeout(120)
        assert connection.makefile().readline() == '{"op":"follow"}\n'
        return connection

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not holds():
            assert time.monotonic() < end
            self.changed.wait(0.01)
            self.changed.clear()


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    made = Followed(tmp_path / "s")
    yield made
    made.stopping.set()
    made.made.close()
    (tmp_path / "s").unlink(missing_ok=True)
    made.thread.join(120)
    assert not made.thread.is_alive()


def test_lines_are_taken_in_however_they_arrive(followed: Followed) -> None:
    raw = line("all", entry("a"), node=node_part()) + b"\n" + line("change", entry("b"), gone=("sandbox-a",)) + b"\n"
    with followed.accept() as connection:
        for at in range(0, len(raw), 100):
            connection.sendall(raw[at:at + 100])
        followed.until(lambda: set(followed.stream.reported.sandboxes) == {"sandbox-b"})
        assert followed.stream.up


@pytest.mark.parametrize("raw", [b"garbage\n", b'{"error":"follow: 8 clients follow already"}\n', b""])
def test_a_connection_that_breaks_is_made_again_and_what_was_reported_is_kept(followed: Followed, raw: bytes) -> None:
    with followed.accept() as connection:
        connection.sendall(line("all", entry("a"), node=node_part()) + b"\n")
        followed.until(lambda: followed.stream.up)
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        followed.until(lambda: not followed.stream.up)
    assert set(followed.stream.reported.sandboxes) == {"sandbox-a"}
    with followed.accept() as connection:
        connection.sendall(line("all", node=node_part()) + b"\n")
        followed.until(lambda: followed.stream.up and not followed.stream.reported.sandboxes)


def test_a_directory_that_was_removed_under_a_mount_is_lost(tmp_path: Path) -> None:
    """A descriptor shows it as a container's mount does: it is there, without a name."""
    status = tmp_path / "status"
    status.mkdir()
    place = os.open(status, os.O_RDONLY | os.O_DIRECTORY)
    try:
        changed, stopping = threading.Event(), threading.Event()
        pauses = CountedPauses(stopping)
        stream = StatusStream(Path(f"/proc/self/fd/{place}/vmpin.sock"), changed.set, stopping, pauses=pauses)
        thread = threading.Thread(target=stream.run, daemon=True)
        thread.start()
        end = time.monotonic() + 120
        while pauses.tries < 3:  # no watcher is there, and the directory is
            assert time.monotonic() < end
            time.sleep(0.005)
        assert thread.is_alive()
        status.rmdir()
        status.mkdir()  # by another watcher, which no mount shows
        thread.join(120)
        assert stream.lost
        assert changed.is_set()
    finally:
        os.close(place)
