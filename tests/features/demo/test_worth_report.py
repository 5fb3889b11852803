"""The result as text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from worth_given import CIRCUMSTANCES, EMULATED, WORTH, reading

from vmpin.features.demo.worth import Setup, Worth
from vmpin.features.demo.worth_report import disturbance, no_verdict, notes, picture, result_table


def test_the_table_has_a_line_for_each_figure_and_fits_into_80_columns() -> None:
    assert result_table(WORTH) == [
        "                    unplaced          Kata's cpusets    vmpin             gain",
        "share of its CPU, % 43 (41-44)        51                99.9 (99.8-99.9)  x2.3",
        "longest gap, ms     98.0 (88.0-108)   33.0 (28.0-38.0)  0.45 (<0.1-0.90)  x218",
        "migrations, /min    2060 (1910-2210)  1210              0",
        "late, median, ms    0.07              0.07              0.07              x1.0",
        "late, 99 %, ms      15.0 (12.0-18.0)  9.0               0.20              x75",
        "late, longest, ms   30.0 (24.0-36.0)  18.0              0.40              x75"]
    assert max(map(len, result_table(WORTH))) <= 80


def test_what_was_not_measured_is_left_out_and_the_notes_say_why() -> None:
    assert [line.partition(",")[0] for line in result_table(EMULATED)[1:]] == ["share of its CPU", "longest gap"]
    assert "not measured under TCG" in notes(EMULATED)[0]
    assert "sidecar" not in notes(EMULATED)[0]
    assert "sidecar" in notes(WORTH)[0]


def test_the_notes_name_the_machine_and_what_kata_would_have_pinned() -> None:
    _, machine, kata = notes(WORTH)
    assert machine == ("2 rounds of 5 s for each placement, 2026-11-24, Linux 6.1.0, QEMU 7.2.22 by KVM, "
                       "A <fast> CPU. In no measurement did other programs take more than 4 % of the two CPUs.")
    assert kata == ("Kata's enable_vcpus_pinning would have pinned nothing beyond its cpusets: the VM has 3 vCPUs and "
                    "the pod 2 CPUs; it pins only where these numbers are equal.")


def test_disturbed_readings_are_counted_in_the_notes() -> None:
    disturbed = tuple(reading(setup, 5.0, 900.0, 0.0, 50.0, others=20.0) for setup in Setup)
    assert disturbance(Worth(CIRCUMSTANCES, (*disturbed, *WORTH.readings))) == (
        "3 of 9 measurements are left out, as other programs took more than 4 % of the two CPUs.")


def test_where_there_is_no_verdict_the_programs_are_named_with_their_share() -> None:
    first = replace(reading(Setup.UNPLACED, 5.0, 900.0, 0.0, 50.0, others=89.0), others_by={"cc1plus": 60, "make": 10})
    second = replace(reading(Setup.VMPIN, 5.0, 900.0, 0.0, 50.0, others=99.0),
                     others_by={"cc1plus": 80, "the hypervisor": 5, "ld": 4})
    assert no_verdict(Worth(CIRCUMSTANCES, (first, second, *WORTH.readings[:2]))) == (
        "no verdict: in 2 of 4 measurements other programs took 89 to 99 % of the two CPUs, more than 4 %; on average "
        "cc1plus 70 %, make 5 %, the hypervisor 2 %")
    assert no_verdict(Worth(CIRCUMSTANCES, (replace(first, others_by={}),))) == (
        "no verdict: in 1 of 1 measurement other programs took 89 % of the two CPUs, more than 4 %")


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
