"""The page of the report: its figures and its drawings agree, whatever was seen; and it can be read in Chromium."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from booked import figures_between
from browser import check_page
from test_isolation_report import DRIFT, SECOND, clock

from vmpin.cpuset import CpuSet
from vmpin.features.isolation import isolation_text as texts
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.features.isolation.isolation_books import MINUTE, ForeignProgram, ForeignRun, OwnerBook, ProgramKind
from vmpin.features.isolation.isolation_page import Chart, enlarged, page
from vmpin.features.isolation.isolation_report import document, pod_report, with_slo

#: Ranges of minutes, the end excluded.
Minutes = range
NONE = range(0)


def pod(minutes: int, foreign: float = 0.3, name: str = "shop", unseen: Minutes = NONE, without: Minutes = NONE,
        seconds: int = 60, owning: bool = True) -> Any:
    """The report of a pod with two exclusive CPUs. :param foreign: seconds in each minute."""
    book = OwnerBook(name, 0)
    book.namespace, book.pod, book.kind, book.cpus = "n" * min(63, len(name)), name, "vm", CpuSet([2, 3])
    book.begin(0, 48 * 10**6)
    for now in range(seconds, minutes * 60 + 1, seconds):
        minute = (now - 1) // 60
        if minute in without:
            book.idle(now * SECOND, seconds * SECOND)
        elif minute not in unseen:
            spent = round(foreign * seconds / 60 * SECOND)
            book.book(now * SECOND, Interval(seconds * SECOND, {2: spent, 3: 0}, 0, 0, spent // 10, 0))
            book.add_runs(now * SECOND, [ForeignRun(ForeignProgram(ProgramKind.HOST, name, "backup.service"), 2,
                                                    spent // 2)])
    return pod_report(figures_between(book, 0, minutes * MINUTE), clock, DRIFT, owning)


def of(*pods: Any) -> str:
    return page(with_slo(document(pods, clock(0), clock(60 * MINUTE)), 99.9), "node-1")


GIVEN = {
    "an hour": pod(60), "a day": pod(1440), "a minute": pod(1, seconds=10), "without foreign time": pod(60, 0),
    "not seen for a while": pod(60, unseen=range(20, 31)), "nothing seen": pod(60, unseen=range(60)),
    "seconds not seen": pod(60, seconds=10, unseen=range(7, 8)),
    "shared for a while": pod(60, without=range(10, 25), owning=False),
    "always shared": pod(60, without=range(60), owning=False), "all foreign": pod(60, 120),
    "both": pod(240, unseen=range(3, 100), without=range(100, 163))}


@pytest.mark.parametrize("name", GIVEN)
def test_the_columns_are_as_wide_as_the_figures_are_large(name: str) -> None:
    given = GIVEN[name]
    columns = list(Chart(given).columns())
    wide = {css: sum(column.width for column in columns if column.css == css) * given["seconds"] / 1000
            for css in ("unseen", "without", "others")}
    assert wide["without"] == pytest.approx(given["without"], abs=0.01)
    assert wide["unseen"] * 2 == pytest.approx(given["parts"]["unseen"]["seconds"], abs=0.01)
    assert all(0 <= column.x <= column.x + column.width <= 1000.001 for column in columns)
    assert sum(part["seconds"] for part in given["bins"]) == pytest.approx(given["seconds"])
    if not wide["unseen"] + wide["without"]:
        assert len(columns) == len(given["bins"])


@pytest.mark.parametrize("name", GIVEN)
def test_each_kind_of_gap_is_named_where_there_is_one(name: str) -> None:
    given = GIVEN[name]
    for words, there in (("without samples", given["parts"]["unseen"]["seconds"]),
                         ("without exclusive CPUs", given["without"])):
        assert (f"</svg>{words}" in of(given)) is bool(there)
    text = "\n".join(texts.lines(given, None))
    assert ("no exclusive CPUs   " in text) is bool(given["without"])
    curve = texts.curve(given)
    assert ("-" in curve) is bool(given["without"])
    if name in ("not seen for a while", "nothing seen", "both"):
        assert "·" in curve


@pytest.mark.parametrize(("name", "words"), [("nothing seen", "has no samples"),
                                             ("always shared", "had no exclusive CPUs")])
def test_of_what_was_not_measured_there_is_no_share(name: str, words: str) -> None:
    """It was shown as 100.000 % for itself, above a chart in which nothing was seen."""
    given = GIVEN[name]
    assert f">no share</span> It {words} in that time." in of(given)
    assert "100.000 %" not in re.sub(r"(?s)<table>.*?</table>", "", of(given))
    assert texts.headline(given).startswith(f"nnnn/shop {words}, in 60m")
    assert texts.row(given, False)[2:6] == ["-"] * 4


def test_cpus_that_the_pod_has_no_more_are_not_named_as_its_own() -> None:
    assert "no exclusive CPUs now" in of(GIVEN["shared for a while"])
    assert "its former exclusive CPUs" in texts.headline(GIVEN["shared for a while"])


@pytest.mark.parametrize(("foreign", "factor"), [(0.3, "400"), (6, "20"), (60, "2.0"), (100, ""), (120, "")])
def test_a_bar_is_called_enlarged_where_it_is_and_by_how_much(foreign: float, factor: str) -> None:
    given = pod(60, foreign)
    assert enlarged(given) == factor
    assert ("enlarged" in of(given)) is bool(factor)
    assert of(given).count('class="bar"') == 1 + bool(factor)


@pytest.mark.parametrize(("minutes", "labels"), [
    (1, ["00:01"]), (5, ["00:01", "00:02", "00:03", "00:04", "00:05"]), (60, ["00:10", "00:20", "00:30", "00:40",
                                                                            "00:50", "01:00"]),
    (1440, ["06:00", "12:00", "18:00", "11-02"])])
def test_the_axis_has_round_times(minutes: int, labels: list[str]) -> None:
    ticks = list(Chart(pod(minutes)).ticks())
    assert [time for _, time in ticks] == ["11-01", *labels]
    assert [place for place, _ in ticks] == sorted(place for place, _ in ticks)
    assert all(0 <= place <= 100 for place, _ in ticks)
    assert "all times are UTC" in of(pod(minutes))


def test_times_are_round_wherever_the_period_begins() -> None:
    given = {**pod(60), "since": "2026-11-26T23:17:42Z"}
    assert [time for _, time in Chart(given).ticks()] == ["23:20", "23:30", "23:40", "23:50", "11-27", "00:10"]


def test_commands_are_marked_and_no_backquote_is_left() -> None:
    given = pod(60)
    given["worst"]["advice"] = "run `vmpin verify`: it lists threads; `vmpin audit` as well"
    given["drift"] = {**DRIFT, "why": "`tuned` set it"}
    for made in (of(given), of(given, pod(60, name="b"))):
        assert "<code>vmpin verify</code>: it lists threads; <code>vmpin audit</code> as well." in made
        assert "<code>tuned</code> set it." in made
        assert "`" not in made.partition("</style>")[2]


LONGEST, HOSTILE = "p" * 63, """<script>"'&{{7*7}}"""


@pytest.mark.parametrize("count", [0, 1, 5, 60])
@pytest.mark.parametrize("minutes", [60, 1440])
def test_every_drawing_is_whole_whatever_the_number_of_pods(count: int, minutes: int) -> None:
    pods = [pod(minutes, 0.1 * number, HOSTILE if number % 2 else LONGEST) for number in range(count)]
    made = of(*pods)
    assert "<script" not in made
    assert unescape(made).count("{{7*7}}") > 0 or count < 2
    for drawing in re.findall(r"(?s)<svg.*?</svg>", made):
        ET.fromstring(drawing)
    assert made.count("<details") == (count if count > 1 else 0)
    assert ("No pod has, or had, exclusive CPUs in that time." in made) is (not count)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_and_nothing_scrolls_sideways(width: int, dark: bool, tmp_path: Path) -> None:
    for given in ([], [pod(1440, 60, LONGEST, unseen=range(30, 400), without=range(600, 640))],
                  [pod(60, 0.1 * number, HOSTILE if number % 2 else LONGEST) for number in range(9)]):
        check_page(of(*given), width, dark, tmp_path)
