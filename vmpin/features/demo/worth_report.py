"""The result of `vmpin demo --noise` as text, a table of at most 80 columns with notes, and as a picture. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

from vmpin.domain.terminal import number_of, printable
from vmpin.features.demo.worth import (
    DISTURBED,
    KATA_REASON,
    LEAST_GAP,
    SLEEP,
    Circumstances,
    Metric,
    Setup,
    Spread,
    Worth,
)

#: The metrics that are drawn.
_TITLES = {
    "share_percent": "Share of its CPU that the container got",
    "longest_gap_ms": "Longest gap in its running",
    "migrations_per_minute": "Its moves between CPUs, a minute",
    "wake_up_percentile_99_ms": "Late wake-ups: 99 of 100 are not later than",
}
#: Where bars begin, and how long they can be (pixels).
_LEFT, _LONGEST = 128, 400
_COLOURS = "#e0bc4f", "#4f8fc0", "#12324f"
_STYLE = """\
text{font-family:system-ui,sans-serif;font-size:13px;fill:#1b1f24}.title{font-size:17px;font-weight:600}
.panel{font-weight:600}.soft{font-size:11px;fill:#59636e}</style>"""
_KATA = "Kata's enable_vcpus_pinning would have pinned nothing beyond its cpusets"
#: Widths of the first and the other columns of the table (characters).
_FIRST, _COLUMN = 20, 18


def result_table(worth: Worth) -> list[str]:
    """Its lines. What was not measured is left out."""
    lines = ["".join(["".ljust(_FIRST), *(setup.heading.ljust(_COLUMN) for setup in Setup), "gain"])]
    for metric in worth.metrics():
        if any(metric.spreads.values()):
            cells = [cell(metric, metric.spreads[setup]).ljust(_COLUMN) for setup in Setup]
            lines.append("".join([f"{metric.title}, {metric.unit}".ljust(_FIRST), *cells, gain(metric)]).rstrip())
    return lines


def notes(worth: Worth) -> list[str]:
    """Paragraphs: what the figures depend on, and what Kata's pinning would have done."""
    at = worth.circumstances
    return [
        f"On 2 CPUs, beside {noise(at)}. The median of the rounds, with the least and the most; the gain is that of "
        f"vmpin over unplaced. Late: a wake-up after a sleep of {SLEEP:g} ms in the guest"
        + ("." if at.accelerator == "KVM" else ", which is not measured under TCG."),
        f"{at.rounds} round{'s' * (at.rounds != 1)} of {at.seconds:g} s for each placement, {machine(at)}. "
        + disturbance(worth),
        f"{_KATA}: {KATA_REASON}."]


def noise(at: Circumstances) -> str:
    sidecar = "a busy sidecar in its VM, " if at.sidecar_busy else ""
    return f"{sidecar}a VM with 2 busy vCPUs, and a busy container of runc"


def machine(at: Circumstances) -> str:
    return f"{at.date}, Linux {at.kernel}, QEMU {at.qemu} by {at.accelerator}, {at.processor}"


def disturbance(worth: Worth) -> str:
    """A sentence on other programs: in how many measurements they took too much."""
    disturbed = sum(reading.disturbed for reading in worth.readings)
    if not disturbed:
        return f"In no measurement did other programs take more than {DISTURBED:g} % of the two CPUs."
    return (f"{disturbed} of {number_of(len(worth.readings), 'measurement is')} left out, as other programs took more "
            f"than {DISTURBED:g} % of the two CPUs.")


def no_verdict(worth: Worth) -> str:
    """Why there is none, with the programs that took the CPUs, where `worth` is disturbed."""
    disturbed = [reading for reading in worth.readings if reading.disturbed]
    least, most = (f"{bound(reading.others for reading in disturbed):.0f}" for bound in (min, max))
    sums: Counter[str] = Counter()
    for reading in disturbed:
        sums.update(reading.others_by)
    by = ", ".join(f"{name} {total / len(disturbed):.0f} %" for name, total in sums.most_common(3))
    return (f"no verdict: in {len(disturbed)} of {number_of(len(worth.readings), 'measurement')} other programs took "
            f"{least}{f' to {most}' * (least != most)} % of the two CPUs, more than {DISTURBED:g} %"
            + (f"; on average {by}" if by else ""))


def cell(metric: Metric, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    least, most = number(metric, spread.least), number(metric, spread.most)
    return number(metric, spread.median) + (f" ({least}-{most})" if least != most else "")


def number(metric: Metric, value: float) -> str:
    """Three digits at most, as the spread of the rounds is wider than more of them."""
    if metric.key == "longest_gap_ms" and value < LEAST_GAP:
        return f"<{LEAST_GAP}"
    if metric.unit == "%":
        return f"{value:.1f}" if value > 90 else f"{value:.0f}"
    if metric.unit == "/min" or value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def gain(metric: Metric) -> str:
    factor = metric.factor()
    if factor is None:
        return ""
    return f"x{factor:.1f}" if factor < 10 else f"x{factor:.0f}"


def picture(worth: Worth) -> str:
    """An SVG that stands alone: a panel of three bars for each figure. The placements differ in lightness and are
    named beside each bar, so that it can be read in grey; it has a ground of its own, so that a page may be light or
    dark."""
    at = worth.circumstances
    rounds = f"Median of {at.rounds} rounds, with the least and the most" if at.rounds > 1 else "One round"
    share, *_ = metrics = worth.metrics()
    drawn = [metric for metric in metrics if metric.key in _TITLES and any(metric.spreads.values())]
    notes = f"{rounds}, {at.seconds:g} s each.", disturbance(worth), machine(at), f"{_KATA}:", f"{KATA_REASON}."
    summary = "; ".join(f"{setup.heading}: {cell(share, spread)} % of its CPU"
                        for setup, spread in share.spreads.items())
    below = 64 + 114 * len(drawn)
    height = below + 16 * len(notes) + 20
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" viewBox="0 0 760 {height}" role="img"',
        f'aria-label="{_text(summary)}"><style>', _STYLE,
        f'<rect width="760" height="{height}" rx="6" fill="#ffffff" stroke="#b9c2cb"/>',
        '<text x="20" y="36" class="title">What pinning is worth: a container with an exclusive CPU in a VM</text>',
        f'<text x="20" y="56" class="soft">on 2 CPUs, beside {_text(noise(at))}</text>',
        *(line for place, metric in enumerate(drawn) for line in _panel(metric, 90 + 114 * place)),
        *(f'<text x="20" y="{below + 16 * place}" class="soft">{_text(note)}</text>'
          for place, note in enumerate(notes, start=1)), "</svg>\n"])


def _panel(metric: Metric, top: int) -> Iterator[str]:
    yield f'<text x="20" y="{top}" class="panel">{_TITLES[metric.key]}</text>'
    for place, (setup, spread) in enumerate(metric.spreads.items()):
        middle = top + 20 + 24 * place
        yield f'<text x="20" y="{middle + 4}">{_text(setup.heading)}</text>'
        if spread is None:
            continue
        end, least, most = _positions(metric, spread)
        yield (f'<rect x="{_LEFT}" y="{middle - 8}" width="{max(end - _LEFT, 1):.1f}" height="16" '
               f'fill="{_COLOURS[place]}"/>')
        if least != most:
            yield (f'<path d="M{least:.1f} {middle}H{most:.1f}M{least:.1f} {middle - 4}v8M{most:.1f} {middle - 4}v8" '
                   'stroke="#6b7280" fill="none" stroke-width="1.5"/>')
        yield (f'<text x="{round(max(end, most)) + 8}" y="{middle + 4}">{_text(cell(metric, spread))} '
               f'{metric.unit}</text>')


def _text(text: str) -> str:
    return escape(printable(text))


def _positions(metric: Metric, spread: Spread) -> list[float]:
    """Where on the bar's scale the median, the least and the most are. The scale ends at 100 %, or at the most."""
    most = max(known.most for known in metric.spreads.values() if known is not None)
    full = 100.0 if metric.unit == "%" else most or 1.0
    return [_LEFT + _LONGEST * figure / full for figure in (spread.median, spread.least, spread.most)]
