"""The result of `vmpin demo --noise` as an SVG that stands alone (worth_picture.svg). Pure."""

from __future__ import annotations

from vmpin.domain.templates import render
from vmpin.features.demo.worth import Metric, Spread, Worth
from vmpin.features.demo.worth_report import cell, disturbance, kata_line, machine, noise

#: The metrics that are drawn.
_TITLES = {
    "share_percent": "Share of its CPU that the container got",
    "longest_gap_ms": "Longest gap in its running",
    "migrations_per_minute": "Its moves between CPUs, a minute",
    "wake_up_percentile_99_ms": "Late wake-ups: 99 of 100 are not later than",
}
#: Where bars begin, and how long they can be (pixels).
_LEFT, _LONGEST = 128, 400


def picture(worth: Worth) -> str:
    at = worth.circumstances
    rounds = f"Median of {at.rounds} rounds, with the least and the most" if at.rounds > 1 else "One round"
    verdict, _, reason = kata_line(worth).partition(": ")
    share, *_ = metrics = worth.metrics()
    return render(
        "vmpin.features.demo", "worth_picture.svg", titles=_TITLES, noise=noise(at), cell=cell, positions=_positions,
        metrics=[metric for metric in metrics if metric.key in _TITLES and any(metric.spreads.values())],
        summary="; ".join(f"{setup.heading}: {cell(share, spread)} % of its CPU"
                          for setup, spread in share.spreads.items()),
        notes=(f"{rounds}, {at.seconds:g} s each.", disturbance(worth), machine(at), f"{verdict}:", reason))


def _positions(metric: Metric, spread: Spread) -> list[float]:
    """Where on the bar's scale the median, the least and the most are. The scale ends at 100 %, or at the most."""
    most = max(known.most for known in metric.spreads.values() if known is not None)
    full = 100.0 if metric.unit == "%" else most or 1.0
    return [_LEFT + _LONGEST * figure / full for figure in (spread.median, spread.least, spread.most)]
