"""What is on the screen: pages as kept in golden files, widths, hostile names, and only changed lines written."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from top_given import BAD, MS, PROCESSES, SHOP, described, document, process, ran, sandbox, used

from vmpin.domain.drift import NO_EVIDENCE
from vmpin.errors import WatcherStopped
from vmpin.features.isolation.top.node_description import describe
from vmpin.features.isolation.top.pod_usage import NodeUsage, usage
from vmpin.features.isolation.verbs.top.batch import block
from vmpin.features.isolation.verbs.top.foremost_program import foremost_program
from vmpin.features.isolation.verbs.top.live import HELP, rewrapped
from vmpin.features.isolation.verbs.top.screen import ScreenWriter, column_widths, cut, laid_out, wrapped
from vmpin.features.isolation.verbs.top.sheet import PODS, Surroundings, percent, rate, sheet, text_lines
from vmpin.features.isolation.verbs.top.view_state import Line, Mode, Page, State, View, answered, with_selection

GOLDEN = Path(__file__).parents[4] / "data" / "top"
AROUND = Surroundings("node-a", "03:14:15", 3.0, "")
PAGES = {"pods": Page(View.PODS), "threads": Page(View.THREADS, SHOP, sort="role"),
         "threads-bad": Page(View.THREADS, BAD, sort="busy"), "foreign": Page(View.FOREIGN)}


def drawn(found: NodeUsage, state: State, width: int = 80, height: int = 24,
          around: Surroundings = AROUND) -> list[Line]:
    made = sheet(found, state, around)
    if state.page.view is View.TEXT:
        made = replace(made, text=wrapped(made.text, width))
    return laid_out(made, with_selection(state, made.listed(height)), width, height)


def plain(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_kept(name: str, size: tuple[int, int]) -> None:
    """VMPIN_GOLDEN=1 writes them anew, to be looked at."""
    text = "\n".join(plain(drawn(used(), State((PAGES[name],)), *size))) + "\n"
    file = GOLDEN / f"{name}-{size[0]}x{size[1]}.txt"
    if os.environ.get("VMPIN_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


def test_a_pods_page_has_what_features_note_on_its_cpus() -> None:
    found = used()
    noted = replace(found, description=replace(found.description, notes={
        5: ["CPU 5 took \x1b[2J", "second", "third"], 7: ["none of its CPUs"]}))
    lines = plain(drawn(noted, State((PAGES["threads"],))))
    at = next(number for number, line in enumerate(lines) if line.startswith("CPU 5: "))
    assert lines[at + 1 : at + 3] == ["  CPU 5 took \\x1b[2J", "  second"]
    assert lines[at + 3].startswith("CPU 6: ")
    assert "none of its CPUs" not in "".join(lines)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("size", [(1, 2), (20, 5), (40, 10), (79, 24), (80, 24), (131, 30), (400, 100)])
def test_no_line_is_wider_than_the_screen(name: str, size: tuple[int, int]) -> None:
    lines = drawn(used(), State((PAGES[name],)), *size)
    assert len(lines) == size[1]
    assert max(cell_len("".join(text for text, _ in line)) for line in lines) <= size[0]


def test_what_is_selected_and_what_is_wrong_shows_without_colours() -> None:
    lines = plain(drawn(used(), State((Page(View.PODS, selected=BAD, moved=True),))))
    assert [line[:2] for line in lines if "demo/" in line[:12]] == ["  ", "  ", ">!", "  "]


def test_the_rows_that_are_shown_are_counted_where_not_all_fit() -> None:
    given_ = document()
    given_["sandboxes"] = [sandbox(f"{number:064}", f"pod-{number:03}", 1000 + 10 * number) for number in range(300)]
    found = usage(describe(given_), None)
    lines = plain(drawn(found, State((Page(View.PODS, sort="name", selected=f"{250:064}", moved=True),))))
    assert len(lines) == 24
    assert lines[-1].endswith(" 234-252 of 302")
    assert any(line.startswith("> ") and "pod-250" in line for line in lines)


@pytest.mark.parametrize(("spent", "text"), [(0, "0 ms"), (300_000, "<1 ms"), (93 * MS, "31 ms"),
                                             (3600 * MS, "1200 ms")])
def test_rates(spent: int, text: str) -> None:
    assert rate(spent, 3.0) == text
    assert rate(spent, 3.0, exact=False) == (f"~{text}" if spent else text)
    assert rate(spent, 0.0) == "-"


@pytest.mark.parametrize(("spent", "text"), [(0, "0%"), (3 * MS, "<1%"), (1500 * MS, "50%"), (48_000 * MS, "1600%")])
def test_shares_of_a_cpu(spent: int, text: str) -> None:
    assert percent(spent, 3.0) == text
    assert percent(spent, 0.0) == "-"


HOSTILE = "\x1b[2J\x07\r\n‮a]0;x"


def test_hostile_names_are_escaped_on_every_page() -> None:
    given_ = document(collisions=[{"cpu": 5, "what": HOSTILE}])
    for each in given_["sandboxes"]:
        each["pod"]["name"] = HOSTILE
        each["reasons"] = [HOSTILE]
        for thread in each["threads"]:
            thread["name"] = HOSTILE
        each["drift"] = {"repairs": {HOSTILE: 1}, "last": 1.0, "why": HOSTILE}
        each["containers"][0]["guest"] = {"state": HOSTILE, "error": "", "outside": []}
    found = used(process(900, HOSTILE, ran(901, 30, 5, HOSTILE), cgroup=f"/x/{HOSTILE}"),
                 description=describe(given_))
    around = Surroundings(HOSTILE, "03:14:15", 3.0, HOSTILE)
    states = [State((replace(page, filter="a"),)) for page in PAGES.values()]
    states += [State((Page(View.PODS, filter=HOSTILE),), mode=Mode.FILTER),
               State(notice=HOSTILE), answered(State(), HOSTILE, text_lines([HOSTILE]))]
    for state in states:
        for width in (80, 200):
            lines = drawn(found, state, width, around=around)
            assert all(text.isprintable() for line in lines for text, _ in line), state
    assert all(line.isprintable() for line in block(found, "now", "foreign", trouble=HOSTILE))


def test_an_unknown_writer_of_masks_is_found_by_the_explanation() -> None:
    given_ = document()
    (shop,) = [each for each in given_["sandboxes"] if each["id"] == SHOP]
    shop["drift"] = {"repairs": {"unknown program": 2}, "last": 1.0, "why": NO_EVIDENCE}
    lines = plain(drawn(used(description=describe(given_)), State((PAGES["threads"],)), 120))
    assert f"put back 2 times, last: {NO_EVIDENCE} (e has the command that finds the program)" in lines


def test_trouble_stands_in_the_second_line_and_nothing_hides_it() -> None:
    found = replace(used(description=describe(document(collisions=[{"cpu": 5, "what": "both own it"}]))),
                    kernel_seen=False, precise=False)
    assert plain(drawn(found, State(), 400))[1] == (
        "1 collision (m); foreign ~83 ms a second on CPUs of 2 pods; 1 pod not in order (!); other PID namespace: "
        "kernel threads are hidden; run times in ticks only")
    trouble = f"since 03:00:00Z {WatcherStopped(1234567)}"
    for page in PAGES.values():
        lines = plain(drawn(found, State((page,)), around=Surroundings("n", "t", 3.0, trouble)))
        assert lines[1] == "since 03:00:00Z the watcher (pid 1234567) is stopped"


@pytest.mark.parametrize("pod", [SHOP, BAD, ""])
def test_the_foremost_foreign_program_is_named_with_what_keeps_it_off(pod: str) -> None:
    lines = list(foremost_program(used(), pod))
    if pod == BAD:
        assert lines == ["No foreign thread ran on its exclusive CPUs in the last interval."]
        return
    assert lines == [
        "qemu-system-x86 (process 300) of demo/bad", "had ~50 ms in each second on CPU 5 of demo/shop:",
        "  ~50 ms on CPU 5: thread 302 (CPU 1/KVM)", "~ is an estimate: the thread may run on other CPUs, too.", "",
        "What to do: run `vmpin verify`: it lists threads outside of their placement; vmpin keeps no VM off that it "
        "does not manage (watch.only), or that is unpinned.", "",
        f"{'2' if pod else '3'} more foreign programs ran there: f lists their threads."]


def test_what_keeps_a_foreign_program_off_depends_on_its_kind() -> None:
    kinds = {thread.home: thread.kind for thread in used().foreign_threads}
    assert kinds == {"demo/bad": "vm", "kube-system/noisy/stress": "container", "kernel": "kernel",
                     "node-exporter.service": "host"}
    exporter = next(process for process in PROCESSES if process.comm == "node_exporter")
    assert any("systemctl edit node-exporter.service" in line for line in foremost_program(used(exporter), SHOP))


def test_a_program_of_many_threads_is_added_up() -> None:
    many = used(process(600, "stress", *(ran(600 + at, 30, 5, "w", True) for at in range(12))),
                process(700, "other", ran(700, 60, 5, "o", True)))
    lines = list(foremost_program(many, SHOP))
    assert lines[1] == "had 120 ms in each second on CPU 5 of demo/shop:"
    assert lines[12] == "  and 2 more threads"
    assert lines[-1] == "1 more foreign program ran there: f lists their threads."
    assert list(foremost_program(usage(described(), None), SHOP)) == [
        "Nothing was measured yet: press t again after the first interval."]


def test_a_text_keeps_its_place_when_the_screen_becomes_wider_or_narrower() -> None:
    lines = text_lines([f"{number} " + "word " * 30 for number in range(30)])
    state = answered(State(), "explain", lines).with_page(top=len(wrapped(lines[:20], 80)))
    for columns in (40, 200):
        there = rewrapped(state, 80, columns)
        assert "".join(text for text, _ in wrapped(lines, columns)[there.page.top]).startswith("20 ")
        assert rewrapped(there, columns, 80) == state
    assert rewrapped(state, 80, 80) == state
    assert rewrapped(state, 0, 80) == state


def test_before_the_first_interval_and_without_foreign_time() -> None:
    assert plain(drawn(usage(described(), None), State()))[1] == "measuring; 1 pod not in order (!)"
    assert plain(drawn(used(process(1, "x", ran(1, 5, 0))), State()))[1].startswith("no foreign thread ran; ")
    empty = usage(describe({**document(owners=[]), "sandboxes": []}), None)
    assert "  no VM sandbox runs on this node, and no container has exclusive CPUs" in plain(drawn(empty, State()))


def test_a_pod_that_has_ended_says_so() -> None:
    assert "  this pod has ended" in plain(drawn(used(), State((Page(View.THREADS, "gone"),))))


def test_the_prompt_replaces_the_keys() -> None:
    confirm = State((Page(View.PODS, selected=SHOP),), mode=Mode.CONFIRM)
    assert plain(drawn(used(), confirm))[-1] == "y or n: set the masks of demo/shop now, as `vmpin repin` does?"
    assert plain(drawn(used(), State(paused=True)))[-1].startswith("PAUSED, p goes on")
    typing = State((Page(View.PODS, filter="sh"),), mode=Mode.FILTER)
    lines = plain(drawn(used(), typing))
    assert lines[-1].startswith("filter: sh_")
    assert sum("demo/" in line[:12] for line in lines) == 1
    assert lines[0].endswith("1 of 4 pods by foreign, filter 'sh'")


def test_the_help_fits_the_smallest_screen() -> None:
    assert max(map(len, HELP.splitlines())) <= 80


def test_a_text_is_broken_between_words() -> None:
    lines = plain([*wrapped(text_lines(["one two three four", "", "x"]), 9)])
    assert lines == ["one two", "three", "four", "", "x"]


@given(st.lists(st.lists(st.text(max_size=30), min_size=len(PODS), max_size=len(PODS)), max_size=5),
       st.integers(60, 300))
@example([["x" * 30] * len(PODS)], 60)
@example([["x" * 30] * len(PODS)], 132)
def test_columns_take_no_more_than_there_is(rows: list[list[str]], width: int) -> None:
    columns = [column for column in PODS if width >= column.screen]
    found = column_widths(columns, [row[:len(columns)] for row in rows], width)
    names = sum(not column.most for column in columns)  # which keep a character each
    assert sum(found) + 2 * (len(columns) - 1) + 2 <= width + names


@given(st.lists(st.tuples(st.text(max_size=20), st.just("")), max_size=4), st.integers(1, 40))
def test_a_line_is_cut_to_the_width(line: list[tuple[str, str]], width: int) -> None:
    assert cell_len("".join(text for text, _ in cut(tuple(line), width))) <= width


def writer(monkeypatch: pytest.MonkeyPatch, **environment: str) -> ScreenWriter:
    for name in ("NO_COLOR", "COLORTERM", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environment}.items():
        monkeypatch.setenv(name, value)
    return ScreenWriter(Console(force_terminal=True))


def test_only_changed_lines_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    made = writer(monkeypatch)
    first = made.update([(("a", ""),), (("b", "bold"),), (("c", ""),)])
    assert first.startswith("\x1b[H\x1b[2J")
    assert made.update([(("a", ""),), (("b", "bold"),), (("c", ""),)]) == ""
    assert made.update([(("a", ""),), (("b", ""),), (("c", ""),)]) == "\x1b[2;1Hb\x1b[K"
    assert made.update([(("a", ""),)]).startswith("\x1b[H\x1b[2J")
    made.forget()
    assert "a" in made.update([(("a", ""),)])


def test_colours_are_those_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    red: Line = (("x", "bold red"),)
    assert "\x1b[1;31mx" in writer(monkeypatch).update([red])
    plain_ = writer(monkeypatch, NO_COLOR="1").update([red])
    assert "31m" not in plain_
    assert "\x1b[1mx" in plain_


def test_a_block_for_a_log() -> None:
    lines = list(block(used(), "2026-01-01T00:00:03Z", "foreign", trouble="no watcher runs"))
    assert lines[:4] == [
        "2026-01-01T00:00:03Z 3.0 s, 4 pods, busy 206%, foreign ~83 ms a second", "WATCHER: no watcher runs",
        "POD         CPUS     BUSY  FOREIGN/s  WAITED/s  DRIFT  GUEST     IN PLACE  VERDICT   KIND  ID",
        "demo/shop   5-6+0-1  151%  ~81 ms     32 ms     0      applied   4/4       pinned    VM    aaaaaaaaaaaa"]
    assert lines[-3:-1] == [
        "FOREIGN 31 ms on CPU 5 of demo/shop by kube-system/noisy/stress: process 600 (stress-ng), thread 601 "
        "(stress-ng-cpu)",
        "FOREIGN ~2 ms on CPU 3 of demo/cache by kernel: process 41 (kworker/u8:1)"]
    assert len(list(block(used(), "now", "name", "shop"))) == 6
    assert not re.search(r"\s$", "\n".join(lines))
