"""The ground of a pod's CPUs on the map: a colour with a hatching, neither of which alone stands for a pod.

Pure. The five colours differ in lightness by steps, so that they differ in grey and for readers who see fewer colours;
none is red, which stands for a collision, and none the shared pool's blue. Hatchings alternate with another period
than colours, so that thirty pods have different grounds; the letter stands in each CPU besides.
"""

from typing import Final, NamedTuple

#: (on a light page, on a dark page), as steps of lightness in OKLCH.
COLOURS: Final = (("#f9ea92", "#2c2705"), ("#93e4a4", "#174022"), ("#c8a5f0", "#543772"), ("#45b5b5", "#176363"),
                  ("#b68539", "#846230"))
#: Paths in a square of 8 pixels that repeats.
HATCHINGS: Final = ("M-2,2l4,-4M0,8l8,-8M6,10l4,-4", "M4,0v8", "M-2,6l4,4M0,0l8,8M6,-2l4,4", "M0,4h8",
                    "M4,3v2", "M4,0v8M0,4h8")
#: The hatchings' elements, once in a drawing; the classes of both are in the style below.
DEFINITIONS: Final = "<defs>" + "".join(
    f'<pattern id="vmpin-h{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
    f'<path class="hatch" d="{path}"/></pattern>' for number, path in enumerate(HATCHINGS)) + "</defs>"


def _fills(dark: bool) -> str:
    return "".join(f".vmpin .c{number}{{fill:{pair[dark]}}}" for number, pair in enumerate(COLOURS))


STYLE: Final = (".vmpin .hatch{stroke:var(--ink);stroke-opacity:.28;stroke-width:1.2;fill:none;pointer-events:none}"
                f"{_fills(False)}@media (prefers-color-scheme:dark){{{_fills(True)}}}")


class Ground(NamedTuple):
    """What a CPU or a key stands on: the class of its colour, and the number of its hatching, if any."""

    css: str
    hatching: int | None = None

    def drawn(self, x: int, y: int, width: int, height: int, more: str = "") -> str:
        """Draw it as elements of SVG. :param more: further classes."""
        place = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="3"'
        hatching = "" if self.hatching is None else f'<rect fill="url(#vmpin-h{self.hatching})" {place}/>'
        return f'<rect class="cpu {self.css}{more}" {place}/>{hatching}'


def ground(pod: int) -> Ground:
    """Return the ground of the pod with this number."""
    return Ground(f"c{pod % len(COLOURS)}", pod % len(HATCHINGS))
