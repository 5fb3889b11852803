"""Directories of a node without processes, and real watchers on them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from guest_peer import until

from vmpin.config import loading
from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.daemon.task_table import tasks_of
from vmpin.daemon.watcher import Watcher
from vmpin.host.lock import Lock
from vmpin.reconcile.reconciler import Reconciler
from vmpin.sources.spool import Spool


class Place:
    """A node's directories, and the watchers on them one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("run", "proc", "kubelet"):
            (root / name).mkdir()
        self.settings = {**{f"paths.{each}": str(root / each) for each in (
            "run", "kata_go", "kata_rs", "kubelet", "nri", "proc")}, "watch.nri": "off", "watch.births": "false",
            "guest.via": "off", "watch.resync_seconds": "600"}
        self.load: Callable[[], Config] = self.config
        self.file: Path | None = None
        self.changed: Callable[[], bool] = lambda: False

    def config(self, **changes: str) -> Config:
        self.settings.update({key.replace("__", "."): value for key, value in changes.items()})
        return loading.load(self.file, {}, self.settings)

    @contextlib.asynccontextmanager
    async def watching(self, timeouts: Timeouts | None = None) -> AsyncIterator[Watcher]:
        """A watcher that is ready; ended by SIGTERM if it has not ended. :raises: what `run` raises."""
        config = self.config()
        with Lock(config.paths.lock_file) as lock:
            spool = Spool(config.paths.spool)
            spool.prepare()
            made = Watcher(lambda: self.load(), Reconciler(config), spool, [], lock,
                           timeouts or Timeouts(save=(0.001, 0.001), file_calm=0.001), lambda: self.changed())
            task = asyncio.create_task(made.run(tasks_of))
            await until(lambda: made.about is not None or task.done())
            try:
                if not task.done():
                    yield made
            finally:
                if not task.done():
                    os.kill(os.getpid(), signal.SIGTERM)
                async with asyncio.timeout(120):
                    await task

    async def ask(self, name: str, raw: bytes) -> bytes:
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_unix_connection(self.root / "run" / name)
            writer.write(raw)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            return answer

    async def control(self, **request: object) -> Any:
        return json.loads(await self.ask("vmpin.sock", json.dumps(request).encode() + b"\n"))

    def message(self, container: str = "c1", cpus: str = "1") -> bytes:
        bundle = self.root / container
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps({"linux": {"resources": {"cpu": {"cpus": cpus}}}}))
        state = {"id": container, "pid": 0, "bundle": str(bundle), "annotations": {
            "io.kubernetes.cri.sandbox-id": "pod", "io.kubernetes.cri.container-type": "container"}}
        return b"vmpin-hook/1 stage=createRuntime boot=1\n" + json.dumps(state).encode()
