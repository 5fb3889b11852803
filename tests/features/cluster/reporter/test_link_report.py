"""When the reporter sends the watcher whether the API server is reached."""

from __future__ import annotations

import json
import os
import socket
import threading
from math import inf
from pathlib import Path

from vmpin.features.cluster.reporter.link_report import AGAIN, RETRY, LinkReport

DEADLINE = 120


class Given:
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
    given = Given(tmp_path / "s")
    assert given.report.send("", 0.0) == inf, "a watcher that was sent nothing has no trouble of it"
    assert given.send("away", 1.0) == AGAIN
    assert given.report.send("away", 2.0) == AGAIN - 1
    assert given.send("away", 1.0 + AGAIN) == AGAIN
    assert given.send("", 2.0 + AGAIN) == inf
    assert given.taken == ["away", "away", ""]
    given.close()


def test_what_the_watcher_does_not_take_is_sent_again_soon(tmp_path: Path) -> None:
    given = Given(tmp_path / "s")
    given.send("away", 1.0)
    assert given.send("", 1.5, b'{"error": "came less than 1 s after another"}\n') == RETRY
    assert given.send("", 1.5 + RETRY) == inf
    given.close()
    assert given.report.send("away", 100.0) == RETRY, "nor where no watcher runs"
