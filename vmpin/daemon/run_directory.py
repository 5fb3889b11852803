"""The watcher's run directory while it runs: the lock and the sockets in it are the watcher's own, or are made again.

Somebody may remove the directory (a clean-up of /run, `rm -rf`): the lock that is held then locks nothing any more,
another watcher may start, and no hook and no command finds the sockets. What stays out: what is served (watcher) and
what else is kept there (keeper, spool).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from vmpin.config.settings import Config
from vmpin.host.lock import Lock
from vmpin.host.unix_sockets import Identity, identity, listen, unlink_own

logger = logging.getLogger(__name__)

Source = Callable[[], Coroutine[Any, Any, None]]


class RunDirectory:
    """Made with the lock held. :raises OSError, ConfigError: when it cannot listen there."""

    def __init__(self, config: Config, lock: Lock) -> None:
        self.config = config
        self._lock = lock
        self.hook = listen(config.hook_socket)
        self.control = listen(config.control_socket, config.status_group)
        self._own = self._identities()
        self._renewed = asyncio.Event()

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self.config.hook_socket, self.config.control_socket

    def _identities(self) -> dict[Path, Identity | None]:
        return {path: identity(path) for path in self._paths}

    def look(self, config: Config) -> bool:
        """Make again what was removed. :returns: whether anything was: then the state is to be saved again.

        :raises WatcherError: when another holds the lock by now, whose directory it is then. :raises OSError: when it
            cannot be made; tried again at the next look.
        """
        self.config = config
        held = self._lock.held()
        if held and self._own == self._identities():
            return False
        if not held:
            absent = not config.run.exists()
            self._lock.again()
            if absent:
                config.run.chmod(0o755)  # whatever the umask: the sockets have their own modes
        logger.error("%s was removed or replaced: its lock and sockets are made again", config.run)
        for made in (self.hook, self.control):
            made.close()  # closed before: a socket that is not renewed is no way in any more
        self._own = {}  # should one of them fail, the next look does it again
        self.hook = listen(config.hook_socket)
        self.control = listen(config.control_socket, config.status_group)
        self._own = self._identities()
        renewed, self._renewed = self._renewed, asyncio.Event()
        renewed.set()
        return True

    def anew(self, source: Source) -> Source:
        """`source`, which is ended and started again whenever something was made again."""

        async def run() -> None:
            while True:
                task = asyncio.ensure_future(source())
                renewed = asyncio.ensure_future(self._renewed.wait())
                try:
                    await asyncio.wait((task, renewed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    renewed.cancel()
                    if not task.done():
                        task.cancel()
                        await asyncio.gather(task, return_exceptions=True)
                if not task.cancelled():
                    return task.result()

        return run

    def close(self) -> None:
        """Remove the sockets, but none of another watcher's."""
        for made, path in ((self.hook, self.config.hook_socket), (self.control, self.config.control_socket)):
            made.close()
            unlink_own(path, self._own.get(path))
