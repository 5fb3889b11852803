"""The messages to irqbalance's socket. tests/lab asks a real one."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.irqs.irqbalance import ban_cpus, banned_cpus, irqbalance_sockets

#: As irqbalance 1.9.4 of Debian 13 answers.
SETUP = b"SLEEP 10 BANNED 00000000,0000000c"


@contextlib.contextmanager
def daemon(path: Path, answer: bytes = SETUP) -> Iterator[list[tuple[str, int]]]:
    """Accepts messages as irqbalance does, with the sender's credentials. :returns: messages and users' ids."""
    received: list[tuple[str, int]] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listening.listen(1)

        def serve() -> None:
            while True:
                connection, _ = listening.accept()
                with connection:
                    text, ancillary, _, _ = connection.recvmsg(16384, socket.CMSG_SPACE(12))
                    if not text:
                        return
                    received.append((text.decode(), struct.unpack("3i", ancillary[0][2])[1]))
                    if text == b"setup":
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield received
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()


def test_its_list_is_read_set_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "irqbalance77.sock"
    with daemon(path) as received:
        assert irqbalance_sockets(tmp_path) == [str(path)]
        assert banned_cpus(str(path)) == CpuSet.parse("2-3")
        ban_cpus(str(path), CpuSet.parse("2-3,6"))
        ban_cpus(str(path), EMPTY)
        while len(received) < 3:
            pass
    assert received == [(text, os.getuid()) for text in ("setup", "settings cpus 2-3,6", "settings cpus NULL")]


@pytest.mark.parametrize("answer", [b"", b"SLEEP 10", b"BANNED x", b"BANNED " + b"f" * 200])
def test_an_answer_that_is_none_bans_nothing(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "irqbalance77.sock"
    with daemon(path, answer):
        assert not banned_cpus(str(path))


def test_a_socket_that_was_left_answers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "irqbalance1.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    (tmp_path / "other.sock").touch()
    assert irqbalance_sockets(tmp_path) == [str(path)]
    assert banned_cpus(str(path)) is None
    with pytest.raises(OSError, match="refused"):
        ban_cpus(str(path), EMPTY)
    assert irqbalance_sockets(tmp_path / "none") == []
