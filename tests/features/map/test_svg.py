"""The drawing as a reader has it: what stands on what, where each text ends, and whether it can be read there."""

from __future__ import annotations

import colorsys
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.map import svg
from vmpin.features.map.node_map import Picture, picture
from vmpin.features.map.svg import COLOURS, HATCHINGS, ground
from vmpin.features.map.text import SIGNS, folded, guest_marks, lines

#: Widths of a character in em, by class: of DejaVu Sans Mono (Menlo and Liberation Mono have no more), of words in
#: DejaVu Sans and, for the rest, of its bold digits.
WIDTHS = {"mark": 0.602, "soft": 0.64}
ROLES = ("iothread", "vhost", "virtiofsd", "shim", "emulator", "worker")


@dataclass(frozen=True)
class Box:
    css: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float
    style: str = ""

    def holds(self, x: float, y: float) -> bool:
        return self.x <= x <= self.x + self.width and self.y <= y <= self.y + self.height


@dataclass(frozen=True)
class Text:
    css: tuple[str, ...]
    said: str
    left: float
    right: float
    y: float
    #: What was painted there before it, the page first.
    on: tuple[Box, ...]


def painted(made: str) -> list[Text]:
    """All texts, each with what it stands on: later elements are painted over earlier ones."""
    boxes: list[Box] = []
    texts: list[Text] = []

    def walk(each: ET.Element, dx: float, dy: float) -> None:
        moved = re.fullmatch(r"translate\((\d+),(\d+)\)", each.get("transform", "translate(0,0)"))
        assert moved is not None
        dx, dy = dx + int(moved[1]), dy + int(moved[2])
        x, y, css = float(each.get("x", 0)) + dx, float(each.get("y", 0)) + dy, tuple(each.get("class", "").split())
        if each.tag.endswith("}rect") and not each.get("fill", "").startswith("url(#"):  # a hatching is no ground
            boxes.append(Box(css, x, y, float(each.get("width", 0)), float(each.get("height", 0)),
                             each.get("style", "")))
        elif each.tag.endswith("}text") and each.text:
            size = 13 if "n" in css else 11 if {"mark", "soft"} & set(css) else 12
            wide = len(each.text) * size * next((WIDTHS[name] for name in css if name in WIDTHS), 0.7)
            left = x - wide * {"middle": 0.5, "end": 1}.get(each.get("text-anchor", ""), 0)
            texts.append(Text(css, each.text, left, left + wide, y,
                              tuple(box for box in boxes if box.holds(left + wide / 2, y - 3))))
        for child in each:
            walk(child, dx, dy)

    walk(ET.fromstring(made), 0, 0)
    return texts


class Colours:
    """What the style sheet of a drawing gives an element, for a reader who has it dark or light."""

    def __init__(self, made: str, dark: bool) -> None:
        style = made.partition("<style>")[2].partition("</style>")[0]
        media = re.compile(r"@media \(prefers-color-scheme:dark\)\{((?:[^{}]+\{[^{}]*\})*)\}")
        text = media.sub("", style) + "".join(media.findall(style)) * dark
        self.rules: dict[str, str] = {}
        self.names: dict[str, str] = {}
        for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
            for name, value in re.findall(r"([\w-]+):([^;]+)", body):
                if name == "fill":
                    self.rules[selector.strip()] = value
                elif name.startswith("--"):
                    self.names[f"var({name})"] = value.strip()

    def fill(self, css: tuple[str, ...], default: str) -> tuple[float, float, float]:
        # The classes are all of one weight, and the rules of those that meet in an element stand in their order.
        found = [value for selector, value in self.rules.items()
                 if any(selector == f".vmpin .{name}" for name in css)] or [default]
        value = self.names.get(found[-1], found[-1])
        return hue(value)


def hue(value: str) -> tuple[float, float, float]:
    """#rrggbb or #rgb as red, green and blue."""
    digits = value[1:] if len(value) == 7 else "".join(char * 2 for char in value[1:])
    return int(digits[:2], 16) / 255, int(digits[2:4], 16) / 255, int(digits[4:], 16) / 255


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """WCAG 2's."""
    def luminance(rgb: tuple[float, float, float]) -> float:
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def node(cpus: int) -> Topology:
    half = cpus // 2
    cores = [CpuSet((cpu, cpu + half)) for cpu in range(half)]
    return Topology.build(
        CpuSet(range(cpus)), cores=cores, caches=[CpuSet(range(cpus))], nodes={0: CpuSet(range(cpus))},
        isolated=CpuSet(range(0, cpus, 3)), present=CpuSet(range(cpus + 1)))


def long_id(number: int) -> str:
    return f"{number:03d}" + "4e8" * 20 + "0"


def thread(actual: str, vcpu: int | None = None, role: str = "emulator") -> dict[str, Any]:
    return {"role": role, "vcpu": vcpu, "actual": actual}


def crowded(cpus: int, ids: bool = True) -> Picture:
    """Every CPU another container's, and of many kinds: from empty to crowded, floating and not, in collision
    and not, and each guest with one CPU for all that does not float."""
    sandboxes: list[dict[str, Any]] = []
    for number in range(cpus):
        more, every = number % 7, number % 4 + 1
        threads = [thread(str(number), vcpu * every + number) for vcpu in range(number % 5)]
        threads += [thread(str(number)) for _ in range(more)]
        threads += [thread(str((number + 1) % cpus), 200 + at * 2) for at in range(number % 3)]
        threads += [thread(f"{number // 2}-{number}", role=ROLES[at % 6]) for at in range(number % 13)]
        sandboxes.append({"id": long_id(number), "vmm": {}, "pod": None, "mask": "0", "verdict": "pinned",
                          "containers": [], "threads": threads})
    owners = [{"sandbox": long_id(number), "container": "main", "cpus": str(number), "kind": "vm", "pod": None}
              for number in range(cpus)]
    said = [long_id(500), long_id(501), long_id(502)] if ids else ["x" * 64, "y" * 64, "z" * 64]
    return picture({
        "time": "2026-01-01T00:00:00Z", "sandboxes": sandboxes,
        "node": {"online": f"0-{cpus - 1}", "shared_pool": "", "exclusive": "", "housekeeping": f"0-{cpus // 2}",
                 "owners": owners, "collisions": [
                     {"cpu": number, "what": f"exclusive to {said[0]} of {said[1]}, but 4 threads of {said[2]} may "
                      "run there (thread 941, emulator)"} for number in range(0, cpus, 2)]}}, node(cpus))


@pytest.mark.parametrize("cpus", [2, 8, 192])
@pytest.mark.parametrize("ids", [True, False])
def test_no_text_leaves_its_box_or_runs_into_another(cpus: int, ids: bool) -> None:
    texts = painted(svg.svg(crowded(cpus, ids)))
    boxes: dict[Box, set[float]] = {}
    for text in texts:
        assert text.on, text
        for box in text.on:
            assert box.x <= text.left < text.right <= box.x + box.width, text
            if "cpu" in box.css:
                boxes.setdefault(box, set()).add(text.y)
    lines = sorted(texts, key=lambda text: (text.y, text.left))
    assert all(one.right < other.left for one, other in pairwise(lines) if one.y == other.y)
    for box, rows in boxes.items():
        assert all(above + 11 <= below for above, below in pairwise(sorted(rows)))
        assert max(rows) < box.y + box.height


def test_marks_that_do_not_fit_end_after_a_whole_one() -> None:
    drawn = crowded(192)
    shown: dict[Box, list[str]] = {}
    names: dict[Box, int] = {}
    for text in painted(svg.svg(drawn)):
        cpu = next((box for box in text.on if "cpu" in box.css), None)
        if cpu is not None and "n" in text.css:
            names[cpu] = int(text.said)
        elif cpu is not None and "mark" in text.css and not text.said.startswith("~"):
            shown.setdefault(cpu, []).append(text.said)
    marked = {cpu.number: guest_marks(cpu) for cpu in drawn.cpus()}
    cut = 0
    for box, number in names.items():
        said = "".join(shown.get(box, [])).replace(" ", "")
        guests = marked[number]
        if said != "".join(guests):
            cut += 1
            pieces = re.findall("[^,]+,?", "".join(guests))
            assert said in ["".join(folded(guests, count)).replace(" ", "") for count in range(len(guests))] if len(
                guests) > 1 else said in ["".join(pieces[:count]) + "…" for count in range(len(pieces))]
    assert 0 < cut < 192


def many_guests(count: int) -> Picture:
    """On a node with one shared CPU, to which all threads of all VMs are therefore pinned."""
    sandboxes = [{"id": long_id(number), "vmm": {}, "pod": {"namespace": "demo", "name": f"pod-{number}"},
                  "mask": "0", "verdict": "floating", "containers": [],
                  "threads": [thread("0", 0), thread("0", 1), thread("0"), thread("0-1")]} for number in range(count)]
    return picture({"time": "", "sandboxes": sandboxes, "node": {
        "online": "0-1", "shared_pool": "0", "exclusive": "", "housekeeping": "", "owners": [],
        "collisions": [{"cpu": 0, "what": "both use it"}]}}, node(2))


@pytest.mark.parametrize(("count", "box", "cell"), [
    (1, ["a:v0-1,+1", "~1"], "a:v0-1,+1"), (2, ["a:v0-1,+1", "1 more", "~2"], "a:v0-1,+1 b:v0-1,+1"),
    (60, ["a:v0-1,+1", "59 more", "~60"], "a:v0-1,+1 b:v0-1,+1 58 more")])
def test_many_guests_on_a_cpu_are_counted(count: int, box: list[str], cell: str) -> None:
    drawn = many_guests(count)
    ground = next(on for text in painted(svg.svg(drawn)) if "n" in text.css and text.said == "0"
                  for on in text.on if "cpu" in on.css)
    assert [text.said for text in painted(svg.svg(drawn)) if "mark" in text.css and any(
        (on.x, on.y) == (ground.x, ground.y) for on in text.on)] == box
    said = ["".join(word for word, _ in line) for line in lines(drawn, 80)]
    assert any(f"  0 ·!i {cell} ~{count}" in line for line in said)
    assert ("12 more: threads of twelve more guests" in " ".join(said)) == (count > 1)


def test_collisions_come_first_and_are_named_in_red() -> None:
    drawn = many_guests(3)
    style = {"alarmed": "var(--bad)"}
    assert next(lines(drawn, 80)) == [("COLLISION on CPU 0: both use it", "bold red")]
    made = svg.svg(drawn)
    texts = painted(made)
    assert [text.said for text in texts][:3] == ["Collisions", "!", "CPU 0: both use it"]
    assert "alarmed" in texts[2].css
    assert Colours(made, False).rules[".vmpin .alarmed"] == style["alarmed"]
    assert texts[2].y < min(text.y for text in texts if "n" in text.css)
    calm = picture({"time": "", "sandboxes": [], "node": {
        "online": "0-1", "shared_pool": "0", "exclusive": "", "housekeeping": "", "owners": [], "collisions": []}},
        node(2))
    assert "Collisions" not in svg.svg(calm)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read_on_every_colour(dark: bool) -> None:
    made = svg.svg(crowded(192))
    colours = Colours(made, dark)
    grounds = set()
    for text in painted(made):
        box = text.on[-1]
        ground = colours.fill(box.css, "#000" if not box.style else box.style.removeprefix("fill:"))
        grounds.add(ground)
        # .soft and .on weigh more than what all texts have.
        assert contrast(colours.fill(text.css, colours.rules[".vmpin text"]), ground) >= 4.5, (text.said, box)
    assert grounds >= {hue(pair[dark]) for pair in COLOURS}


def test_the_legend_has_every_class() -> None:
    drawn = crowded(24)
    said = " ".join(text.said for text in painted(svg.svg(drawn))).replace(", ", ",")
    for whole in (*drawn.alarms(), *(owner.legend for owner in drawn.owners),
                  *(guest.legend for guest in drawn.guests)):
        assert whole.replace(", ", ",") in said
    assert any(all(role in guest.legend for role in ROLES) for guest in drawn.guests)


def test_a_long_list_of_cpus_is_parted_between_its_numbers() -> None:
    every_second = ",".join(map(str, range(0, 190, 2)))
    drawn = picture({
        "time": "", "node": {"online": "0-191", "shared_pool": "", "exclusive": "", "housekeeping": "", "owners": [],
                             "collisions": []},
        "sandboxes": [{"id": "pod", "vmm": {}, "pod": None, "mask": None, "verdict": "off", "containers": [],
                       "threads": [thread(every_second, 0)]}]}, node(192))
    said = [text.said for text in painted(svg.svg(drawn))]
    first = next(at for at, text in enumerate(said) if text.startswith("pod: "))
    assert "".join(said[first:]) == f"pod: off; vCPU 0 on {every_second}"
    assert len(said[first:]) > 1
    assert all(text.endswith(",") for text in said[first:-1])


def test_it_has_the_key_to_its_signs() -> None:
    for words in ("shared pool", "offline", "siblings of a core", *(text for _, text in SIGNS)):
        assert words in svg.svg(crowded(2))


#: How readers who lack one kind of cone see linear red, green and blue: G. Machado, M. Oliveira, L. Fernandes, "A
#: Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE TVCG 15 (2009), severity 1.0.
SEEN = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
    "grey": ((0.2126, 0.7152, 0.0722),) * 3,
}
Rgb = tuple[float, float, float]


def linear(text: str) -> Rgb:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
                        for part in (int(text[at:at + 2], 16) / 255 for at in (1, 3, 5)))
    return red, green, blue


def oklab(rgb: Rgb) -> Rgb:
    """B. Ottosson's, in which equal distances look alike: 0.02 can just be seen."""
    red, green, blue = (max(0.0, part) for part in rgb)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
            1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
            0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short)


def seen(text: str, by: str) -> Rgb:
    found = [sum(part * weight for part, weight in zip(linear(text), row, strict=True)) for row in SEEN[by]]
    return oklab((found[0], found[1], found[2]))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("reader", SEEN)
def test_any_two_colours_differ_for_every_reader(reader: str, dark: bool) -> None:
    for one, other in combinations([pair[dark] for pair in COLOURS], 2):
        assert math.dist(seen(one, reader), seen(other, reader)) >= 0.04, (one, other)


def test_thirty_pods_have_different_grounds_and_neighbours_differ_in_both() -> None:
    grounds = [ground(pod) for pod in range(31)]
    assert len(set(grounds[:30])) == len(COLOURS) * len(HATCHINGS) == 30
    assert grounds[30] == grounds[0]
    for one, other in pairwise(grounds):
        assert one.css != other.css
        assert one.hatching != other.hatching


@pytest.mark.parametrize("pair", COLOURS)
def test_no_owner_is_red(pair: tuple[str, str]) -> None:
    for text in pair:
        red, green, blue = (int(text[at:at + 2], 16) / 255 for at in (1, 3, 5))
        assert 30 <= colorsys.rgb_to_hsv(red, green, blue)[0] * 360 <= 280
