"""The map as one SVG, or in an HTML page that loads no other resource, in light or dark colours.

Pure.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape

from vmpin.domain.terminal import number_of
from vmpin.reports.map.node_map import OFFLINE, SHARED, Cpu, Picture
from vmpin.reports.map.pod_colours import DEFINITIONS, STYLE, Ground, ground
from vmpin.reports.map.text import GIVEN_SIGNS, SIGNS, marks

# Pixels. Siblings stand one above the other in their core; cores flow in rows within their cache.
_CPU_W, _CPU_H, _GAP, _PAD = 84, 48, 4, 8
_ROW = 12
_HEAD = 20
_LINE = 17
#: Where a legend's text begins.
_TEXT = 52
_KEY_W = 28
#: Width of a character in a fixed-width font: 0.6 em in nearly all of them.
_CHAR = 6.7
#: Characters in a line of a CPU's box; its tooltip has all marks.
_FITS = int((_CPU_W - 10) / _CHAR)

_STYLE = """
.vmpin{--ink:#1b1f24;--soft:#59636e;--page:#fff;--node:#f3f5f7;--cache:#e6eaee;--core:#fff;--edge:#b9c2cb;
--shared:#dfeefa;--free:#fff;--off:#d4d9de;--bad:#c0182b;font-family:system-ui,sans-serif;color:var(--ink)}
@media (prefers-color-scheme:dark){.vmpin{--ink:#e8ebee;--soft:#a0a9b3;--page:#14171a;--node:#1d2125;--cache:#272c32;
--core:#14171a;--edge:#4a525b;--shared:#17324a;--free:#14171a;--off:#33393f;--bad:#ff6b78}}
.vmpin text{fill:var(--ink);font-size:12px}.vmpin .soft{fill:var(--soft);font-size:11px}
.vmpin .n{font-weight:600;font-size:13px}.vmpin .mark{font-size:11px;font-family:ui-monospace,monospace}
.vmpin .node{fill:var(--node)}.vmpin .cache{fill:var(--cache)}.vmpin .core{fill:var(--core);stroke:var(--edge)}
.vmpin .cpu{stroke:var(--edge);stroke-width:.7}.vmpin .shared{fill:var(--shared)}
.vmpin .free{fill:var(--free)}.vmpin .offline{fill:var(--off)}
.vmpin .bad{stroke:var(--bad);stroke-width:2.5}.vmpin .alarm{fill:var(--bad)}
.vmpin .on{fill:var(--page)}
"""
_PAGE = """
body{margin:1.5rem;background:#fff}@media (prefers-color-scheme:dark){body{background:#14171a}}
main{max-width:1180px;margin:auto}.scroll{overflow-x:auto;margin-top:.6rem}.scroll svg{display:block}
h1{font-size:1.25rem;overflow-wrap:anywhere}h2{font-size:1rem;margin:1.4rem 0 .4rem}
table{border-collapse:collapse;font-size:.85rem}td,th{text-align:left;padding:.2rem .9rem .2rem 0;vertical-align:top;
border-bottom:1px solid var(--edge);overflow-wrap:anywhere}p{color:var(--soft);font-size:.85rem}
td:first-child{white-space:nowrap}.key{vertical-align:middle}@media(max-width:500px){body{margin:.7rem}}
@media print{body{margin:0}.scroll{overflow:visible}}
"""


def svg(picture: Picture) -> str:
    """The drawing with its legend below."""
    body, width, height = _drawing(picture)
    width = max(width, 760)
    for title, rows in _legend(picture):
        if not rows:
            continue
        height += _HEAD
        body += f'<text class="soft" x="{2 * _PAD}" y="{height}">{escape(title)}</text>'
        for under, key, text in rows:
            body += _swatch(under, key, 16, height + _LINE)
            for part in _wrapped(text, int((width - _TEXT - _PAD) / _CHAR)):
                height += _LINE
                body += f'<text class="mark" x="{_TEXT}" y="{height}">{escape(part)}</text>'
        height += _PAD
    height += _PAD
    return (f'<svg xmlns="http://www.w3.org/2000/svg" class="vmpin" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img"><title>{escape(_title(picture))}</title><style>{_STYLE}'
            f'{STYLE}</style>{DEFINITIONS}<rect width="{width}" height="{height}" style="fill:var(--page)"/>'
            f"{body}</svg>\n")


def html(picture: Picture, refresh: float | None = None) -> str:
    """A page with the drawing, and tables in place of its legend. On a narrow screen the drawing scrolls.
    :param refresh: after so many seconds a browser is to load it again; None: never."""
    body, width, height = _drawing(picture)
    facts = "; ".join(f"{name} {value}" for name, value in picture.facts.items())
    wrong, *others = (_table(title, rows) for title, rows in _legend(picture))
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{max(1, round(refresh))}">'
    node = picture.facts.get("node")
    return (f'<!doctype html><html lang="en"><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">{again}'
            f'<meta name="color-scheme" content="light dark"><title>{escape(_title(picture))}</title>'
            f'<style>{_PAGE}{_STYLE}{STYLE}</style><main class="vmpin">'
            f'<h1>CPUs of {"this node" if node is None else escape(node)}</h1>'
            f'<p>{escape(facts)}</p>{wrong}<div class="scroll">'
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img"><title>{escape(_title(picture))}</title>'
            f'{DEFINITIONS}{body}</svg></div>{"".join(others)}</main></html>\n')


def _title(picture: Picture) -> str:
    return ", ".join(["vmpin map", *(picture.facts[name] for name in ("node", "time") if name in picture.facts)])


def _drawing(picture: Picture) -> tuple[str, int, int]:
    """All nodes, one below the other. :returns: the elements, width and height."""
    parts: list[str] = []
    y, widest = _PAD, 0
    for name, caches in picture.nodes:
        inner: list[str] = []
        x, top, row, node_width = 2 * _PAD, y + _HEAD, 0, 0
        for cores in caches:
            drawn, width, height = _cache(cores)
            if x > 2 * _PAD and x + width > _PAD + _ROW * (_CPU_W + 2 * _GAP) + 2 * _PAD:
                x, top, row = 2 * _PAD, top + row + _PAD, 0
            inner.append(f'<g transform="translate({x},{top})">{drawn}</g>')
            x, row = x + width + _PAD, max(row, height)
            node_width = max(node_width, x)
        height = top + row + _PAD - y
        parts.append(f'<rect class="node" x="{_PAD}" y="{y}" width="{node_width - _PAD}" height="{height}" rx="6"/>'
                     f'<text class="soft" x="{2 * _PAD}" y="{y + 14}">{escape(name)}</text>{"".join(inner)}')
        y += height + _PAD
        widest = max(widest, node_width + _PAD)
    return "".join(parts), widest, y


def _cache(cores: Sequence[Sequence[Cpu]]) -> tuple[str, int, int]:
    tall = max(len(core) for core in cores) * (_CPU_H + _GAP) + _GAP
    step = _CPU_W + 2 * _GAP + 2
    parts = []
    for number, core in enumerate(cores):
        row, column = divmod(number, _ROW)
        x, y = _GAP + column * step, _GAP + row * (tall + _GAP)
        height = len(core) * (_CPU_H + _GAP) + _GAP
        parts.append(f'<rect class="core" x="{x}" y="{y}" width="{_CPU_W + 2 * _GAP}" height="{height}" rx="4"/>')
        parts += [_cpu(cpu, x + _GAP, y + _GAP + at * (_CPU_H + _GAP)) for at, cpu in enumerate(core)]
    width = min(len(cores), _ROW) * step + 2 * _GAP - 2
    rows = (len(cores) + _ROW - 1) // _ROW
    height = rows * (tall + _GAP) + _GAP
    return f'<rect class="cache" width="{width}" height="{height}" rx="5"/>' + "".join(parts), width, height


def _cpu(cpu: Cpu, x: int, y: int) -> str:
    under = Ground(cpu.kind) if cpu.owner is None or cpu.kind == OFFLINE else ground(cpu.owner.pod)
    shown = marks(cpu)
    tags = " ".join(tag for tag in ("!" * bool(cpu.collisions) + cpu.letters, cpu.flags) if tag)
    holder = cpu.kind if cpu.owner is None else " and ".join(
        [owner.title for owner in (cpu.owner, *cpu.others)] + ["the shared pool"] * (cpu.kind == SHARED))
    floating = f"{number_of(cpu.floating, 'thread floats')} over it" if cpu.floating else ""
    tip = "; ".join(filter(None, (f"CPU {cpu.number}: {holder}", shown, floating, *cpu.collisions)))
    left, right = x + 5, x + _CPU_W - 5
    floats = f"~{cpu.floating}" if cpu.floating else ""
    parts = [f"<title>{escape(tip)}</title>", under.drawn(x, y, _CPU_W, _CPU_H, " bad" * bool(cpu.collisions))]
    on = " on" * bool(cpu.collisions)
    if on:  # on a separate ground: red is not readable on every pod's colour
        parts.append(f'<rect class="alarm" x="{x}" y="{y}" width="{_CPU_W}" height="19" rx="3"/>')
    parts.append(f'<text class="n{on}" x="{left}" y="{y + 14}">{cpu.number}</text>'
                 f'<text class="{on}" x="{right}" y="{y + 14}" text-anchor="end">{escape(tags)}</text>')
    parts += [f'<text class="mark" x="{left}" y="{y + 30 + 12 * at}">{escape(line)}</text>'
              for at, line in enumerate(_fitted(shown, (_FITS, _FITS - len(floats) - bool(floats)))) if line]
    parts.append(f'<text class="mark" x="{right}" y="{y + 42}" text-anchor="end">{floats}</text>' if floats else "")
    return f"<g>{''.join(parts)}</g>"


def _fitted(shown: str, rooms: Sequence[int]) -> list[str]:
    """Marks in lines of the given lengths, broken after commas and blanks; "…" if some are left."""
    left = re.findall("[^ ,]+[ ,]?", shown)
    lines = []
    for number, room in enumerate(rooms):
        cut = number == len(rooms) - 1 and len("".join(left)) > room
        line = ""
        while left and len((line + left[0]).rstrip()) <= room - cut:
            line += left.pop(0)
        lines.append(line.rstrip() + "…" * cut)
    return lines


def _wrapped(text: str, room: int) -> list[str]:
    """A text in lines, broken after blanks and commas if possible: a CPU's number stays whole."""
    lines = [""]
    for piece in re.findall(f"[^ ,]{{1,{room - 1}}}[ ,]?|[ ,]", text):
        if len((lines[-1] + piece).rstrip()) > room:
            lines.append("")
        lines[-1] += piece
    return lines


#: The ground of a key (None for a bare sign), the key and its text.
_Rows = Sequence[tuple[Ground | None, str, str]]
_ALARM = Ground("alarm")


def _legend(picture: Picture) -> Iterable[tuple[str, _Rows]]:
    """The sections of the legend by title, collisions first."""
    signs = (*SIGNS, *(GIVEN_SIGNS if picture.notes else ()))
    return (
        ("Collisions", [(_ALARM, "!", text) for text in picture.alarms()]),
        ("Signs", [(Ground("shared"), "", "shared pool"),
                   (Ground("free"), "", "free: without an owner, and not in the shared pool"),
                   (Ground("offline"), "", "offline"),
                   *((_ALARM if sign == "!" else None, sign, text) for sign, text in signs),
                   (None, "", "in one frame: the siblings of a core; on one ground: the cores of a cache")]),
        ("CPUs given out" if picture.notes else "Exclusive CPUs",
         [(ground(owner.pod), owner.letter, owner.legend) for owner in picture.owners]),
        ("Free CPUs", [(None, "", note) for note in picture.notes]),
        ("Guests", [(Ground("free"), guest.letter, guest.legend) for guest in picture.guests]))


def _swatch(under: Ground | None, key: str, x: int, y: int) -> str:
    """A key with its ground, on a line of text whose base is at y."""
    box = "" if under is None else under.drawn(x, y - 12, _KEY_W, 15)
    on = " on" * (under is _ALARM)
    return f'{box}<text class="mark{on}" x="{x + _KEY_W // 2}" y="{y}" text-anchor="middle">{escape(key)}</text>'


def _key(under: Ground | None, key: str) -> str:
    """Draw a swatch as `_swatch` does, in a table."""
    if under is None:
        return escape(key)
    return f'<svg class="key" width="{_KEY_W + 2}" height="17">{_swatch(under, key, 1, 13)}</svg>'


def _table(title: str, rows: _Rows) -> str:
    if not rows:
        return ""
    cells = "".join(f"<tr><td>{_key(under, key)}</td><td>{escape(text)}</td></tr>" for under, key, text in rows)
    return f"<h2>{escape(title)}</h2><table>{cells}</table>"
