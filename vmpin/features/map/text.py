"""The map for a terminal: lines of texts, each with a style.

Pure.
"""

import re
from collections.abc import Iterator

from vmpin.domain.terminal import printable
from vmpin.features.map.node_map import FREE, OFFLINE, SHARED, Cpu, Picture

#: Texts with the name of a style of rich, "" for none.
Line = list[tuple[str, str]]
#: Colours that are readable on black and on white; an owner's letter distinguishes equal colours.
COLOURS = ("bold blue", "bold magenta", "bold green", "bold cyan", "bold yellow", "blue", "magenta", "green", "cyan",
           "yellow")
COLLISION = "bold white on red"
_SIGNS = {SHARED: ("·", ""), FREE: (" ", ""), OFFLINE: ("x", "dim")}
#: The signs on a CPU, in every form of the map.
SIGNS = (("h", "housekeeping"), ("i", "isolated"), ("a:v1", "vCPU 1 of guest a is pinned there"),
         ("a:+2", "so are two other threads of it"), ("~3", "three threads float over it"), ("!", "collision"))
#: Besides, where vmpin gives out the CPUs.
GIVEN_SIGNS = (("A·", "A has it, and so has the shared pool"), ("A,B", "both have it"), ("r", "reserved"))
LEGEND = "; ".join(f"{sign}: {text}" for sign, text in (
    ("capital letter", "exclusive to a container"), ("·", "shared pool"), ("x", "offline"), *SIGNS))


def lines(picture: Picture, width: int) -> Iterator[Line]:
    """The whole map, wrapped to `width` columns."""
    yield from _wrapped("; ".join(f"{name} {value}" for name, value in picture.facts.items()), width)
    for note in picture.notes:
        yield from _wrapped(note, width)
    cells = {cpu.number: _cell(cpu) for cpu in picture.cpus()}
    wide = max((len(text) for text, _ in cells.values()), default=0)
    for name, caches in picture.nodes:
        yield [(name, "bold")]
        for cores in caches:
            line: Line = [("LLC ", "dim")]  # the CPUs that follow share a last-level cache
            for core in cores:
                cells_of_core = _core([cells[cpu.number] for cpu in core], wide)
                if len(line) > 1 and sum(len(text) for text, _ in line + cells_of_core) > width:
                    yield line
                    line = [("    ", "")]
                line += cells_of_core
            yield line
    yield []
    signs = "; ".join([LEGEND, *(f"{sign}: {text}" for sign, text in GIVEN_SIGNS if picture.notes)])
    yield from _wrapped(signs, width, "dim")
    for owner in picture.owners:
        yield from _keyed(owner.letter, style(owner.pod), owner.legend, width)
    for guest in picture.guests:
        yield from _keyed(guest.letter, "bold", guest.legend, width)
    for alarm in picture.alarms():
        yield from _keyed("!", COLLISION, alarm, width)


def _wrapped(text: str, width: int, kind: str = "") -> Iterator[Line]:
    """Broken after semicolons, else after blanks and after the commas of long CPU lists: a number stays whole. Names
    are any text: they are made printable before they are counted, and broken where they are longer than a line."""
    line = ""
    for part in re.findall(r"[^;]+;? *", printable(text)):
        for piece in [part] if len(part.rstrip()) <= width else re.findall(r"[^ ,]+[ ,]*", part):
            if line and len((line + piece).rstrip()) > width:
                yield [(line.rstrip(), kind)]
                line = ""
            line += piece
            while len(line.rstrip()) > width:
                yield [(line[:width], kind)]
                line = line[width:]
    yield [(line.rstrip(), kind)]


def _keyed(key: str, kind: str, text: str, width: int) -> Iterator[Line]:
    """A line of the legend; what does not fit stands below its text."""
    for number, line in enumerate(_wrapped(text, max(width - 4, 1))):
        yield [(" " * 4 if number else f"{key:>3} ", kind), *line]


def style(pod: int) -> str:
    """The style of a pod's owners."""
    return COLOURS[pod % len(COLOURS)]


def marks(cpu: Cpu) -> str:
    """The pinned threads on a CPU, by guest: "a:v0-1,+2 b:v1"."""
    by_guest: dict[str, list[str]] = {}
    for mark in cpu.pinned:
        guest, _, threads = mark.partition(":")
        by_guest.setdefault(guest, []).append(threads)
    return " ".join(f"{guest}:{','.join(threads)}" for guest, threads in by_guest.items())


def _cell(cpu: Cpu) -> tuple[str, str]:
    sign, kind = (cpu.letters, style(cpu.owners[0].pod)) if cpu.owners and cpu.kind != OFFLINE else _SIGNS[cpu.kind]
    flags = "!" * bool(cpu.collisions) + cpu.flags
    floats = f"~{cpu.floating}" if cpu.floating else ""
    text = " ".join(part for part in (f"{cpu.number:>3} {sign}{flags}", marks(cpu), floats) if part)
    return text, COLLISION if cpu.collisions else kind


def _core(cells: list[tuple[str, str]], wide: int) -> Line:
    parts = [part for text, kind in cells for part in (("|", "dim"), (text.ljust(wide), kind))]
    return [("[", "dim"), *parts[1:], ("] ", "dim")]
