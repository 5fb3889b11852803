"""The map's page in Chromium: on a phone and at a desk, light and dark, with the longest names."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import check_page, measured
from test_svg import crowded, long_id, node, thread

from vmpin.features.map.node_map import Picture, picture
from vmpin.features.map.svg import html

HOSTILE = """<script>"'&{{7*7}}"""
LONGEST = "n" * 63 + "/" + "p" * 63


def of_long_names() -> Picture:
    """Sixty guests on one CPU, with the longest names and lists of CPUs that there are."""
    every_second = ",".join(map(str, range(0, 190, 2)))
    sandboxes = [{"id": long_id(number), "vmm": {}, "verdict": "floating", "mask": every_second, "containers": [],
                  "pod": {"namespace": "n" * 63, "name": "p" * 63 if number % 2 else HOSTILE},
                  "threads": [thread("0", 0), thread("0"), thread(every_second)]} for number in range(60)]
    return picture({"time": "2026-01-01T00:00:00Z", "sandboxes": sandboxes, "node": {
        "online": every_second, "shared_pool": "0", "exclusive": "", "housekeeping": "", "owners": [],
        "collisions": [{"cpu": 0, "what": f"exclusive to {LONGEST}, but 1 thread of {HOSTILE} may run there"}]}},
        node(192), node_name="h" * 63)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_and_only_the_drawing_scrolls(width: int, dark: bool, tmp_path: Path) -> None:
    for drawn in (of_long_names(), crowded(24)):
        check_page(html(drawn), width, dark, tmp_path)


def test_names_are_broken_wherever_they_stand() -> None:
    """Without a browser: of the style sheet."""
    style = html(of_long_names()).partition("<style>")[2].partition("</style>")[0]
    for part in ("h1", "td,th", "p"):
        rules = [rule for rule in style.split("}") if rule.partition("{")[0].strip().endswith(part)]
        assert any("overflow-wrap:anywhere" in rule for rule in rules), part
    assert ".scroll{overflow-x:auto" in style


def test_a_text_that_is_cut_is_noticed(tmp_path: Path) -> None:
    page = html(of_long_names()).replace("overflow-wrap:anywhere", "white-space:nowrap")
    found = measured(page, 390, False, tmp_path)
    assert found["width"] > 390
    assert any(text.startswith("CPU 0: exclusive to nnn") for text in found["cut"])
