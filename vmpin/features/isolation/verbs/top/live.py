"""The loop of the live view: keys and results of the feed change the state, and the changed lines are written."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console

from vmpin.errors import VmpinError
from vmpin.features.isolation.top.pod_usage import NodeUsage
from vmpin.features.isolation.verbs.top.feed import NodeReader, UsageFeed
from vmpin.features.isolation.verbs.top.screen import ScreenWriter, laid_out, wrapped
from vmpin.features.isolation.verbs.top.sheet import Sheet, Surroundings, sheet, text_lines
from vmpin.features.isolation.verbs.top.terminal import Terminal
from vmpin.features.isolation.verbs.top.view_state import Line, Request, State, View, answered, reduce, with_selection


class AnswerPage(NamedTuple):
    """The result of a request: a page of text."""

    title: str
    lines: tuple[Line, ...]


#: What is made of the usage alone, and waits for no watcher.
_AT_ONCE = ("help", "explain")
#: Makes the answer to a request, with the usage that is shown and the width of the screen. The second function of
#: what it returns runs in the feed's thread.
Answering = Callable[[Request, NodeUsage, int], Callable[[], AnswerPage]]


class LiveView:
    """:param count: how many refreshes, 0 for no end. :param answering: makes what requests ask for."""

    def __init__(self, reader: NodeReader, delay: float, count: int, state: State, answering: Answering) -> None:
        self._reader, self._delay, self._left = reader, delay, count or -1
        self._state = state
        self._answering = answering
        self._usage: NodeUsage | None = None
        self._time = ""

    def run(self) -> int:
        """Show the view until it is ended. :returns: the exit code."""
        self._show(self._reader.first())
        # A warning of what is read would be written across the screen.
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with UsageFeed(self._reader, self._delay) as feed, Terminal(0, 1, feed.wake) as terminal:
                return self._loop(feed, terminal)
        finally:
            logging.disable(before)

    def _loop(self, feed: UsageFeed, terminal: Terminal) -> int:
        writer = ScreenWriter(Console(force_terminal=True, width=1000))
        while True:
            columns, lines = terminal.size()
            if terminal.redraw:
                terminal.redraw = False
                writer.forget()
            made = self._sheet(columns)
            self._state = with_selection(self._state, made.listed(lines))
            terminal.write(writer.update(laid_out(made, self._state, columns, lines)))
            keys = terminal.keys()
            if terminal.ended:
                return 128 + terminal.ended
            for key in keys:
                if key == "redraw":
                    terminal.redraw = True
                    continue
                self._state = reduce(self._state, key, self._sheet(columns).listed(lines))
                self._state = with_selection(self._state, self._sheet(columns).listed(lines))
                self._carry_out(feed, columns)
            if self._state.ended or not self._take(feed.results()):
                return 0

    def _sheet(self, columns: int) -> Sheet:
        assert self._usage is not None
        around = Surroundings(os.uname().nodename, self._time, self._delay, self._reader.trouble)
        found = sheet(self._usage, self._state, around)
        if self._state.page.view is not View.TEXT:
            return found
        return replace(found, text=wrapped(found.text, columns))

    def _show(self, usage: NodeUsage) -> None:
        self._usage, self._time = usage, time.strftime("%H:%M:%SZ", time.gmtime())

    def _carry_out(self, feed: UsageFeed, columns: int) -> None:
        """Start what the state asks for."""
        request = self._state.request
        if request is None:
            return
        assert self._usage is not None
        self._state = replace(self._state, request=None, notice=f"{request.what} …")
        task = self._answering(request, self._usage, columns)
        if request.what in _AT_ONCE:
            self._take([task()])
        else:
            feed.put(task)

    def _take(self, results: Sequence[object]) -> bool:
        """Take in what the feed has brought. :returns: False after the last refresh.

        :raises BaseException: that ended the feed's reading.
        """
        for result in results:
            if isinstance(result, AnswerPage):
                self._state = answered(self._state, result.title, result.lines)
            elif isinstance(result, VmpinError):
                hint = f" ({result.hint})" if result.hint else ""
                self._state = answered(self._state, "the request failed", text_lines([f"{result}{hint}"]))
            elif isinstance(result, BaseException):
                raise result
            elif isinstance(result, NodeUsage):
                self._left -= 1
                if not self._state.paused:
                    self._show(result)
                if self._left == 0:
                    return False
        return True
