"""The watcher's run directory while it runs: the lock and the sockets in it are the watcher's own, or are made again.

The directory may be removed (a clean-up of /run, `rm -rf`): the lock that is held then locks nothing any more, another
watcher may start, and no hook and no command finds the sockets. What stays out: what is served (watcher) and what else
is kept there (reconcile.state_store, sources.spool).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from vmpin.config.settings import Config
from vmpin.errors import ConfigError, LockHeldError, WatcherError
from vmpin.host.lock import Lock
from vmpin.host.unix_sockets import identity, listen, unlink_own

logger = logging.getLogger(__name__)

Source = Callable[[], Coroutine[Any, Any, None]]


class Listener:
    """One listening socket of the run directory, and which file it is."""

    def __init__(self, path: Path, group: str = "") -> None:
        """:raises OSError, ConfigError: when it cannot listen there."""
        self.path = path
        self._made = listen(path, group)
        self._own = identity(path)
        self._failed: OSError | None = None

    def in_place(self) -> bool:
        """Whether the file at its path is this socket."""
        return self._own is not None and self._own == identity(self.path)

    def renew(self, path: Path, group: str = "") -> None:
        """Listen on another socket, at `path`. The one before is closed first: a client that has it open is refused at
        once. :raises OSError, ConfigError: when it cannot listen there; then `in_place` is False."""
        self.close()
        self.path, self._own = path, None
        try:
            self._made = listen(path, group)
        except OSError as err:
            self._failed = err
            raise
        self._own, self._failed = identity(path), None

    def dup(self) -> socket.socket:
        """A descriptor of its own for who serves it. :raises OSError: why there is no socket, if there is none."""
        if self._failed is not None:
            raise self._failed
        return self._made.dup()

    def close(self) -> None:
        """Stop listening. The file stays."""
        self._made.close()

    def remove(self) -> None:
        """Stop listening, and remove the file unless it is another's."""
        self._made.close()
        unlink_own(self.path, self._own)


class Renewal(NamedTuple):
    """What was made again in the run directory: then the state is to be saved again. And why something was not, which
    is tried again at the next look."""

    renewed: bool
    failure: OSError | ConfigError | None = None


class RunDirectory:
    """Made with the lock held. :raises OSError, ConfigError: when it cannot listen there."""

    def __init__(self, config: Config, lock: Lock) -> None:
        self.config = config
        self._lock = lock
        self.hook = Listener(config.paths.hook_socket)
        self.control = Listener(config.paths.control_socket, config.watch.status_group)
        self._renewed = asyncio.Event()
        #: Another process holds the lock: the directory is that one's, and this watcher ends.
        self.ousted: LockHeldError | None = None
        #: Why it could not be made again the last time, "" if it could.
        self._unmade = ""

    def keep(self, config: Config, renewed: Callable[[], None]) -> bool:
        """`look`, with failures in the log, each once. :param renewed: called when something was made again.

        :returns: False when another process holds the lock (`ousted`).
        """
        if self.ousted is not None:
            return False
        try:
            renewal = self.look(config)
            if renewal.renewed:
                renewed()
            if renewal.failure is not None:
                raise renewal.failure
        except LockHeldError as err:
            logger.error("the run directory was removed, and is another watcher's now: %s", err)
            self.ousted = err
        except (OSError, ConfigError, WatcherError) as err:  # what runs is kept in place meanwhile
            if self._unmade != str(err):
                logger.error("%s cannot be made again, which is tried at every resync: %s", config.paths.run, err)
            self._unmade = str(err)
        else:
            self._unmade = ""
        return self.ousted is None

    def look(self, config: Config) -> Renewal:
        """Make again what was removed: the lock first, then each socket, whether or not the other one can be made.

        :raises LockHeldError: when another process holds the lock by now, whose directory it is then. :raises
            WatcherError, OSError: when the lock cannot be taken again; tried again at the next look.
        """
        self.config = config
        held = self._lock.held()
        wanted = ((self.hook, config.paths.hook_socket, ""),
                  (self.control, config.paths.control_socket, config.watch.status_group))
        lost = [each for each in wanted if not held or not each[0].in_place()]
        if not lost:
            return Renewal(False)
        if not held:
            absent = not config.paths.run.exists()
            self._lock.again()
            if absent:
                config.paths.run.chmod(0o755)  # whatever the umask: the sockets have their own modes
        failures: list[OSError | ConfigError] = []
        for listener, path, group in lost:
            try:
                listener.renew(path, group)
            except (OSError, ConfigError) as err:
                failures.append(err)
        made = len(failures) < len(lost) or not held
        if made:
            logger.error("%s was removed or replaced: its lock and sockets are made again", config.paths.run)
            renewed, self._renewed = self._renewed, asyncio.Event()
            renewed.set()
        return Renewal(made, failures[0] if failures else None)

    def restarted(self, source: Source) -> Source:
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
        self.hook.remove()
        self.control.remove()
