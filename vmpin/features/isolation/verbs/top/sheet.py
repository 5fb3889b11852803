"""What is on the screen as lines and rows: of the pods, of one pod's threads, of foreign threads, of a text.

Pure: from the usage of a node and the state of the view. Texts of others are escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from vmpin.domain.drift import NO_EVIDENCE
from vmpin.domain.terminal import number_of, printable, short_id
from vmpin.features.isolation.top.node_description import DescribedPod
from vmpin.features.isolation.top.pod_usage import CpuUse, ForeignThread, NodeUsage, PodUsage, ThreadUsage, sorted_pods
from vmpin.features.isolation.verbs.top.view_state import Line, ListedRows, Mode, Page, State, View

#: Foreign threads, and CPUs, that a pod's page lists above its threads.
_MOST = 4
#: Notes of features on each of these CPUs.
_MOST_NOTES = 2
#: Styles of rich.
_BAD, _ODD, _DIM, _BOLD = "bold red", "yellow", "dim", "bold"


class Column(NamedTuple):
    """`least` is its width at least, `most` at most (0: whatever is left), twice that on a wide screen; it is shown
    from `screen` columns on."""

    title: str
    least: int = 0
    most: int = 0
    right: bool = False
    screen: int = 0


class Row(NamedTuple):
    """`marked`: needs attention. `styles` by column, "" for none."""

    id: str
    cells: tuple[str, ...]
    marked: bool = False
    styles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sheet:
    """A page: lines, then a table, or a text that scrolls (`text`), then the line of keys."""

    head: tuple[Line, ...]
    keys: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    text: tuple[Line, ...] = ()
    #: Instead of rows where there are none.
    empty: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.rows) if self.columns else ("",) * len(self.text)

    def height(self, screen: int) -> int:
        """How many rows fit on a screen of so many lines."""
        return max(1, screen - len(self.head) - bool(self.columns) - 1)

    def listed(self, screen: int) -> ListedRows:
        return ListedRows(self.ids, self.height(screen))


class Surroundings(NamedTuple):
    """What the head shows besides: the name of the node, the local time of the sample, the delay, and what is amiss
    with the watcher ("" for nothing)."""

    node: str
    time: str
    delay: float
    watcher: str


PODS = (Column("POD", 8), Column("CPUS", 4, 14), Column("BUSY", 5, 5, True), Column("FOREIGN/s", 9, 9, True),
        Column("WAITED/s", 8, 9, True), Column("DRIFT", 5, 6, True), Column("GUEST", 8, 10),
        Column("IN PLACE", 8, 9, True, 96), Column("VERDICT", 9, 9, screen=108), Column("KIND", 7, 7, screen=116),
        Column("ID", 12, 14, screen=132))
THREADS = (Column("THREAD", 7, 7, True), Column("ROLE", 8, 10), Column("NAME", 8), Column("CPU", 3, 4, True),
           Column("MASK", 6, 12), Column("BUSY", 5, 5, True), Column("WAITED/s", 8, 9, True), Column("PLACE", 8, 14))
FOREIGN = (Column("FOREIGN/s", 9, 9, True), Column("CPU", 3, 4, True), Column("CPU OF", 10), Column("RAN BY", 10),
           Column("THREAD", 7, 17), Column("PROCESS", 10, 16))


def percent(spent: int, seconds: float) -> str:
    """The part of one CPU that `spent` (ns) is: `187%`; "-" before anything was measured."""
    if not seconds:
        return "-"
    share = spent / seconds / 1e7
    return "<1%" if 0 < share < 0.5 else f"{share:.0f}%"


def rate(spent: int, seconds: float, exact: bool = True) -> str:
    """Milliseconds in each second: `31 ms`, with `~` before an estimate; "-" before anything was measured."""
    if not seconds:
        return "-"
    milliseconds = spent / seconds / 1e6
    text = "<1 ms" if 0 < milliseconds < 0.5 else f"{milliseconds:.0f} ms"
    return text if exact or not spent else f"~{text}"


def cpus_text(pod: DescribedPod) -> str:
    """`5-6+0-1`: 5 and 6 are its own, 0 and 1 shared; without CPUs of its own `+0-1`."""
    shared = f"+{pod.shared}" if pod.shared else ""
    return f"{pod.exclusive}{shared}" if pod.exclusive or shared else "-"


def sheet(usage: NodeUsage, state: State, around: Surroundings) -> Sheet:
    """The page on top."""
    page = state.page
    shown = {View.PODS: _pods, View.THREADS: _threads, View.FOREIGN: _foreign, View.TEXT: _text}[page.view](
        usage, page, around)
    return _with_prompt(shown, usage, state)


def _with_prompt(shown: Sheet, usage: NodeUsage, state: State) -> Sheet:
    page, keys = state.page, shown.keys
    if state.mode is Mode.FILTER:
        keys = f"filter: {printable(page.filter)}_   Enter: keep it, Esc: as before"
    elif state.mode is Mode.CONFIRM:
        title = page.pod if page.view is not View.PODS else page.selected
        keys = f"y or n: set the masks of {title_of(usage, title)} now, as `vmpin repin` does?"
    elif state.notice:
        keys = printable(state.notice)
    elif state.paused:
        keys = f"PAUSED, p goes on   {keys}"
    return replace(shown, keys=keys)


def title_of(usage: NodeUsage, pod: str) -> str:
    return printable(usage.description.titles.get(pod) or short_id(pod))


def _first(around: Surroundings, more: str) -> tuple[Line, ...]:
    """The first line, and one of what is amiss with the watcher."""
    first = f"  {printable(around.node)}  {around.time}  every {around.delay:g} s  {more}"
    trouble = (((printable(around.watcher), _BAD),),) if around.watcher else ()
    return ((("vmpin top", _BOLD), (first, "")), *trouble)


def _trouble(usage: NodeUsage) -> Line:
    """The line on foreign time, and on everything that is not as it should be."""
    description = usage.description
    owners = sum(pod.foreign > 0 for pod in usage.pods)
    collisions = len(description.collisions)
    # First: a narrow screen cuts the line's end.
    parts: list[tuple[str, str]] = [(f"{number_of(collisions, 'collision')} (m)", _BAD)] * bool(collisions)
    if not usage.seconds:
        parts.append(("measuring", _DIM))
    elif owners:
        parts.append((f"foreign {rate(usage.foreign, usage.seconds, not usage.estimated)} a second on CPUs of "
                      f"{number_of(owners, 'pod')}", _BAD))
    elif description.owned:
        parts.append(("no foreign thread ran", ""))
    else:
        parts.append(("no CPU is exclusive", ""))
    disordered = sum(not pod.calm for pod in description.pods)
    parts += [(f"{number_of(disordered, 'pod')} not in order (!)", _ODD)] * bool(disordered)
    parts += [("other PID namespace: kernel threads are hidden", _BAD)] * (not usage.kernel_seen)
    parts += [("run times in ticks only", _ODD)] * (not usage.precise)
    return tuple(text for part in parts for text in (("; ", ""), part))[1:]


def foreign_text(thread: ForeignThread, usage: NodeUsage, owner: bool) -> str:
    """`~31 ms on CPU 5 of demo/shop by demo/noisy: process 4700 (stress), thread 4711 (burn)`"""
    which = f", thread {thread.tid} ({thread.name})" if thread.pid != thread.tid else ""
    whose = f" of {title_of(usage, thread.owner)}" if owner else ""
    return printable(f"{rate(thread.ran, usage.seconds, thread.exact)} on CPU {thread.cpu}{whose} by {thread.home}: "
                     f"process {thread.pid} ({thread.process}){which}")


def _matching(rows: Sequence[Row], text: str) -> tuple[Row, ...]:
    part = text.casefold()
    return tuple(row for row in rows if not part or any(part in cell.casefold() for cell in row.cells))


def _shown(page: Page, count: int, what: str) -> str:
    """Describe the rows, for the first line. :param count: of the rows that match the filter."""
    return f"{count} of {what}, filter {page.filter!r}" if page.filter else what


# Pods

def _pods(usage: NodeUsage, page: Page, around: Surroundings) -> Sheet:
    shown = [pod_row(row, usage) for row in sorted_pods(usage.pods, page.sort) if row.matches(page.filter)]
    count = len(usage.pods)
    most = next(iter(usage.foreign_threads), None)
    return Sheet(
        (*_first(around, _shown(page, len(shown), f"{number_of(count, 'pod')} by {page.sort}")), _trouble(usage),
         ((f"most: {foreign_text(most, usage, owner=True)}", _BAD),) if most is not None else ()),
        "Enter threads  f foreign  t most  e why  m map  / filter  r repin  s sort  ? q", PODS, tuple(shown),
        empty="no pod matches the filter" if count else
        "no VM sandbox runs on this node, and no container has exclusive CPUs")


def pod_row(row: PodUsage, usage: NodeUsage) -> Row:
    pod, seconds = row.pod, usage.seconds
    foreign = rate(row.foreign, seconds, row.exact) if pod.exclusive else ""
    ok, threads = pod.in_place
    return Row(pod.id, tuple(printable(cell) for cell in (
        pod.title, cpus_text(pod), percent(row.busy, seconds), foreign,
        rate(row.waited, seconds) if usage.precise else "?", str(pod.drift) if pod.verdict else "", pod.guest or "-",
        f"{ok}/{threads}" if pod.verdict else "", pod.verdict or "-",
        {"vm": "VM", "kubelet": "kubelet"}.get(pod.kind, pod.kind), pod.id[:12])), not pod.calm,
        (_ODD if not pod.calm else "", "", "", _BAD if row.foreign else "", "", "",
         _ODD if pod.guest in ("error", "no agent") else "", _ODD if ok < threads else "", _ODD * (not pod.calm)))


# The threads of one pod

_THREAD_ORDER: dict[str, Callable[[ThreadUsage], tuple[object, ...]]] = {
    "role": lambda row: (), "busy": lambda row: (-row.busy,), "waited": lambda row: (-row.waited,),
    "name": lambda row: (row.name,)}


def _threads(usage: NodeUsage, page: Page, around: Surroundings) -> Sheet:
    row = next((pod for pod in usage.pods if pod.pod.id == page.pod), None)
    if row is None:
        return Sheet((*_first(around, ""), (), ()), "q back", THREADS, empty="this pod has ended")
    threads = sorted(row.threads(), key=_THREAD_ORDER[page.sort])
    rows = [_thread_row(thread, usage) for thread in threads]
    shown = _matching(rows, page.filter)
    title = _shown(page, len(shown), f"{number_of(len(rows), 'thread')} by {page.sort}")
    head = (*_first(around, title), *_about(row, usage))
    return Sheet(head, "q back  f foreign  t most  e why  m map  / filter  r repin  s sort  ? help", THREADS,
                 shown, empty="no thread of it ran" if not page.filter else "no thread matches the filter")


def _about(row: PodUsage, usage: NodeUsage) -> list[Line]:
    """A pod in full: its state, the use of its exclusive CPUs, the foreign threads."""
    pod, seconds = row.pod, usage.seconds
    ok, threads = pod.in_place
    state = f"{pod.verdict}, {ok}/{threads} in place" if pod.verdict else "no VM"
    guest = f"; guest {pod.guest}" if pod.guest else ""
    lines: list[Line] = [((printable(pod.title), _BOLD), (printable(f": {state}; CPUs {cpus_text(pod)}{guest}"), ""))]
    lines += [((printable(f"! {reason}"), _ODD),) for reason in pod.reasons[:2]]
    if pod.drift:
        how = " (e has the command that finds the program)" if pod.why == NO_EVIDENCE else ""
        lines.append(((printable(f"put back {number_of(pod.drift, 'time')}, last: {pod.why}{how}"), _ODD),))
    for use in usage.cpus_of(pod)[:_MOST]:
        lines.append(_use(use, seconds))
        lines += [((printable(f"  {note}"), _DIM),) for note in usage.description.notes.get(use.cpu, ())[:_MOST_NOTES]]
    foreign = usage.foreign_threads_of(pod.id)
    lines += [((f"  foreign {foreign_text(thread, usage, owner=False)}", _BAD),) for thread in foreign[:_MOST]]
    if len(foreign) > _MOST:
        lines.append(((f"  and {len(foreign) - _MOST} more, f lists them", _DIM),))
    return lines


def _use(use: CpuUse, seconds: float) -> Line:
    busy = "" if use.busy is None else f"busy {percent(use.busy, seconds)}, "
    unseen = "" if use.busy is None else f", unseen {rate(use.unseen, seconds, False)}"
    return ((f"CPU {use.cpu}: {busy}its own {percent(use.own, seconds)}, foreign ", ""),
            (rate(use.foreign, seconds, use.exact), _BAD if use.foreign else ""),
            (f", kernel {rate(use.kernel, seconds)}{unseen}", ""))


def _thread_row(thread: ThreadUsage, usage: NodeUsage) -> Row:
    place = "ok" if thread.ok and thread.mask else f"not on {thread.wanted}" if not thread.ok else ""
    return Row(str(thread.tid), tuple(printable(cell) for cell in (
        thread.tid, thread.role or "-", thread.name, "-" if thread.cpu is None else thread.cpu, thread.mask or "-",
        percent(thread.busy, usage.seconds), rate(thread.waited, usage.seconds) if usage.precise else "?", place)),
        not thread.ok, ("", "", "", "", "", "", "", "" if thread.ok else _ODD))


# Foreign threads

def _foreign(usage: NodeUsage, page: Page, around: Surroundings) -> Sheet:
    whose = title_of(usage, page.pod) if page.pod else "all pods"
    rows = [_foreign_row(thread, usage) for thread in usage.foreign_threads_of(page.pod or None)]
    shown = _matching(rows, page.filter)
    note = ("~ is an estimate: the thread may run on other CPUs, too (? has more)", _DIM)
    count = f"{len(rows)} foreign thread{'s' * (len(rows) != 1)} on CPUs of {whose}"
    return Sheet((*_first(around, _shown(page, len(shown), count)), _trouble(usage), (note,)),
                 "q back  t most  e why  m map  / filter  F foreign threads of all pods  ? help", FOREIGN, shown,
                 empty="no foreign thread ran in the last interval" if not page.filter else
                 "no foreign thread matches the filter")


def _foreign_row(thread: ForeignThread, usage: NodeUsage) -> Row:
    process = "-" if thread.pid == thread.tid else f"{thread.process} {thread.pid}"
    return Row(f"{thread.tid}:{thread.cpu}:{thread.owner}", tuple(printable(cell) for cell in (
        rate(thread.ran, usage.seconds, thread.exact), thread.cpu, title_of(usage, thread.owner), thread.home,
        f"{thread.name} {thread.tid}", process)))


# Texts

def _text(usage: NodeUsage, page: Page, around: Surroundings) -> Sheet:
    return Sheet((((printable(page.title), _BOLD),), ()), "q back  Space or b: a page on or back  arrows  g  G",
                 text=page.lines)


def text_lines(text: Sequence[str] | str) -> tuple[Line, ...]:
    """Lines for a page of text."""
    lines = text.splitlines() if isinstance(text, str) else text
    return tuple(((printable(line), ""),) for line in lines)
