"""The watcher's sockets: a peer costs its own connection only."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from vmpin.host import unix_sockets


def test_an_answer_without_a_reader_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    asked = asyncio.Event()

    async def much(raw: bytes, uid: int) -> bytes:
        asked.set()
        return raw * (1 << 20)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def talk() -> None:
        made = unix_sockets.listen(path)
        server = asyncio.create_task(unix_sockets.serve(made, 100, much, line=True, deadline=0.1))
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

    asyncio.run(talk())
