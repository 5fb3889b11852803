"""The watcher's run directory while it runs: its lock and sockets, which are created again where they were removed.

A clean-up of /run or `rm -rf` may remove the directory: the lock that is held then locks nothing any more, another
watcher may start, and no hook and no command finds the sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from vmpin.config.settings import Config
from vmpin.daemon.supervision import Source
from vmpin.errors import ConfigError, LockHeldError, WatcherError
from vmpin.host.files import Identity, identity
from vmpin.host.lock import Lock
from vmpin.host.sockets import listen, unlink_own

logger = logging.getLogger(__name__)


class Listener:
    """One listening socket of the run directory, and the identity of its file; closed until `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._own: Identity | None = None
        self._failure: OSError | ConfigError = OSError(errno.ENOTCONN, "is not open")

    def in_place(self) -> bool:
        """Whether the file at its path is this socket."""
        return self._own is not None and self._own == identity(self.path)

    def open(self, group: str) -> None:
        """Listen. The socket before is closed first, so that its clients are refused at once.
        :raises OSError, ConfigError: when it cannot listen there; then `in_place` is False."""
        self._close()
        self._socket = self._own = None
        try:
            if not self.path.parent.exists():
                self.path.parent.mkdir()
                self.path.parent.chmod(0o755)  # whatever the umask: the socket has its own mode
            self._socket = listen(self.path, group)
        except (OSError, ConfigError) as err:
            self._failure = err
            raise
        self._own = identity(self.path)

    def dup(self) -> socket.socket:
        """Duplicate the descriptor, for the task that serves it. :raises OSError, ConfigError: why there is no
        socket."""
        if self._socket is None:
            raise self._failure.with_traceback(None)  # else it keeps the frames of every attempt
        return self._socket.dup()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def remove(self) -> None:
        """Stop listening, and remove the file unless it is another's."""
        self._close()
        unlink_own(self.path, self._own)


class RunDirectory:
    """The lock is held from before `open` until after `close`.
    :param renewed: called when a part was created again: then the state is to be saved again."""

    def __init__(self, config: Config, lock: Lock, renewed: Callable[[], None] = lambda: None) -> None:
        self._config, self._lock, self._on_renewed = config, lock, renewed
        self.hook, self.control = Listener(config.paths.hook_socket), Listener(config.paths.control_socket)
        self.status = Listener(config.paths.status_socket)
        self._renewed = asyncio.Event()
        #: Set when another process holds the lock: the directory is its own then, and this watcher ends.
        self.ousted: LockHeldError | None = None
        self._failure = ""  #: Why `renew` failed the last time, "" if it did not.

    def open(self) -> None:
        """Listen on all sockets. :raises OSError, ConfigError: when it cannot listen on one."""
        for listener, group in self._wanted(self._config):
            listener.open(group)

    def _wanted(self, config: Config) -> tuple[tuple[Listener, str], ...]:
        group = config.watch.status_group
        return (self.hook, ""), (self.control, group), (self.status, group)

    def keep(self, config: Config) -> bool:
        """`renew`, with each new failure in the log. :returns: False when another process holds the lock."""
        if self.ousted is not None:
            return False
        try:
            self.renew(config)
            self._failure = ""
        except LockHeldError as err:
            logger.error("the run directory was removed, and another watcher has it now: %s", err)
            self.ousted = err
        except (OSError, ConfigError, WatcherError) as err:  # the threads are kept in place meanwhile
            if self._failure != str(err):
                logger.error("run directory cannot be created again: %s: %s; retried at every resync",
                             config.paths.run, err)
            self._failure = str(err)
        return self.ousted is None

    def renew(self, config: Config) -> bool:
        """Create again what was removed: the lock first, then each socket, whether or not another one fails.
        :returns: whether anything had been removed.
        :raises LockHeldError: when another process holds the lock, whose directory it is then.
        :raises WatcherError, OSError, ConfigError: the first failure."""
        held, run = self._lock.held(), config.paths.run
        lost = [(listener, group) for listener, group in self._wanted(config) if not held or not listener.in_place()]
        if not lost:
            return False
        if not held:
            absent = not run.exists()
            self._lock.again()
            if absent:
                run.chmod(0o755)  # whatever the umask: the sockets have their own modes
        failures: list[OSError | ConfigError] = []
        for listener, group in lost:
            try:
                listener.open(group)
            except (OSError, ConfigError) as err:
                failures.append(err)
        if len(failures) < len(lost) or not held:
            logger.error("run directory was removed or replaced: %s: its lock and sockets are created again", run)
            renewed, self._renewed = self._renewed, asyncio.Event()
            renewed.set()
            self._on_renewed()
        if failures:
            raise failures[0]
        return True

    def restarted(self, source: Source) -> Source:
        """`source`, which is started again whenever a part of the directory was created again."""

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
        """Remove the sockets, but none of another watcher; one that cannot be removed (EROFS) stays. The status
        socket's directory stays: a container that has mounted it would not see a new one of that name."""
        for listener in (self.hook, self.control, self.status):
            with contextlib.suppress(OSError):
                listener.remove()
