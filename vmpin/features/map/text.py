"""The map for a terminal: lines of texts, each with a style.

Pure.
"""

import re
from collections.abc import Iterator, Sequence

from vmpin.domain.terminal import number_of, printable
from vmpin.features.map.node_map import FREE, OFFLINE, SHARED, Cpu, Picture

#: Texts with the name of a style of rich, "" for none.
Line = list[tuple[str, str]]
#: Colours that are readable on black and on white; an owner's letter distinguishes equal colours.
COLOURS = ("bold blue", "bold magenta", "bold green", "bold cyan", "bold yellow", "blue", "magenta", "green", "cyan",
           "yellow")
COLLISION, ALARM = "bold white on red", "bold red"
_SIGNS = {SHARED: ("·", ""), FREE: (" ", ""), OFFLINE: ("x", "dim")}
#: The signs on a CPU, in every form of the map.
SIGNS = (("h", "housekeeping"), ("i", "isolated"), ("a:v1", "vCPU 1 of guest a is pinned there"),
         ("a:+2", "so are two other threads of it"), ("~3", "three threads float over it"), ("!", "collision"))
#: Besides, where vmpin gives out the CPUs.
GIVEN_SIGNS = (("A·", "A has it, and so has the shared pool"), ("A,B", "both have it"), ("r", "reserved"))
#: Besides, where threads of several guests are pinned to one CPU.
FOLDED_SIGNS = (("12 more", "threads of twelve more guests are pinned there"),)
_GROUNDS = (("capital letter", "exclusive to a container"), ("·", "shared pool"), ("x", "offline"))
#: Guests that a CPU's cell names; where there are more, it names one less and counts the rest.
_MOST_GUESTS = 3


def lines(picture: Picture, width: int) -> Iterator[Line]:
    """The whole map, wrapped to `width` columns; collisions come first, and are counted where a terminal ends."""
    alarms = list(picture.alarms())
    for alarm in alarms:
        yield from _wrapped(f"COLLISION on {alarm}", width, ALARM, "  ")
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
    yield from _wrapped("; ".join(f"{sign}: {text}" for sign, text in (*_GROUNDS, *signs(picture))), width, "dim")
    for owner in picture.owners:
        yield from _keyed(owner.letter, style(owner.pod), owner.legend, width)
    for guest in picture.guests:
        yield from _keyed(guest.letter, "bold", guest.legend, width)
    if alarms:
        yield from _wrapped(f"{number_of(len(alarms), 'collision')}: the first lines", width, ALARM)


def signs(picture: Picture) -> Sequence[tuple[str, str]]:
    """The signs on CPUs that the legend of this map explains."""
    return (*SIGNS, *(GIVEN_SIGNS if picture.notes else ()),
            *(FOLDED_SIGNS if any(len(guest_marks(cpu)) > 1 for cpu in picture.cpus()) else ()))


def _wrapped(text: str, width: int, kind: str = "", hanging: str = "") -> Iterator[Line]:
    """Broken after semicolons, else after blanks and after the commas of long CPU lists: a number stays whole. Names
    are any text: they are made printable before they are counted, and broken where they are longer than a line.
    :param hanging: before all lines but the first."""
    line = ""
    for part in re.findall(r"[^;]+;? *", printable(text)):
        for piece in [part] if len(part.rstrip()) <= width else re.findall(r"[^ ,]+[ ,]*", part):
            if line.strip() and len((line + piece).rstrip()) > width:
                yield [(line.rstrip(), kind)]
                line = hanging
            line += piece
            while len(line.rstrip()) > width:
                yield [(line[:width], kind)]
                line = hanging + line[width:]
    yield [(line.rstrip(), kind)]


def _keyed(key: str, kind: str, text: str, width: int) -> Iterator[Line]:
    """A line of the legend; what does not fit stands below its text."""
    for number, line in enumerate(_wrapped(text, max(width - 4, 1))):
        yield [(" " * 4 if number else f"{key:>3} ", kind), *line]


def style(pod: int) -> str:
    """The style of a pod's owners."""
    return COLOURS[pod % len(COLOURS)]


def guest_marks(cpu: Cpu) -> list[str]:
    """The pinned threads on a CPU, by guest: ["a:v0-1,+2", "b:v1"]."""
    by_guest: dict[str, list[str]] = {}
    for mark in cpu.pinned:
        guest, _, threads = mark.partition(":")
        by_guest.setdefault(guest, []).append(threads)
    return [f"{guest}:{','.join(threads)}" for guest, threads in by_guest.items()]


def folded(guests: Sequence[str], shown: int) -> list[str]:
    """The marks of the first `shown` guests, and how many more there are: ["a:v0", "b:v1", "10 more"]."""
    left = len(guests) - shown
    return [*guests[:shown], *([f"{left} more" if shown else number_of(left, 'guest')] if left else [])]


def _cell(cpu: Cpu) -> tuple[str, str]:
    sign, kind = (cpu.letters, style(cpu.owners[0].pod)) if cpu.owners and cpu.kind != OFFLINE else _SIGNS[cpu.kind]
    flags = "!" * bool(cpu.collisions) + cpu.flags
    floats = f"~{cpu.floating}" if cpu.floating else ""
    guests = guest_marks(cpu)
    marks = folded(guests, len(guests) if len(guests) <= _MOST_GUESTS else _MOST_GUESTS - 1)
    text = " ".join(part for part in (f"{cpu.number:>3} {sign}{flags}", *marks, floats) if part)
    return text, COLLISION if cpu.collisions else kind


def _core(cells: list[tuple[str, str]], wide: int) -> Line:
    parts = [part for text, kind in cells for part in (("|", "dim"), (text.ljust(wide), kind))]
    return [("[", "dim"), *parts[1:], ("] ", "dim")]
