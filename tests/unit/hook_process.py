"""The hook as a process, and a watcher that it reaches."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from need import need_tool

from vmpin.install import data_files

HOOK = data_files.path("hooks/vmpin-hook")
#: Not UTF-8, with a NUL, newlines and no newline at the end: the hook must not care.
STATE = b'{"id":"c1","annotations":{"a":"\xff\xfe\x00"}}\n\r\n x'


class Watcher:
    """Listens, reads whole messages and gives each the same answer; None is to hold the connection, mute.

    :param late: not before the caller has gone.
    """

    def __init__(self, path: Path, answer: bytes | None = b"ok\n", late: bool = False) -> None:
        self.messages: list[bytes] = []
        self._answer = answer
        self._late = late
        self._held: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._listener, *self._held):
            each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                connection, _ = self._listener.accept()
                self._held.append(connection)
                self.messages.append(b"".join(iter(lambda c=connection: c.recv(65536), b"")))  # type: ignore[misc]
                if self._answer is None:
                    continue
                if self._late:
                    left = select.poll()
                    left.register(connection, 0)  # POLLHUP: both directions are closed
                    left.poll()
                with contextlib.suppress(BrokenPipeError):
                    connection.sendall(self._answer)
                connection.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Place:
    """A directory with a socket path and a spool, and the hook pointed at them."""

    top: Path

    @property
    def socket(self) -> Path:
        return self.top / "s"

    @property
    def spool(self) -> Path:
        return self.top / "vmpin" / "spool"

    def argv(self, *args: str) -> list[str]:
        return [str(HOOK), "--socket", str(self.socket), "--spool", str(self.spool), "--deadline", "20000", *args]

    def run(self, *args: str, state: bytes = STATE, wrap: tuple[str, ...] = ()) -> Ran:
        start = time.monotonic()
        done = subprocess.run([*wrap, *self.argv(*args)], input=state, capture_output=True, timeout=120, env={})
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode(), time.monotonic() - start)

    def kept(self) -> list[bytes]:
        """The whole content of the spool; anything but .hook files in it is a failure."""
        files = sorted(self.spool.iterdir()) if self.spool.exists() else []
        assert [each for each in files if not re.fullmatch(r"[0-9]{20}-[0-9]+\.hook", each.name)] == []
        return [each.read_bytes() for each in files]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    need_tool("/usr/bin/python3")
    return Place(tmp_path)


def one(messages: list[bytes], stage: str = "poststart", state: bytes = STATE) -> None:
    assert len(messages) == 1
    header, _, rest = messages[0].partition(b"\n")
    assert re.fullmatch(rf"vmpin-hook/1 stage={stage} time=[0-9]{{19}} boot=[0-9]+", header.decode())
    assert rest == state
