"""The map as one SVG that loads no other resource (map.svg), in light or dark colours.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from vmpin.domain.templates import render
from vmpin.domain.terminal import number_of
from vmpin.domain.wrapping import pieces, wrapped
from vmpin.features.map.node_map import OFFLINE, SHARED, Cpu, Picture
from vmpin.features.map.text import folded, guest_marks, signs

#: Of pods, (on a light page, on a dark page), by steps of lightness in OKLCH: they differ in grey, and for readers who
#: see fewer colours. None is red, which stands for a collision, and none the shared pool's blue.
COLOURS: Final = (("#f9ea92", "#2c2705"), ("#93e4a4", "#174022"), ("#c8a5f0", "#543772"), ("#45b5b5", "#176363"),
                  ("#b68539", "#846230"))
#: Paths in a square of 8 pixels that repeats. Their number and that of the colours have no common divisor, so thirty
#: pods have different grounds; the letter stands in each CPU besides.
HATCHINGS: Final = ("M-2,2l4,-4M0,8l8,-8M6,10l4,-4", "M4,0v8", "M-2,6l4,4M0,0l8,8M6,-2l4,4", "M0,4h8",
                    "M4,3v2", "M4,0v8M0,4h8")
# Pixels. Siblings stand one above the other in their core; cores flow in rows within their cache.
_GAP, _PAD = 4, 8
_CORE_WIDTH, _CPU_STEP, _CORE_STEP = 92, 52, 94
#: Cores in a row.
_ROW = 12
#: Characters in a line of a CPU's box. A character is 6.7 pixels wide: 0.6 em in nearly all fixed-width fonts.
_ROOM = 11
#: Characters in a key of the legend.
_KEY = 4
#: (class, x, y, width, height)
_Box = tuple[str, int, int, int, int]


class Ground(NamedTuple):
    """What a CPU or a key stands on: the class of its colour, and the number of its hatching, if any."""

    css: str
    hatching: int | None = None


def svg(picture: Picture) -> str:
    """The drawing with its legend below."""
    title = ", ".join(["vmpin map", *(picture.facts[name] for name in ("node", "time") if name in picture.facts)])
    return render("vmpin.features.map", "map.svg", title=title, legend=_legend(picture), colours=COLOURS,
                  hatchings=HATCHINGS, ground_of=_ground_of, marks_in_box=_marks_in_box, described=_described,
                  wrapped=wrapped, **_layout(picture))


def _layout(picture: Picture) -> dict[str, Any]:
    """Where everything stands, the nodes one below the other: `boxes` of nodes, caches and cores (class, x, y, width,
    height) in the order in which they are painted, `names` and `cpus` (each with x, y), and the size of the whole."""
    nodes: list[_Box] = []
    caches: list[_Box] = []
    cores: list[_Box] = []
    names, cpus = [], []
    y, widest = _PAD, 0
    for name, caches_of_node in picture.nodes:
        x, top, row, right = 2 * _PAD, y + 20, 0, 0
        for members in caches_of_node:
            core_height = max(map(len, members)) * _CPU_STEP + 2 * _GAP
            width = min(len(members), _ROW) * _CORE_STEP - 2 + 2 * _GAP
            height = -(-len(members) // _ROW) * core_height + _GAP
            if x > 2 * _PAD and x + width > _ROW * _CORE_WIDTH + 3 * _PAD:
                x, top, row = 2 * _PAD, top + row + _PAD, 0
            caches.append(("cache", x, top, width, height))
            for number, core in enumerate(members):
                left, above = x + _GAP + number % _ROW * _CORE_STEP, top + _GAP + number // _ROW * core_height
                cores.append(("core", left, above, _CORE_WIDTH, len(core) * _CPU_STEP + _GAP))
                cpus += [(cpu, left + _GAP, above + _GAP + place * _CPU_STEP) for place, cpu in enumerate(core)]
            x, row = x + width + _PAD, max(row, height)
            right = max(right, x)
        nodes.append(("node", _PAD, y, right - _PAD, top + row + _PAD - y))
        names.append((name, 2 * _PAD, y + 14))
        y, widest = top + row + 2 * _PAD, max(widest, right + _PAD)
    return {"boxes": [*nodes, *caches, *cores], "names": names, "cpus": cpus, "width": widest, "height": y}


def ground(pod: int) -> Ground:
    """Return the ground of the pod with this number."""
    return Ground(f"c{pod % len(COLOURS)}", pod % len(HATCHINGS))


def _ground_of(cpu: Cpu) -> Ground:
    return ground(cpu.owners[0].pod) if cpu.owners and cpu.kind != OFFLINE else Ground(cpu.kind)


def _described(cpu: Cpu) -> str:
    """All that is known of a CPU, for its tooltip."""
    owners = [owner.title for owner in cpu.owners]
    holders = " and ".join(owners + ["the shared pool"] * (cpu.kind == SHARED)) if owners else cpu.kind
    floating = f"{number_of(cpu.floating, 'thread floats')} over it" if cpu.floating else ""
    return "; ".join(filter(None, (
        f"CPU {cpu.number}: {holders}", " ".join(guest_marks(cpu)), floating, *cpu.collisions)))


def _marks_in_box(cpu: Cpu) -> list[str]:
    """A CPU's marks as two lines of its box, broken after commas and blanks. Guests that have no room are counted; of
    a single guest "…" stands for the marks that are left out."""
    guests = guest_marks(cpu)
    for shown in range(len(guests), 0 if len(guests) == 1 else -1, -1):
        *named, last = folded(guests, shown) or [""]
        words = pieces(" ".join([*named, ""])) if named else []
        words += [last] if shown < len(guests) else pieces(last)
        lines, cut = _two_lines(words, cpu.floating)
        if not cut:
            break
    return lines


def _two_lines(words: list[str], floating: int) -> tuple[list[str], bool]:
    """(words as two lines, True if "…" stands for some of them). The number of floating threads ends the second."""
    lines, left = [], [*words]
    for room, last in ((_ROOM, False), (_ROOM - len(f" ~{floating}") * bool(floating), True)):
        cut = last and len("".join(left)) > room
        line = ""
        while left and len((line + left[0]).rstrip()) <= room - cut:
            line += left.pop(0)
        lines.append(line.rstrip() + "…" * cut)
    return lines, cut


#: The title of a section of the legend, and its rows: the ground of a key (None for a bare sign), the key, its text.
_Section = tuple[str, Sequence[tuple[Ground | None, str, str]]]


def _legend(picture: Picture) -> Sequence[_Section]:
    """Collisions first."""
    alarm = Ground("alarm")
    return (
        ("Collisions", [(alarm, "!", text) for text in picture.alarms()]),
        ("Signs", [(Ground("shared"), "", "shared pool"),
                   (Ground("free"), "", "free: without an owner, and not in the shared pool"),
                   (Ground("offline"), "", "offline"),
                   *((alarm if sign == "!" else None, *((sign, text) if len(sign) <= _KEY else
                                                        ("", f"{sign}: {text}"))) for sign, text in signs(picture)),
                   (None, "", "in one frame: the siblings of a core; on one ground: the cores of a cache")]),
        ("CPUs given out" if picture.notes else "Exclusive CPUs",
         [(ground(owner.pod), owner.letter, owner.legend) for owner in picture.owners]),
        ("Free CPUs", [(None, "", note) for note in picture.notes]),
        ("Guests", [(Ground("free"), guest.letter, guest.legend) for guest in picture.guests]))
