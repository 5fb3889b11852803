"""The result of `vmpin demo --noise` as an SVG that stands alone: a panel of bars for each figure.

The three placements differ in lightness and are named beside each bar, so the picture can be read in grey; it brings a
background, so a page may be light or dark. Pure.
"""

from html import escape

from vmpin.features.demo.worth import Metric, Setup, Worth
from vmpin.features.demo.worth_report import cell, disturbance, kata_line, machine, noise

_WIDTH, _PAD = 760, 20
_LABEL, _BAR_MOST = 128, 400
_ROW, _BAR = 24, 16
_TITLES = {
    "share_percent": "Share of its CPU that the container got",
    "longest_gap_ms": "Longest gap in its running",
    "migrations_per_minute": "Its moves between CPUs, a minute",
    "wake_up_percentile_99_ms": "Late wake-ups: 99 of 100 are not later than",
}
_COLOURS = {Setup.UNPLACED: "#e0bc4f", Setup.KATA: "#4f8fc0", Setup.VMPIN: "#12324f"}
_STYLE = ("text{font-family:system-ui,sans-serif;font-size:13px;fill:#1b1f24}.title{font-size:17px;font-weight:600}"
          ".panel{font-weight:600}.soft{font-size:11px;fill:#59636e}")


def picture(worth: Worth) -> str:
    at = worth.circumstances
    y = _PAD + 16
    body = [_text(_PAD, y, "What pinning is worth: a container with an exclusive CPU in a VM", "title")]
    y += 20
    body.append(_text(_PAD, y, f"on 2 CPUs, beside {noise(at)}", "soft"))
    for metric in worth.metrics():
        if metric.key in _TITLES and any(metric.spreads.values()):
            y += 34
            body.append(_text(_PAD, y, _TITLES[metric.key], "panel"))
            panel, y = _bars(metric, y + 8)
            body += panel
    y += 8
    verdict, _, reason = kata_line(worth).partition(": ")
    for note in (f"{_rounds(worth)}.", disturbance(worth), machine(at), f"{verdict}:", reason):
        y += 16
        body.append(_text(_PAD, y, note, "soft"))
    height = y + _PAD
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(_summary(worth))}">'
            f'<style>{_STYLE}</style>'
            f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#ffffff" stroke="#b9c2cb"/>'
            + "".join(body) + "</svg>\n")


def _bars(metric: Metric, y: int) -> tuple[list[str], int]:
    """A bar for each set-up from 0 on, and a line from the least to the most of its rounds. :returns: the y below."""
    spreads = [spread for spread in metric.spreads.values() if spread is not None]
    full = 100.0 if metric.unit == "%" else max(spread.most for spread in spreads) or 1.0
    body = []
    for setup, spread in metric.spreads.items():
        middle = y + _ROW // 2
        body.append(_text(_PAD, middle + 4, setup.heading))
        if spread is not None:
            end, least, most = (_LABEL + _BAR_MOST * value / full
                                for value in (spread.median, spread.least, spread.most))
            body.append(f'<rect x="{_LABEL}" y="{middle - _BAR // 2}" width="{max(end - _LABEL, 1):.1f}" '
                        f'height="{_BAR}" fill="{_COLOURS[setup]}"/>')
            if spread.least != spread.most:
                body.append(f'<path d="M{least:.1f} {middle}H{most:.1f}M{least:.1f} {middle - 4}v8M{most:.1f} '
                            f'{middle - 4}v8" stroke="#6b7280" fill="none" stroke-width="1.5"/>')
            body.append(_text(round(max(end, most)) + 8, middle + 4, f"{cell(metric, spread)} {metric.unit}"))
        y += _ROW
    return body, y


def _rounds(worth: Worth) -> str:
    at = worth.circumstances
    return (f"Median of {at.rounds} rounds, with the least and the most" if at.rounds > 1 else "One round"
            ) + f", {at.seconds:g} s each"


def _summary(worth: Worth) -> str:
    share = worth.metrics()[0]
    return "; ".join(f"{setup.heading}: {cell(share, spread)} % of its CPU" for setup, spread in share.spreads.items())


def _text(x: int, y: int, text: str, css: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={css!r}" if css else ""}>{escape(text)}</text>'
