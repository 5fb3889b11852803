"""The reporter at the watcher's socket: reports are received, pods' data and trouble are sent."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
from counted_pauses import CountedPauses
from kube_given import entry, line, node_part

from vmpin.features.cluster.kube.pod_record import PodRecord, record_of
from vmpin.features.cluster.kube.watched_annotations import decode
from vmpin.features.cluster.reporter.loop_pauses import Pauses
from vmpin.features.cluster.reporter.pod_watch import PodWatch
from vmpin.features.cluster.reporter.watcher_link import AGAIN, RETRY, LinkReport, PodHandover, StatusStream


class Followed:
    """A stream in its thread, and the socket that it connects to."""

    def __init__(self, path: Path) -> None:
        self.stopping, self.changed = threading.Event(), threading.Event()
        self.stream = StatusStream(path, self.changed.set, self.stopping,
                                   pauses=Pauses(self.stopping, 0.001, 0.002))
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(path))
        self.listener.listen()
        self.listener.settimeout(120)
        self.thread = threading.Thread(target=self.stream.run)
        self.thread.start()

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
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
    client = Followed(tmp_path / "s")
    yield client
    client.stopping.set()
    client.listener.close()
    (tmp_path / "s").unlink(missing_ok=True)
    client.thread.join(120)
    assert not client.thread.is_alive()


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


DEADLINE = 120


def item(name: str, **annotations: str) -> Mapping[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "annotations": annotations}}


class Handing:
    """A reporter's stream and watch, as they are after some time, and a watcher's socket."""

    def __init__(self, path: Path, again: float) -> None:
        self.up, self.connections, self.listed = True, 1, True
        self.items = [item("web"), item("runc")]
        self.answer = b'{"pods":1}\n'
        self.requests: queue.Queue[Mapping[str, Mapping[str, str]]] = queue.Queue()
        self.stopping = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(path))
        self.listener.listen()
        self.handover = PodHandover(path, cast(StatusStream, self), cast(PodWatch, self), self.stopping, 0.001, again,
                                    Pauses(self.stopping, 0.001, 0.002))
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._serve, self.handover.run)]

    def pods(self) -> tuple[PodRecord, ...]:
        return tuple(pod for item in self.items
                     if (pod := record_of(item, lambda key: key.startswith("cpu-"))) is not None)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                request = json.loads(connection.makefile().readline())
                assert request["op"] == "pods"
                connection.sendall(self.answer)
                self.requests.put(decode(request))

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def next(self) -> Mapping[str, Mapping[str, str]]:
        return self.requests.get(timeout=DEADLINE)

    def end(self) -> None:
        self.stopping.set()
        self.handover.wake()
        self.threads[1].join(DEADLINE)
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.threads[0].join(DEADLINE)
        assert not any(thread.is_alive() for thread in self.threads)


@pytest.fixture
def handing(tmp_path: Path, again: float) -> Iterator[Handing]:
    reporter = Handing(tmp_path / "s", again)
    reporter.start()
    yield reporter
    reporter.end()


@pytest.mark.parametrize("again", [600.0])
def test_what_asks_for_cpus_is_handed_over_after_each_change_and_to_a_new_watcher(handing: Handing) -> None:
    policy = {"cpu-policy.vmpin.io": "exclusive"}
    assert handing.next() == {"uid-web": {}, "uid-runc": {}}
    handing.items[1] = item("runc", **policy, other="x" * 5000)
    # A static pod's uid is an annotation, and a pod that ends is not changed.
    handing.items.append(item("rival", **policy, **{"kubernetes.io/config.mirror": "uid-runc"}))
    handing.items.append({**item("done", **policy), "status": {"phase": "Succeeded"}})
    handing.items.append(item("long", **{"cpu-policy.vmpin.io": "x" * 5000}))
    handing.handover.wake()
    assert handing.next() == {"uid-web": {}, "uid-runc": policy}
    handing.connections = 2
    handing.handover.wake()
    assert handing.next() == {"uid-web": {}, "uid-runc": policy}
    handing.items.clear()
    handing.handover.wake()
    assert handing.next() == {}
    assert handing.requests.empty()


@pytest.mark.parametrize("again", [0.01])
def test_it_is_repeated(handing: Handing) -> None:
    assert handing.next() == handing.next() == handing.next()


@pytest.mark.parametrize("again", [600.0])
@pytest.mark.parametrize("refusal", [b'{"error":"pods: not answered on this socket"}\n', b"", b"garbage\n", b"[]\n"])
def test_what_was_not_taken_is_sent_again(handing: Handing, refusal: bytes) -> None:
    handing.next()
    handing.answer = refusal
    handing.items[0] = item("web", **{"cpu-a": "b"})
    handing.handover.wake()
    for _ in range(3):
        assert handing.next()["uid-web"] == {"cpu-a": "b"}


class LinkedWatcher:
    """A watcher's socket for one request at a time, and what it was sent."""

    def __init__(self, path: Path) -> None:
        self.taken: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(os.fspath(path))
        self._socket.listen()
        self.report = LinkReport(path)

    def send(self, trouble: str, now: float, answer: bytes = b'{"reporter": "taken"}\n') -> float:
        """Send it where the watcher gives that answer."""
        thread = threading.Thread(target=self._serve, args=[answer])
        thread.start()
        due = self.report.send(trouble, now)
        thread.join(DEADLINE)
        assert not thread.is_alive(), "it sent nothing"
        return due

    def _serve(self, answer: bytes) -> None:
        self._socket.settimeout(DEADLINE)
        connection, _ = self._socket.accept()
        with connection:
            self.taken.append(json.loads(connection.makefile().readline())["trouble"])
            connection.sendall(answer)

    def close(self) -> None:
        self._socket.close()


def test_trouble_is_sent_at_each_change_and_again_while_it_lasts(tmp_path: Path) -> None:
    linked = LinkedWatcher(tmp_path / "s")
    assert linked.report.send("", 0.0) == inf, "a watcher that was sent nothing has no trouble of it"
    assert linked.send("away", 1.0) == AGAIN
    assert linked.report.send("away", 2.0) == AGAIN - 1
    assert linked.send("away", 1.0 + AGAIN) == AGAIN
    assert linked.send("", 2.0 + AGAIN) == inf
    assert linked.taken == ["away", "away", ""]
    linked.close()


def test_what_the_watcher_does_not_take_is_sent_again_soon(tmp_path: Path) -> None:
    linked = LinkedWatcher(tmp_path / "s")
    linked.send("away", 1.0)
    assert linked.send("", 1.5, b'{"error": "came less than 1 s after another"}\n') == RETRY
    assert linked.send("", 1.5 + RETRY) == inf
    linked.close()
    assert linked.report.send("away", 100.0) == RETRY, "nor where no watcher runs"
