"""The watcher's sockets: a peer costs its own connection only."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from vmpin.host import sockets
from vmpin.host.sockets import PART, WAITING, Acceptor, Rationed


async def test_an_answer_without_a_reader_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    asked = asyncio.Event()

    async def much(raw: bytes, uid: int) -> bytes:
        asked.set()
        return raw * (1 << 20)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    made = sockets.listen(path)
    server = asyncio.create_task(sockets.serve(made, 100, much, line=True, deadline=0.1))
    await asyncio.sleep(0.05)
    before = descriptors()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect(os.fspath(path))
        mute.sendall(b"hello\n")
        async with asyncio.timeout(120):
            await asked.wait()
            while descriptors() != before + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)


async def test_a_stream_is_sent_part_by_part_and_ends_with_the_server(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            for number in itertools.count():
                yield b"%d\n" % number
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    async def stream(raw: bytes, uid: int) -> AsyncGenerator[bytes, None]:
        return parts()

    server = asyncio.create_task(sockets.serve(sockets.listen(tmp_path / "sock"), 100, stream, line=True, deadline=60))
    reader, writer = await asyncio.open_unix_connection(tmp_path / "sock")
    writer.write(b"follow\n")
    async with asyncio.timeout(120):
        assert [await reader.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
        assert ended.is_set()
        await reader.read()  # to the end: the server has closed the connection
    writer.close()


class Short(socket.socket):
    """A listening socket of a process that has no descriptors left for a while."""

    left = 0
    tried = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tried += 1
        if self.tried <= self.left:
            raise OSError(24, "Too many open files")
        return super().accept()


async def test_without_descriptors_it_waits_and_logs_one_line(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Short(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.setblocking(False)
        listening.bind(os.fspath(tmp_path / "sock"))
        listening.listen(64)
        listening.left = 50
        client.connect(os.fspath(tmp_path / "sock"))
        with await Acceptor(listening, 0.0).accept() as connection:
            assert connection.gettimeout() == 0.0
        assert listening.tried == 51  # one for each pause
    assert caplog.messages == ["no connection can be accepted: Too many open files; tried again every 0 s"]


async def test_a_client_that_has_gone_is_no_trouble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Aborted(Short):
        def accept(self) -> tuple[socket.socket, object]:
            self.tried += 1
            if self.tried == 1:
                raise ConnectionAbortedError(103, "Software caused connection abort")
            return super().accept()

    caplog.set_level(logging.INFO)
    with Aborted(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.setblocking(False)
        listening.bind(os.fspath(tmp_path / "sock"))
        listening.listen(64)
        client.connect(os.fspath(tmp_path / "sock"))
        (await Acceptor(listening, 3600.0).accept()).close()
    assert caplog.messages == []


async def test_the_request_of_a_client_that_has_hung_up_is_not_carried_out(tmp_path: Path) -> None:
    """As of `vmpin unpin` that gave up because the watcher was stopped: it must not unpin a minute later."""
    path = tmp_path / "sock"
    asked: list[bytes] = []

    async def noted(raw: bytes, uid: int) -> bytes:
        asked.append(raw)
        return b"done\n"

    made = sockets.listen(path)
    for words in (b"late\n", b"half"):
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(os.fspath(path))
            gone.sendall(words)
    server = asyncio.create_task(sockets.serve(made, 100, noted, line=True, deadline=60.0))
    for finished in (False, True):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"now\n")
        if finished:
            writer.write_eof()
        assert await reader.read() == b"done\n"
        writer.close()
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    assert asked == [b"now\n"] * 2


async def test_a_request_that_waited_for_a_descriptor_is_answered(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the limit of this very process."""
    import resource

    async def upper(raw: bytes, uid: int) -> bytes:
        return raw.upper()

    path = tmp_path / "sock"
    server = asyncio.create_task(sockets.serve(sockets.listen(path), 100, upper, line=True, deadline=60))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, os.fspath(path))
        await asyncio.get_running_loop().sock_sendall(client, b"hello\n")
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            async with asyncio.timeout(120):
                while "no connection" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        async with asyncio.timeout(120):
            answer = await asyncio.get_running_loop().sock_recv(client, 100)
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    assert answer == b"HELLO\n"
    assert caplog.text.count("no connection") == 1


class Clock:
    """Of a loop in which nothing takes time but what says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


async def test_answers_take_their_part_of_the_time_and_no_more() -> None:
    clock = Clock()

    async def answer(raw: bytes, uid: int) -> bytes:
        clock.now += 0.5
        return raw + b"%d" % uid

    rationed = Rationed(answer, now=lambda: clock.now, sleep=clock.sleep)
    assert [await rationed(b"a", number) for number in range(3)] == [b"a0", b"a1", b"a2"]
    assert clock.slept == pytest.approx(2 * 0.5 / PART)
    clock.now += 60
    before = clock.slept
    await rationed(b"a", 0)
    assert clock.slept == before


async def test_one_is_answered_at_a_time_and_few_wait() -> None:
    free = asyncio.Event()
    busy = most = 0

    async def answer(raw: bytes, uid: int) -> bytes:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await free.wait()
        busy -= 1
        return raw

    rationed = Rationed(answer)
    asked = [asyncio.create_task(rationed(b"ok", 0)) for _ in range(WAITING + 2)]
    refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert all(b"too many requests" in bytes(each.result()) for each in refused)  # type: ignore[arg-type]
    free.set()
    answers = await asyncio.gather(*asked)
    assert answers.count(b"ok") == WAITING
    assert most == 1
    assert await rationed(b"ok", 0) == b"ok"


async def test_a_handler_that_fails_keeps_no_place() -> None:
    async def fail(raw: bytes, uid: int) -> bytes:
        raise ValueError(raw)

    rationed = Rationed(fail)
    for _ in range(WAITING + 1):
        with pytest.raises(ValueError, match="x"):
            await rationed(b"x", 0)
