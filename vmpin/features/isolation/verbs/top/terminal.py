"""The terminal in raw mode: keys, size, signals. What was there is given back on every way out."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Self

from vmpin.features.isolation.verbs.top.view_state import decode

#: The alternate screen without a cursor, and back with the attributes as they were.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
#: Seconds that the rest of a key's sequence may take, over a slow line.
_REST = 0.1
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Terminal:
    """A context. Inside it SIGTERM, SIGHUP and SIGINT only set `ended` (the number), Ctrl-Z stops the program as it
    does others, and `redraw` is True after that and after a change of the size.

    :param wake: a descriptor that `keys` returns for when it can be read.
    """

    def __init__(self, keyboard: int, screen: int, wake: int) -> None:
        self._keyboard, self._screen, self._wake = keyboard, screen, wake
        self._saved: list[object] | None = None
        self._handlers: dict[int, object] = {}
        self._rest = b""
        self._pipe = (-1, -1)
        self.ended = 0
        self.redraw = True

    def __enter__(self) -> Self:
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for number in (*_ENDING, signal.SIGWINCH, signal.SIGTSTP):
                self._handlers[number] = signal.signal(number, self._signalled)
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            self._take()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        with _while_blocked():
            self._give_back()
            signal.set_wakeup_fd(-1)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            self._handlers.clear()
            for fd in self._pipe:
                if fd >= 0:
                    os.close(fd)
            self._pipe = (-1, -1)

    def _take(self) -> None:
        """Raw mode but for signals: the keys come at once and are not echoed."""
        mode = termios.tcgetattr(self._keyboard)
        if self._saved is None:
            self._saved = list(mode)
        mode[0] &= ~(termios.ICRNL | termios.IXON)
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        mode[6] = [*mode[6]]
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._keyboard, termios.TCSADRAIN, mode)
        self.write(_ENTER)
        self.redraw = True

    def _give_back(self) -> None:
        saved = self._saved
        if saved is None:
            return
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self.write(_LEAVE)
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, saved)  # type: ignore[arg-type]

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGWINCH:
            self.redraw = True
        elif number == signal.SIGTSTP:
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)  # goes on here after SIGCONT
            self._take()
        else:
            self.ended = number

    def size(self) -> tuple[int, int]:
        """(columns, lines)."""
        try:
            size = os.get_terminal_size(self._screen)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def write(self, text: str) -> None:
        """Write all of a text to the screen. :raises OSError: when the terminal is gone."""
        raw = text.encode("utf-8", "backslashreplace")
        while raw:
            raw = raw[os.write(self._screen, raw):]

    def keys(self) -> list[str]:
        """The keys that were pressed; [] after `wake`, and when a signal set something.

        :raises OSError: when the terminal is gone.
        """
        ready = self._wait(None)
        if self._keyboard not in ready:
            return []
        part = os.read(self._keyboard, 4096)
        if not part:
            raise OSError("the terminal is gone")
        keys, self._rest = decode(self._rest + part, more=True)
        while self._rest:
            part = os.read(self._keyboard, 4096) if self._keyboard in self._wait(_REST, waking=False) else b""
            further, self._rest = decode(self._rest + part, more=bool(part))
            keys += further
        return keys

    def _wait(self, seconds: float | None, waking: bool = True) -> list[int]:
        watched = [self._keyboard, *([self._wake, self._pipe[0]] if waking else [])]
        ready, _, _ = select.select(watched, [], [], seconds)
        for fd in ready:
            if fd != self._keyboard:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
        return ready


@contextlib.contextmanager
def _while_blocked() -> Iterator[None]:
    """No handler runs meanwhile: a second SIGTERM does not stop the terminal from being given back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_ENDING, signal.SIGTSTP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
