"""The HTTP server of metrics and probes: requests, hostile and slow clients, many connections."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from http import HTTPStatus

import pytest
from guest_peer import until
from hypothesis import given
from hypothesis import strategies as st

from vmpin.features.metrics import exporter
from vmpin.features.metrics.exporter import HttpReply, HttpTimes

BIG = b"x" * (1 << 22)


async def handler(path: str) -> HttpReply:
    if path == "/broken":
        raise RuntimeError("of no use")
    if path == "/big":
        return HttpReply(HTTPStatus.OK, BIG)
    return HttpReply(HTTPStatus.OK, f"you asked for {path}\n".encode())


@asynccontextmanager
async def serving(handle: Callable[[str], Awaitable[HttpReply]] = handler, most: int = exporter.MAX_CONNECTIONS,
                  times: HttpTimes = exporter.TIMES) -> AsyncIterator[int]:
    """Its port."""
    with closing(exporter.listen("127.0.0.1", 0)) as made:
        task = asyncio.create_task(exporter.serve(made, handle, times, most))
        try:
            yield int(made.getsockname()[1])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def say(port: int, raw: bytes) -> bytes:
    """Everything that is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(raw)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_real_client_gets_its_answer() -> None:
    def ask(port: int, method: str, path: str) -> tuple[int, bytes, str | None]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as client:
            client.request(method, path)
            answer = client.getresponse()
            return answer.status, answer.read(), answer.getheader("Content-Length")

    async def main() -> None:
        async with serving() as port:
            assert await asyncio.to_thread(ask, port, "GET", "/some?x=1") == (200, b"you asked for /some\n", "20")
            assert await asyncio.to_thread(ask, port, "HEAD", "/some") == (200, b"", "20")
            status, body, length = await asyncio.to_thread(ask, port, "GET", "/big")
            assert (status, body == BIG, length) == (200, True, str(len(BIG)))
            status, body, _ = await asyncio.to_thread(ask, port, "GET", "/broken")
            assert (status, body) == (500, b"Internal Server Error\n")

    asyncio.run(main())


@pytest.mark.parametrize(("head", "status"), [
    (b"POST /metrics HTTP/1.1", 405), (b"PRI * HTTP/2.0", 400), (b"GET /metrics", 400), (b"GET  /x HTTP/1.1", 400),
    (b"GET http://other/ HTTP/1.1", 400), (b"\x16\x03\x01\x02\x00\x01", 400), (b"", 400),
    (b"GET / HTTP/1.1\n" + b"A: b\n" * 2000, 431)])
def test_what_is_no_request_of_ours_is_refused(head: bytes, status: int) -> None:
    found = exporter.path_of(head)
    assert isinstance(found, HttpReply)
    assert found.status == status


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(head: bytes) -> None:
    for raw in (head, b"GET /" + head + b" HTTP/1.1"):
        found = exporter.path_of(raw)
        assert isinstance(found, HttpReply) or found.isascii()


def test_the_answer_to_too_much_arrives_all_the_same() -> None:
    """Unread bytes would make the kernel reset the connection."""
    async def main() -> None:
        async with serving() as port:
            for _ in range(5):
                answered = await asyncio.to_thread(say, port, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000)
                assert answered.startswith(b"HTTP/1.1 431 ")

    asyncio.run(main())


def test_a_client_that_sends_nothing_is_dropped_and_others_are_answered_meanwhile() -> None:
    async def main() -> None:
        for deadline in (600.0, 0.2):
            async with serving(times=HttpTimes(head=deadline)) as port:
                before = descriptors()
                mute = [socket.create_connection(("127.0.0.1", port)) for _ in range(exporter.MAX_CONNECTIONS - 2)]
                mute[0].sendall(b"GET /metr")
                if deadline > 1:
                    assert b"you asked for /x" in await asyncio.to_thread(say, port, b"GET /x HTTP/1.1\r\n\r\n")
                for each in mute:
                    each.setblocking(False)
                    if deadline > 1:
                        with pytest.raises(BlockingIOError):  # they are still there
                            each.recv(100)
                    else:
                        async with asyncio.timeout(120):
                            assert await asyncio.get_running_loop().sock_recv(each, 100) == b""  # it was hung up on
                    each.close()
                await until(lambda: descriptors() == before)  # noqa: B023

    asyncio.run(main())


@pytest.mark.parametrize("request_", [b"", b"GET /big HTTP/1.1\r\n\r\n"], ids=["mute", "greedy"])
def test_clients_that_neither_send_nor_read_keep_others_waiting_until_their_deadline(request_: bytes) -> None:
    """A probe that is not answered for ever would have the watcher restarted."""
    async def main() -> None:
        async with serving(times=HttpTimes(head=0.3, request=0.3, pace=0.0)) as port:
            before = descriptors()
            clients = [await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port))
                       for _ in range(exporter.MAX_CONNECTIONS + exporter.BACKLOG // 2)]
            for each in clients:
                each.sendall(request_)
            assert b"you asked for /x" in await asyncio.to_thread(say, port, b"GET /x HTTP/1.1\r\n\r\n")
            for each in clients:
                each.close()
            await until(lambda: descriptors() == before)

    asyncio.run(main())


def test_a_client_that_does_not_read_its_answer_is_dropped() -> None:
    asked = 0

    async def count(path: str) -> HttpReply:
        nonlocal asked
        asked += path == "/big"
        return await handler(path)

    async def main() -> None:
        async with serving(count, times=HttpTimes(request=0.3)) as port:
            before = descriptors()
            with socket.create_connection(("127.0.0.1", port)) as mute:
                mute.sendall(b"GET /big HTTP/1.1\r\n\r\n")
                await until(lambda: asked)
                await until(lambda: descriptors() == before + 1)

    asyncio.run(main())


def test_more_connections_than_are_served_wait_for_their_turn() -> None:
    go_on = asyncio.Event()
    most = now = 0

    async def slow(path: str) -> HttpReply:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await go_on.wait()
        now -= 1
        return HttpReply(HTTPStatus.OK, b"at last\n")

    async def main() -> None:
        async with serving(slow, most=3) as port:
            asking = [asyncio.create_task(asyncio.to_thread(say, port, b"GET / HTTP/1.1\r\n\r\n")) for _ in range(5)]
            await until(lambda: now == 3)
            go_on.set()
            answers = await asyncio.gather(*asking)
            assert all(answer.endswith(b"at last\n") for answer in answers)
            assert most == 3

    asyncio.run(main())


def test_a_flood_is_taken_slowly() -> None:
    asked = 0

    async def count(path: str) -> HttpReply:
        nonlocal asked
        asked += 1
        return HttpReply(HTTPStatus.OK, b"")

    async def main() -> None:
        async with serving(count, times=HttpTimes(pace=0.05)) as port:
            flood, began = [], time.monotonic()
            for _ in range(100):
                each = socket.socket()
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
                flood.append(each)
            for each in flood:
                with suppress(OSError):  # not connected yet: the kernel holds it
                    each.send(b"GET / HTTP/1.1\r\n\r\n")
            await asyncio.sleep(1.0)
            await until(lambda: asked >= 5)
            assert asked <= (time.monotonic() - began) / 0.05 + 1
            for each in flood:
                each.close()

    asyncio.run(main())


def test_a_process_out_of_descriptors_serves_again_when_it_has_some() -> None:
    import resource

    async def main() -> None:
        async with serving(times=HttpTimes(no_descriptors=0.1)) as port:
            client = socket.create_connection(("127.0.0.1", port))
            client.setblocking(False)
            await asyncio.sleep(0.1)
            late = socket.socket()
            late.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                late.connect_ex(("127.0.0.1", port))
                await asyncio.sleep(0.4)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            late.send(b"GET /x HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(120):
                assert b"you asked for /x" in await asyncio.get_running_loop().sock_recv(late, 65536)
            client.close()
            late.close()

    asyncio.run(main())
