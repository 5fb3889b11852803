"""The grounds of pods on the map: distinct for all readers, on paper in grey too, and none like an alarm."""

from __future__ import annotations

import colorsys
import math
from itertools import combinations, pairwise

import pytest

from vmpin.reports.map.svg import COLOURS, HATCHINGS, ground

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
