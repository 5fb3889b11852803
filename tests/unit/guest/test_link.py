"""The agent's serial port without its loop: a check alone."""

from __future__ import annotations

import os
import select
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin.protocol.frames import FrameDecoder, encode
from vmpin.protocol.messages import AgentMessage, HostMessage, NeedMap, Ping, Pong, as_json
from vmpin.protocol.parsing import parse_answer
from vmpin_agent.link import SerialPort


@pytest.fixture
def ends() -> Iterator[tuple[int, str]]:
    """A terminal is as a virtio-serial port: the host's end, and the guest's path."""
    host, guest = os.openpty()
    tty.setraw(guest)
    yield host, os.ttyname(guest)
    os.close(host)
    os.close(guest)


def test_a_check_answers_waiting_input_although_no_event_wakes_the_loop(ends: tuple[int, str]) -> None:
    """As in Linux, where the check's own poll has taken the buffer before the interrupt came."""
    host, path = ends

    def answer(request: HostMessage) -> AgentMessage:
        return Pong(request.id, "1")

    port = SerialPort(path, answer, lambda: [NeedMap()])
    decoder, found = FrameDecoder(), list[AgentMessage]()
    assert port.open()
    try:
        port.check(0.0)
        os.write(host, encode(as_json(Ping(7))))
        deadline = time.monotonic() + 120  # a terminal hands on in a thread of the kernel's
        while len(found) < 2 and time.monotonic() < deadline:
            port.check(1.0)
            if select.select([host], [], [], 0.05)[0]:
                found += map(parse_answer, decoder.feed(os.read(host, 65536)))
        assert found == [NeedMap(), Pong(7, "1")]
    finally:
        os.close(port.fd)


def test_a_port_that_is_not_there_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is tried every five seconds, for as long as the guest runs."""
    path = tmp_path / "port"
    port = SerialPort(str(path), lambda request: Pong(request.id, "1"), list)
    assert [port.open() for _ in range(3)] == [False] * 3
    assert capsys.readouterr().err == f"vmpin-agent: {path}: No such file or directory\n"
    path.mkdir()
    assert [port.open() for _ in range(3)] == [False] * 3
    assert capsys.readouterr().err == f"vmpin-agent: {path}: Is a directory\n"
