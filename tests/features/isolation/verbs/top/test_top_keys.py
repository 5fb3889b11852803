"""Bytes of terminals as keys, and what each key does to the view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.features.isolation.verbs.top.view_state import (
    ListedRows,
    Mode,
    Page,
    Request,
    State,
    View,
    answered,
    decode,
    reduce,
    with_selection,
)

ROWS = ListedRows(tuple("abcdefghij"), 4)
KEYS = ["up", "down", "pageup", "pagedown", "home", "end", "enter", "escape", "left", "right", "backspace", "clear",
        *"bjkgGhempqrstTdSBWDN/?y n"]


def press(*keys: str, state: State | None = None, rows: ListedRows = ROWS) -> State:
    found = with_selection(state or State(), rows)
    for key in keys:
        found = with_selection(reduce(found, key, rows), rows)
    return found


@pytest.mark.parametrize(("raw", "keys"), [
    (b"q", ["q"]), (b"\x1b[A\x1bOB", ["up", "down"]), (b"\x1b[5~\x1b[6~", ["pageup", "pagedown"]),
    (b"\r\n", ["enter", "enter"]), (b"\x7f\x08\x15\x0c", ["backspace", "backspace", "clear", "redraw"]),
    (b"\x1b", ["escape"]), (b"\x1bq", ["escape", "q"]), (b"\x1b[1;5Cx", ["x"]), (b"\x1b[200~", []),
    ("ä水".encode(), ["ä", "水"]), (b"\xff\xc3", []), (b"\x00\x01\x1f", [])])
def test_bytes_become_keys(raw: bytes, keys: list[str]) -> None:
    assert decode(raw) == (keys, b"")


@pytest.mark.parametrize("raw", [b"\x1b", b"\x1b[", b"\x1b[1;", b"\x1bO", b"\xc3"])
def test_the_beginning_of_a_key_waits_for_its_rest(raw: bytes) -> None:
    assert decode(b"j" + raw, more=True) == (["j"], raw)


@given(st.binary(max_size=40), st.integers(0, 40))
def test_no_bytes_break_the_decoder(raw: bytes, cut: int) -> None:
    first, rest = decode(raw[:cut], more=True)
    second, left = decode(rest + raw[cut:])
    assert left == b""
    assert all(len(key) > 1 or key.isprintable() for key in first + second)


def test_rows_are_selected_and_stay_in_sight() -> None:
    assert press().page.selected == "a"
    assert press("down", "j").page.selected == "c"
    assert press("up").page.selected == "a"
    there = press(*["down"] * 5).page
    assert (there.selected, there.top) == ("f", 2)
    assert (press("end").page.selected, press("end").page.top) == ("j", 6)
    assert press("G", "g").page == press().page


@pytest.mark.parametrize(("on", "back"), [("pagedown", "pageup"), (" ", "b")])
def test_a_page_on_shows_the_next_rows_and_a_page_back_the_same_ones_again(on: str, back: str) -> None:
    rows = ListedRows(tuple("abcdefghijklmn"), 4)
    places = [(press(*keys, rows=rows).page.selected, press(*keys, rows=rows).page.top) for keys in (
        (), (on,), (on, on), (on, on, back), (on,) * 3, (on,) * 9)]
    assert places == [("a", 0), ("e", 4), ("i", 8), ("e", 4), ("m", 10), ("n", 10)]
    assert (press("down", on, rows=rows).page.selected, press("down", on, back, rows=rows).page.selected) == ("f", "b")
    text = answered(State(), "explain", ())
    lines = ListedRows(("",) * 10, 4)
    assert [press(*keys, state=text, rows=lines).page.top for keys in ((on,), (on, back), (on, on), (on, on, back))
            ] == [4, 0, 6, 2]


def test_the_cursor_stays_on_the_first_row_until_it_is_moved() -> None:
    other = ListedRows(("c", "b", "a"), 4)
    assert with_selection(press(), other).page.selected == "c"
    assert with_selection(press("down"), other).page.selected == "b"
    assert with_selection(press("down", "up"), other).page.selected == "a"
    assert with_selection(press("down", "g"), other).page.selected == "c"
    assert with_selection(press("enter", "q"), other).page.selected == "c"


def test_a_repin_is_of_the_pod_that_it_was_asked_for() -> None:
    asked = with_selection(press("r"), ListedRows(("c", "b", "a"), 4))
    assert asked.page.selected == "a"
    assert reduce(asked, "y", ROWS).request == Request("repin", "a")


def test_the_foremost_foreign_program_is_of_the_first_row_or_of_the_page() -> None:
    assert press("t").request == Request("foremost", "a")
    assert press("down", "down", "t").request == Request("foremost", "a")
    assert press("down", "enter", "t").request == Request("foremost", "b")
    assert press("F", "t").request == Request("foremost")
    assert press("t", rows=ListedRows((), 4)).request == Request("foremost")
    assert press("t", state=answered(State(), "explain", ())).request is None


def test_the_selected_row_is_kept_in_another_order_and_replaced_when_it_ends() -> None:
    state = press("down", "down")
    assert with_selection(state, ListedRows(("c", "b", "a"), 4)).page.selected == "c"
    assert with_selection(state, ListedRows(("x", "y"), 4)).page.selected == "x"
    assert with_selection(state, ListedRows((), 4)).page.top == 0


def test_a_pod_opens_into_its_threads_and_foreign_threads_and_q_goes_back() -> None:
    opened = press("down", "enter")
    assert (opened.page.view, opened.page.pod) == (View.THREADS, "b")
    foreign = press("f", state=opened)
    assert (foreign.page.view, foreign.page.pod) == (View.FOREIGN, "b")
    assert press("q", state=foreign).page.view is View.THREADS
    assert press("escape", "left", state=foreign).page.view is View.PODS
    assert not press("q", "q", state=foreign).ended
    assert press("q", "q", "q", state=foreign).ended
    assert press("F").page.pod == ""
    assert not press("escape").ended


@pytest.mark.parametrize(("key", "request_"), [("e", Request("explain", "a")), ("m", Request("map")),
                                               ("?", Request("help")), ("h", Request("help"))])
def test_what_a_key_asks_of_the_outside(key: str, request_: Request) -> None:
    assert press(key).request == request_


def test_a_reconcile_asks_first() -> None:
    asked = press("r")
    assert (asked.mode, asked.request) == (Mode.CONFIRM, None)
    assert press("y", state=asked).request == Request("repin", "a")
    for key in ("n", "enter", "q", "Y", " "):
        refused = press(key, state=asked)
        assert (refused.mode, refused.request, refused.notice) == (Mode.NORMAL, None, "nothing was done")


def test_commands_about_a_pod_need_one() -> None:
    empty = ListedRows((), 4)
    for key in ("enter", "e", "f", "r"):
        found = press(key, rows=empty)
        assert (found.notice, found.mode, len(found.pages), found.request) == (
            "no pod is selected", Mode.NORMAL, 1, None)


def test_a_filter_is_typed_kept_and_dropped() -> None:
    typed = press("/", *"shop", "backspace", "q")
    assert (typed.mode, typed.page.filter, typed.ended) == (Mode.FILTER, "shoq", False)
    kept = press("enter", state=typed)
    assert (kept.mode, kept.page.filter) == (Mode.NORMAL, "shoq")
    assert press("/", "x", "escape", state=kept).page.filter == "shoq"
    assert press("/", "clear", "y", "enter", state=kept).page.filter == "y"
    assert press("escape", state=kept).page.filter == ""
    assert len(press("/", *"x" * 300).page.filter) == 100


def test_the_order_goes_round_and_letters_choose_one() -> None:
    assert [press(*["s"] * count).page.sort for count in range(6)] == [
        "foreign", "busy", "waited", "drift", "name", "foreign"]
    assert [press(key).page.sort for key in "SBWDN"] == ["foreign", "busy", "waited", "drift", "name"]
    opened = press("enter")
    assert [press(*keys, state=opened).page.sort for keys in ((), "s", "D")] == ["role", "busy", "role"]


def test_a_text_scrolls_and_takes_no_command_about_a_pod() -> None:
    text = ListedRows(("",) * 10, 4)
    state = answered(State(), "explain", ())
    assert press("down", "down", state=state, rows=text).page.top == 2
    assert press("G", state=state, rows=text).page.top == 6
    assert press("r", "/", "enter", "e", state=state, rows=text) == press(state=state, rows=text)
    assert press("q", state=state, rows=text).page.view is View.PODS


def test_pausing_is_a_switch() -> None:
    assert [press(*"p" * count).paused for count in range(3)] == [False, True, False]


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 12), st.integers(1, 30)), max_size=40))
def test_no_keys_break_the_view(pressed: list[tuple[str, int, int]]) -> None:
    state = State()
    for key, count, height in pressed:
        text = state.page.view is View.TEXT
        rows = ListedRows(("",) * count if text else ROWS.ids[:count], height)
        state = with_selection(reduce(state, key, rows), rows)
        if state.request is not None:
            if state.request.what in ("explain", "repin"):
                assert state.request.pod
            state = answered(replace(state, request=None), "x", ())
        page = state.page
        assert page.view in (View.TEXT, View.THREADS, View.FOREIGN) or page == state.pages[0]
        if page.view is not View.TEXT and page.selected in rows.ids:
            assert page.top <= rows.ids.index(page.selected) < page.top + height
    assert isinstance(state.page, Page)
