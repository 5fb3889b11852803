"""The isolation report as one HTML page (isolation_page.html). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from vmpin.domain.templates import render
from vmpin.domain.terminal import human_age
from vmpin.features.isolation import isolation_text as texts

#: Full heights of the chart, as shares of the time. The least one that holds every column is taken.
_HEIGHTS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
#: How many of the worst minutes the page of several pods lists.
_MOST_MINUTES = 8
#: Minutes between two times on the axis, and how many of these have room on a phone.
_STEPS, _MOST_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720), 6
#: A bar that shows a part of another one is drawn where it is larger by this factor.
_LARGER = 1.5


def page(document: Mapping[str, Any], host: str) -> str:
    """The document as a page. :param host: the node's name."""
    pods = document["pods"]
    title = f"Isolation of {texts.title(pods[0])}" if len(pods) == 1 else "Isolation of exclusive CPUs"
    worst = sorted((pod for pod in pods if pod["worst"] is not None), key=lambda pod: -pod["worst"]["share"])
    return render("vmpin.features.isolation", "isolation_page.html", title=title, host=host, since=document["since"],
                  until=document["until"], slo=document.get("slo"), pods=pods, worst_pods=worst[:_MOST_MINUTES],
                  texts=texts, chart=Chart, enlarged=enlarged, sentence=lambda text: f"{text[0].upper()}{text[1:]}.")


def enlarged(pod: Mapping[str, Any]) -> str:
    """How many times larger a bar of all that was missing is than its part of the whole bar; "" where that is not
    worth a bar of its own."""
    missing = sum(part["seconds"] for name, part in pod["parts"].items() if name != "had")
    factor = pod["cpu_seconds"] / missing if missing else 0
    return "" if factor < _LARGER else f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"


class ChartColumn(NamedTuple):
    """A rectangle of the chart, in thousandths of its width and percent of its height. `css`: others, unseen or
    without."""

    css: str
    x: float
    width: float
    height: float
    title: str


class Chart:
    """What was not the pod's own, over time. `full`: the share that the full height is."""

    def __init__(self, pod: Mapping[str, Any]) -> None:
        self._pod = pod
        most = max((1 - part["share"] for part in pod["bins"] if part["share"] is not None), default=0.0)
        self.full = next((height for height in _HEIGHTS if most <= height), 1.0)

    def columns(self) -> Iterator[ChartColumn]:
        """Divide each part of the period into the time without samples, that without exclusive CPUs, and the rest,
        each as wide as it is long; the rest is as high as the share that was not the pod's own."""
        scale, x = 1000 / (sum(part["seconds"] for part in self._pod["bins"]) or 1), 0.0
        for part in self._pod["bins"]:
            end = x + part["seconds"] * scale
            gaps = {"unseen": (part["unseen"], "without samples"),
                    "without": (part["without"], "without exclusive CPUs")}
            title = "; ".join([f"{part['start']}, {human_age(part['seconds'])}: "
                               + ("no share" if part["share"] is None else
                                  f"{texts.percent(1 - part['share'])} not its own"),
                               *(f"{texts.seconds(spent)} {words}" for spent, words in gaps.values() if spent)])
            for css, (spent, _) in gaps.items():
                if spent:
                    yield ChartColumn(css, x, spent * scale, 100, title)
                    x += spent * scale
            if part["share"] is not None:
                yield ChartColumn("others", x, max(0.5, end - x - 1.5),
                                  max(0.6, 100 * (1 - part["share"]) / self.full), title)
            x = end

    def ticks(self) -> Iterator[tuple[float, str]]:
        """(place in percent of the width, time) of round times: `03:00`, at midnight the date."""
        begin, seconds = datetime.fromisoformat(self._pod["since"]), self._pod["seconds"]
        step = next((step for step in _STEPS if seconds <= step * 60 * _MOST_TICKS), _STEPS[-1]) * 60
        midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
        passed = (begin - midnight).total_seconds()
        at = -(-passed // step) * step
        while at <= passed + seconds and seconds:
            time = midnight + timedelta(seconds=at)
            yield 100 * (at - passed) / seconds, f"{time:%H:%M}" if time.hour or time.minute else f"{time:%m-%d}"
            at += step
