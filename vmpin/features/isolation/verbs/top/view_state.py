"""What the live view shows, and how a key changes that. Pure.

A page lies on the page that it was opened from. What a key asks of the outside (explain, map, repin, foremost) is
left in `State.request`, which the caller carries out.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

#: A line as texts with styles of rich.
Line = tuple[tuple[str, str], ...]

POD_SORTS = ("foreign", "busy", "waited", "drift", "name")
THREAD_SORTS = ("role", "busy", "waited", "name")
_LONGEST_FILTER = 100


class View(enum.StrEnum):
    PODS = "pods"
    THREADS = "threads"  #: Of one pod.
    FOREIGN = "foreign"  #: Foreign threads on CPUs of one pod, or of all.
    TEXT = "text"


class Mode(enum.StrEnum):
    NORMAL = "normal"
    FILTER = "filter"  #: The keys are written into the filter.
    CONFIRM = "confirm"  #: A repin waits for y or n.


class Request(NamedTuple):
    """`what` is explain, map, repin or foremost (the foreign program with the most time); `pod` as
    DescribedPod.id, "" for none."""

    what: str
    pod: str = ""


class ListedRows(NamedTuple):
    """The rows of the page on top: their ids in order, of a text "" for each line, and how many fit. `titles` are
    of the pods that are listed, by id."""

    ids: tuple[str, ...]
    height: int


@dataclass(frozen=True)
class Page:
    """`selected` is the id of a row, `top` the number of the first one that is shown. Until the cursor is `moved` it
    stays on the first row, whichever that is."""

    view: View
    pod: str = ""
    title: str = ""
    lines: tuple[Line, ...] = ()
    sort: str = "foreign"
    filter: str = ""
    selected: str = ""
    top: int = 0
    moved: bool = False


@dataclass(frozen=True)
class State:
    pages: tuple[Page, ...] = (Page(View.PODS),)
    mode: Mode = Mode.NORMAL
    before: str = ""  #: The filter before it was edited.
    paused: bool = False
    notice: str = ""
    request: Request | None = None
    ended: bool = False

    @property
    def page(self) -> Page:
        return self.pages[-1]

    def with_page(self, **changes: object) -> State:
        return replace(self, pages=(*self.pages[:-1], replace(self.page, **changes)))  # type: ignore[arg-type]

    def opened(self, page: Page) -> State:
        return replace(self, pages=(*self.pages, page))


def reduce(state: State, key: str, listed: ListedRows) -> State:
    """The state after a key. :param key: as keys.decode names it."""
    state = replace(state, notice="")
    if state.mode is Mode.FILTER:
        return _filter(state, key)
    if state.mode is Mode.CONFIRM:
        return replace(state, mode=Mode.NORMAL, notice="" if key == "y" else "nothing was done",
                       request=Request("repin", _pod(state)) if key == "y" else None)
    if key in _MOVES or key in _PAGES:
        return with_selection(_moved(state, key, listed), listed)
    if key in ("q", "escape", "left", "backspace"):
        return _back(state, key)
    return _command(state, key, listed)


def with_selection(state: State, listed: ListedRows) -> State:
    """The state with a row selected that exists, and the selected row in sight. A pod that a repin was asked for
    stays selected."""
    page, count = state.page, len(listed.ids)
    if page.view is View.TEXT:
        return state.with_page(top=max(0, min(page.top, count - listed.height)))
    kept = page.moved or state.mode is Mode.CONFIRM
    at = (min(0, count - 1) if not kept else listed.ids.index(page.selected) if page.selected in listed.ids
          else min(page.top, count - 1))
    if at < 0:
        return state.with_page(top=0)
    top = max(min(page.top, at, max(0, count - listed.height)), at - listed.height + 1)
    return state.with_page(selected=listed.ids[at], top=top)


def answered(state: State, title: str, lines: tuple[Line, ...]) -> State:
    """The state with a text opened: an answer to a request."""
    return replace(state, notice="").opened(Page(View.TEXT, title=title, lines=lines))


#: Rows that a key moves the cursor by, and pages that it moves the rows by.
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "home": 0, "end": 0, "g": 0, "G": 0}
_PAGES = {"pageup": -1, "b": -1, "pagedown": 1, " ": 1}


def _moved(state: State, key: str, listed: ListedRows) -> State:
    page, count = state.page, len(listed.ids)
    text = page.view is View.TEXT
    at = page.top if text else listed.ids.index(page.selected) if page.selected in listed.ids else 0
    rows = _PAGES.get(key, 0) * listed.height
    far = rows or {"home": -count, "g": -count, "end": count, "G": count}.get(key) or _MOVES[key]
    at = max(0, min(at + far, count - 1))
    if text:
        return state.with_page(top=at)
    top = max(0, min(page.top + rows, count - listed.height))
    return state.with_page(selected=listed.ids[at], top=top, moved=key not in ("home", "g")) if count else state


def _back(state: State, key: str) -> State:
    if len(state.pages) > 1:
        return replace(state, pages=state.pages[:-1])
    if key == "escape" and state.page.filter:
        return state.with_page(filter="")
    return replace(state, ended=True) if key == "q" else state


def _filter(state: State, key: str) -> State:
    text = state.page.filter
    if key == "enter":
        return replace(state, mode=Mode.NORMAL)
    if key == "escape":
        return replace(state.with_page(filter=state.before), mode=Mode.NORMAL)
    if key == "backspace":
        text = text[:-1]
    elif key == "clear":
        text = ""
    elif len(key) == 1:
        text = (text + key)[:_LONGEST_FILTER]
    return state.with_page(filter=text, top=0)


#: What a key shows, whatever is selected.
_SHOWN = {"h": "help", "?": "help", "m": "map"}


def _command(state: State, key: str, listed: ListedRows) -> State:
    page, pod = state.page, _pod(state)
    if key == "p":
        return replace(state, paused=not state.paused)
    if key in _SHOWN:
        return replace(state, request=Request(_SHOWN[key]))
    if key == "F":
        return state.opened(Page(View.FOREIGN))
    if page.view is View.TEXT:
        return state
    if key == "t":
        return replace(state, request=Request("foremost", next(iter(listed.ids), "") if page.view is View.PODS else
                                              page.pod))
    if key == "/":
        return replace(state, mode=Mode.FILTER, before=page.filter)
    if key in _SORTS:
        return _sorted(state, key)
    if not pod:
        return replace(state, notice="no pod is selected") if key in ("enter", "right", "e", "f", "d", "r") else state
    if key in ("enter", "right") and page.view is View.PODS:
        return state.opened(Page(View.THREADS, pod, sort="role"))
    if key in ("f", "d") and page.view is not View.FOREIGN:
        return state.opened(Page(View.FOREIGN, pod))
    if key == "e":
        return replace(state, request=Request("explain", pod))
    return replace(state, mode=Mode.CONFIRM) if key == "r" else state


_SORTS = {"s": "", "S": "foreign", "B": "busy", "W": "waited", "D": "drift", "N": "name"}


def _sorted(state: State, key: str) -> State:
    """`s` goes on to the next order; a capital letter chooses one, where the page has it."""
    orders = {View.PODS: POD_SORTS, View.THREADS: THREAD_SORTS}.get(state.page.view, ())
    if not orders:
        return state
    if key != "s":
        return state.with_page(sort=_SORTS[key]) if _SORTS[key] in orders else state
    return state.with_page(sort=orders[(orders.index(state.page.sort) + 1) % len(orders)])


def _pod(state: State) -> str:
    """The pod that a command is about, "" for none."""
    page = state.page
    return page.selected if page.view is View.PODS else page.pod


#: What terminals send for keys that are no character (ECMA-48, xterm's and the Linux console's forms).
_SEQUENCES = {
    b"[A": "up", b"[B": "down", b"[C": "right", b"[D": "left", b"OA": "up", b"OB": "down", b"OC": "right",
    b"OD": "left", b"[5~": "pageup", b"[6~": "pagedown", b"[H": "home", b"[F": "end", b"OH": "home", b"OF": "end",
    b"[1~": "home", b"[4~": "end", b"[7~": "home", b"[8~": "end"}
_CONTROLS = {0x0d: "enter", 0x0a: "enter", 0x7f: "backspace", 0x08: "backspace", 0x0c: "redraw", 0x02: "pageup",
             0x06: "pagedown", 0x15: "clear"}
#: A whole sequence after ESC: CSI with parameters, or SS3 with one byte.
_SEQUENCE = re.compile(rb"\[[0-9;?]*[ -/]*[@-~]|O[A-Za-z]")
_UNFINISHED = re.compile(rb"\[[0-9;?]*[ -/]*|O|")


def decode(raw: bytes, more: bool = False) -> tuple[list[str], bytes]:
    """(the keys, the bytes that are the beginning of one). A printable character is its own name; unknown sequences
    are dropped. :param more: False once no further byte has followed for a moment: a lone ESC is the key then."""
    keys: list[str] = []
    while raw:
        if raw[0] == 0x1b:
            whole = _SEQUENCE.match(raw, 1)
            if whole is None:
                if more and _UNFINISHED.fullmatch(raw, 1):
                    return keys, raw
                keys.append("escape")
                raw = raw[1:]
                continue
            if (name := _SEQUENCES.get(whole[0])) is not None:
                keys.append(name)
            raw = raw[whole.end():]
        elif raw[0] < 0x20 or raw[0] == 0x7f:
            if (name := _CONTROLS.get(raw[0])) is not None:
                keys.append(name)
            raw = raw[1:]
        else:
            length = 1 if raw[0] < 0xc0 else 2 if raw[0] < 0xe0 else 3 if raw[0] < 0xf0 else 4
            if more and len(raw) < length:
                return keys, raw
            text = raw[:length].decode("utf-8", "replace")
            keys += [char for char in text if char.isprintable() and char != "�"]
            raw = raw[length:]
    return keys, b""
