"""The result as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from worth_given import EMULATED, WORTH

from vmpin.features.demo.worth import Worth
from vmpin.features.demo.worth_picture import picture

SVG = "{http://www.w3.org/2000/svg}"


def parts(worth: Worth, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(picture(worth)).iter(f"{SVG}{tag}"))


def lightness(colour: str) -> float:
    red, green, blue = (int(colour[at:at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_bars_are_as_long_as_their_figures() -> None:
    widths = [float(bar.attrib["width"]) for bar in parts(WORTH, "rect")[1:]]
    assert widths[:3] == pytest.approx([400 * part for part in (0.427, 0.51, 0.9987)], abs=0.1)
    assert widths[3:6] == pytest.approx([400 * gap / 108 for gap in (98, 33, 0.45)], abs=0.1)


def test_placements_differ_in_lightness_so_that_it_can_be_read_in_grey() -> None:
    shades = sorted(lightness(bar.attrib["fill"]) for bar in parts(WORTH, "rect")[1:4])
    assert min(b - a for a, b in pairwise(shades)) > 40


def test_it_stands_alone_on_a_background_of_its_own_and_nothing_leaves_it() -> None:
    text = picture(WORTH)
    root = ET.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert "href" not in text
    assert "url(" not in text
    assert parts(WORTH, "rect")[0].attrib["fill"] == "#ffffff"
    for each in parts(WORTH, "text"):
        assert 0 < float(each.attrib["y"]) < height
        assert float(each.attrib["x"]) + 6.2 * len(each.text or "") < width, each.text


def test_every_bar_has_its_name_and_figure_and_the_machine_is_named() -> None:
    texts = [each.text for each in parts(WORTH, "text")]
    assert texts.count("Kata's cpusets") == 4
    assert "99.9 (99.8-99.9) %" in texts
    assert any("A <fast> CPU" in (text or "") for text in texts)


def test_what_was_not_measured_has_no_panel() -> None:
    texts = " ".join(each.text or "" for each in parts(EMULATED, "text"))
    assert "Longest gap" in texts
    assert "wake-ups" not in texts
    assert "moves" not in texts
