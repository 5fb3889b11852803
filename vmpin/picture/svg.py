"""The picture as one SVG, or in an HTML page: loads nothing, light or dark as the reader has it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from vmpin.picture import FREE, OFFLINE, SHARED, Cpu, Picture
from vmpin.picture.text import marks

# Pixels. Siblings stand one above the other in their core; cores flow in rows within their cache.
_CPU_W, _CPU_H, _GAP, _PAD = 82, 46, 4, 8
_ROW = 12
_HEAD = 20
_LINE = 17
#: Characters of a mark that fit into a CPU's box; the whole stands in its tooltip.
_FITS = 13

_STYLE = """
.vmpin{--ink:#1b1f24;--soft:#59636e;--page:#fff;--node:#f3f5f7;--cache:#e6eaee;--core:#fff;--edge:#b9c2cb;
--shared:#dfeefa;--free:#fff;--off:#d4d9de;--bad:#c0182b;font-family:system-ui,sans-serif;color:var(--ink)}
@media (prefers-color-scheme:dark){.vmpin{--ink:#e8ebee;--soft:#a0a9b3;--page:#14171a;--node:#1d2125;--cache:#272c32;
--core:#14171a;--edge:#4a525b;--shared:#17324a;--free:#14171a;--off:#33393f;--bad:#ff6b78}}
.vmpin text{fill:var(--ink);font-size:12px}.vmpin .soft{fill:var(--soft);font-size:11px}
.vmpin .n{font-weight:600;font-size:13px}.vmpin .mark{font-size:11px;font-family:ui-monospace,monospace}
.vmpin .node{fill:var(--node)}.vmpin .cache{fill:var(--cache)}.vmpin .core{fill:var(--core);stroke:var(--edge)}
.vmpin .cpu{stroke:var(--edge);stroke-width:.7}.vmpin .shared{fill:var(--shared)}.vmpin .free{fill:var(--free)}
.vmpin .offline{fill:var(--off)}.vmpin .bad{stroke:var(--bad);stroke-width:2.5}.vmpin text.alarm{fill:var(--bad);
font-weight:700}
"""
_PAGE = """
body{margin:1.5rem;background:#fff}@media (prefers-color-scheme:dark){body{background:#14171a}}
main{max-width:1180px;margin:auto}svg{max-width:100%;height:auto}h1{font-size:1.25rem}
h2{font-size:1rem;margin:1.4rem 0 .4rem}
table{border-collapse:collapse;font-size:.85rem}td,th{text-align:left;padding:.2rem .9rem .2rem 0;vertical-align:top;
border-bottom:1px solid var(--edge)}p{color:var(--soft);font-size:.85rem}.bad{color:var(--bad)}
.key{display:inline-block;min-width:1.6em;text-align:center;border:1px solid var(--edge);border-radius:3px;
font-weight:600}
"""
_WORDS = ("Colour and capital letter: the CPU is a container's alone. Blue: shared pool. Grey: offline. "
          "h: housekeeping, i: isolated. a:v1 is vCPU 1 of guest a, pinned there; a:+2 two other threads of it; "
          "~3: three threads float over the CPU. Siblings of a core stand in one frame.")


def svg(picture: Picture) -> str:
    """The drawing with its legend below."""
    body, width, height = _drawing(picture)
    width = max(width, 760)
    rows = [*_owner_rows(picture), *_guest_rows(picture), *_alarm_rows(picture)]
    for number, (css, key, text) in enumerate(rows):
        y = height + _HEAD + number * _LINE
        body += _swatch(css, key, y)
        body += f'<text x="52" y="{y}" class="{"alarm" if css == "bad" else ""}">{escape(text)}</text>'
    height += _HEAD + len(rows) * _LINE + _PAD
    return (f'<svg xmlns="http://www.w3.org/2000/svg" class="vmpin" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img"><title>{escape(_title(picture))}</title><style>{_STYLE}'
            f'{_colours(picture)}</style><rect width="{width}" height="{height}" style="fill:var(--page)"/>'
            f"{body}</svg>\n")


def html(picture: Picture) -> str:
    """A page with the drawing, and tables in place of its legend."""
    body, width, height = _drawing(picture)
    facts = "; ".join(f"{name} {value}" for name, value in picture.facts.items())
    owners = [(_key(css, key), escape(text)) for css, key, text in _owner_rows(picture)]
    guests = [(_key(css, key), escape(text)) for css, key, text in _guest_rows(picture)]
    alarms = "".join(f'<p class="bad">{escape(text)}</p>' for _, _, text in _alarm_rows(picture))
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<meta name="color-scheme" content="light dark"><title>{escape(_title(picture))}</title>'
            f'<style>{_PAGE}{_STYLE}{_colours(picture)}</style><main class="vmpin"><h1>CPUs of this node</h1>'
            f'<p>{escape(facts)}</p>{alarms}<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img"><title>{escape(_title(picture))}</title>{body}</svg>'
            f'<p>{escape(_WORDS)}</p>{_table("Whose CPUs", owners)}{_table("Guests", guests)}</main></html>\n')


def _title(picture: Picture) -> str:
    return f"vmpin map, {picture.facts['time']}"


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
    kind = {SHARED: "shared", FREE: "free", OFFLINE: "offline"}.get(cpu.kind)
    if kind is None:
        kind = "free" if cpu.owner is None else f"o{cpu.owner.number}"
    bad = " bad" if cpu.collisions else ""
    told = marks(cpu)
    tags = " ".join(tag for tag in (cpu.owner.letter if cpu.owner is not None else "", "h" * cpu.housekeeping,
                                    "i" * cpu.isolated) if tag)
    whose = cpu.owner.title if cpu.owner is not None else cpu.kind
    tip = "; ".join(text for text in (f"CPU {cpu.number}: {whose}", told, f"{cpu.floating} threads float over it"
                                      if cpu.floating else "", *cpu.collisions) if text)
    floats = (f'<text class="soft" x="{x + _CPU_W - 5}" y="{y + 41}" text-anchor="end">~{cpu.floating}</text>'
              if cpu.floating else "")
    short = told if len(told) <= _FITS - 4 * bool(cpu.floating) else told[:_FITS - 1 - 4 * bool(cpu.floating)] + "…"
    return (f'<g><title>{escape(tip)}</title><rect class="cpu {kind}{bad}" x="{x}" y="{y}" width="{_CPU_W}" '
            f'height="{_CPU_H}" rx="3"/><text class="n" x="{x + 6}" y="{y + 17}">{cpu.number}</text>'
            f'<text class="{"alarm" * bool(bad)}" x="{x + _CPU_W - 5}" y="{y + 17}" text-anchor="end">'
            f'{escape("!" * bool(bad) + tags)}</text><text class="mark" x="{x + 6}" y="{y + 40}">{escape(short)}'
            f"</text>{floats}</g>")


def _colours(picture: Picture) -> str:
    """A hue for each owner, neighbours far apart (the golden angle), and none that is the shared pool's blue."""
    def rules(saturation: int, lightness: int) -> str:
        angles = ((owner.number, owner.number * 137.508 % 360 * 310 / 360) for owner in picture.owners)
        hues = ((number, f"hsl({angle if angle < 185 else angle + 50:.0f},{saturation}%,{lightness}%)")
                for number, angle in angles)
        return "".join(f".vmpin .o{number}{{fill:{hue};background:{hue}}}" for number, hue in hues)

    return f"{rules(70, 80)}@media (prefers-color-scheme:dark){{{rules(50, 30)}}}"


#: Class, key and text.
_Rows = Iterable[tuple[str, str, str]]


def _owner_rows(picture: Picture) -> _Rows:
    return ((f"o{owner.number}", owner.letter, owner.said) for owner in picture.owners)


def _guest_rows(picture: Picture) -> _Rows:
    return (("free", guest.letter, guest.said) for guest in picture.guests)


def _alarm_rows(picture: Picture) -> _Rows:
    for cpu in picture.cpus():
        for what in cpu.collisions:
            yield "bad", "!", f"CPU {cpu.number}: {what}"


def _swatch(css: str, key: str, y: int) -> str:
    return (f'<rect class="cpu {css}" x="16" y="{y - 12}" width="28" height="14" rx="2"/>'
            f'<text x="30" y="{y - 1}" text-anchor="middle">{escape(key)}</text>')


def _key(css: str, key: str) -> str:
    return f'<span class="key {css}">{escape(key)}</span>'


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = "".join(f"<tr><td>{key}</td><td>{text}</td></tr>" for key, text in rows)
    return f"<h2>{title}</h2><table>{cells}</table>"
