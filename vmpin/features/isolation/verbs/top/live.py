"""The loop of the live view: keys and results of the feed change the state, and the changed lines are written."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console

from vmpin.cli.repin import outcome_lines, reconciled
from vmpin.config.settings import Config
from vmpin.domain.model import SandboxId
from vmpin.domain.terminal import number_of, printable
from vmpin.errors import VmpinError
from vmpin.feature import features, present
from vmpin.features.isolation.top.pod_usage import NodeUsage
from vmpin.features.isolation.verbs.top.feed import NodeReader, UsageFeed
from vmpin.features.isolation.verbs.top.screen import ScreenWriter, laid_out, wrapped
from vmpin.features.isolation.verbs.top.sheet import Sheet, Surroundings, sheet, text_lines, title_of
from vmpin.features.isolation.verbs.top.terminal import Terminal
from vmpin.features.isolation.verbs.top.view_state import (
    Line,
    Page,
    Request,
    State,
    View,
    answered,
    reduce,
    with_selection,
)


class AnswerPage(NamedTuple):
    """The result of a request: a page of text."""

    title: str
    lines: tuple[Line, ...]


#: What is made of the usage alone, and waits for no watcher.
_AT_ONCE = ("help", "explain", "foremost")

HELP = """\
arrows, j, k, g, G   move; the cursor stays on row 1 until it is moved, and g
                     puts it back there
PgDn, Space, PgUp, b a page on or back
Enter   the threads of a pod            m   the map of the node
f or d  foreign threads on its CPUs     r   repin: set its masks; asks first
F       foreign threads on all CPUs     /   filter (Esc: none)
t       the foreign program with most   s   next order; S B W D N choose one
        time on the CPUs of row 1       p   pause the display
e       explain its threads' CPUs       q   back; on the first page: quit

CPUS       5-6+0-1: CPUs 5 and 6 are exclusive to it, it shares 0 and 1
BUSY       run time of its threads, in % of one CPU: 200% are two CPUs
FOREIGN/s  time in each second that foreign threads ran on its exclusive CPUs;
           empty without any. A kernel thread that is bound to a CPU belongs
           to that CPU: a pod's page counts it as "kernel", not as foreign
WAITED/s   time in each second that its threads were ready to run, with no CPU
DRIFT      how many times the watcher put a thread back after another program
           had changed its mask
GUEST      the most urgent state of its containers in the guest
IN PLACE   (wide screens) threads that have the mask that the rules give them
PLACE      of a thread: ok, or the CPUs that the rules give it
!          the verdict is not pinned or floating: Enter or e gives the reasons
~          an estimate: the kernel counts a thread's run time and keeps its
           last CPU, so all time of a thread that may run on several CPUs
           counts for the last one. Without ~ it may run on that CPU alone
unseen     busy time of the CPU that no thread had: interrupts, and threads
           that began and ended between two samples. Busy time is counted in
           steps of 10 ms
"""


class Answers:
    """:param direct: without the watcher, as the option --direct has it."""

    def __init__(self, config: Config, direct: bool) -> None:
        self._config, self._direct = config, direct

    def __call__(self, request: Request, usage: NodeUsage, columns: int) -> Callable[[], AnswerPage]:
        page_of = {"explain": self._explain, "map": self._map, "repin": self._repin,
                   "foremost": self._foremost}.get(request.what)
        if page_of is None:
            return lambda: AnswerPage("vmpin top", text_lines(HELP))
        return lambda: page_of(usage, request.pod, columns)

    def _explain(self, usage: NodeUsage, pod: str, columns: int) -> AnswerPage:
        from vmpin.status.explain import sentences
        title = f"explain {title_of(usage, pod)}"
        document = usage.description.document
        entry = next((sandbox for sandbox in document["sandboxes"] if sandbox["id"] == pod), None)
        if entry is not None:
            return AnswerPage(title, text_lines(sentences(document, entry)))
        owners = [owner for owner in usage.description.owners if owner.sandbox == pod]
        return AnswerPage(title, text_lines(["It has no VM: vmpin sets no mask in it.", *(
            f"CPUs {owner.cpus} are exclusive to {owner.label}." for owner in owners)]))

    def _foremost(self, usage: NodeUsage, pod: str, columns: int) -> AnswerPage:
        from vmpin.features.isolation.verbs.top.foremost_program import foremost_program
        whose = title_of(usage, pod) if pod else "all pods"
        return AnswerPage(f"the foreign program with the most time on CPUs of {whose}",
                          text_lines([*foremost_program(usage, pod)]))

    def _map(self, usage: NodeUsage, pod: str, columns: int) -> AnswerPage:
        document = usage.description.document
        map_lines = next(present(feature.map_lines for feature in features()), None)
        if map_lines is None:
            return AnswerPage("map of the node", text_lines(["This installation of vmpin has no map."]))
        lines = map_lines(self._config, document, self._direct, columns)
        return AnswerPage(f"map of the node at {document['time']}", tuple(
            tuple((printable(text), style) for text, style in line) for line in lines))

    def _repin(self, usage: NodeUsage, pod: str, columns: int) -> AnswerPage:
        if all(sandbox["id"] != pod for sandbox in usage.description.document["sandboxes"]):
            return AnswerPage("repin", text_lines(["It has no VM: vmpin sets no mask in it."]))
        outcome = reconciled(self._config, SandboxId(pod))
        return AnswerPage(f"repin {title_of(usage, pod)}", text_lines(outcome_lines(outcome) or [
            f"{number_of(outcome['vms'], 'VM')}, nothing to change"]))


def rewrapped(state: State, before: int, columns: int) -> State:
    """The state with the same line of a text on top after the screen's width has changed."""
    def top(page: Page) -> int:
        above = 0
        while len(wrapped(page.lines[:above + 1], before)) <= page.top and above < len(page.lines):
            above += 1
        return len(wrapped(page.lines[:above], columns))
    if not before or before == columns:
        return state
    return replace(state, pages=tuple(replace(page, top=top(page)) if page.top and page.view is View.TEXT else page
                                      for page in state.pages))


class LiveView:
    """:param count: how many refreshes, 0 for no end. :param answers: the pages that requests ask for."""

    def __init__(self, reader: NodeReader, delay: float, count: int, state: State, answers: Answers) -> None:
        self._reader, self._delay, self._left = reader, delay, count or -1
        self._state = state
        self._answers = answers
        self._usage: NodeUsage | None = None
        self._time = ""
        self._columns = 0

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
            self._state = rewrapped(self._state, self._columns, columns)
            self._columns = columns
            if terminal.redraw:
                terminal.redraw = False
                writer.forget()
            page = self._sheet(columns)
            self._state = with_selection(self._state, page.listed(lines))
            terminal.write(writer.update(laid_out(page, self._state, columns, lines)))
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
        page = sheet(self._usage, self._state, around)
        if self._state.page.view is not View.TEXT:
            return page
        return replace(page, text=wrapped(page.text, columns))

    def _show(self, usage: NodeUsage) -> None:
        self._usage, self._time = usage, time.strftime("%H:%M:%SZ", time.gmtime())

    def _carry_out(self, feed: UsageFeed, columns: int) -> None:
        """Start what the state asks for."""
        request = self._state.request
        if request is None:
            return
        assert self._usage is not None
        self._state = replace(self._state, request=None, notice=f"{request.what} …")
        task = self._answers(request, self._usage, columns)
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
