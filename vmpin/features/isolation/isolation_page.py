"""The isolation report as one HTML page (isolation_page.html). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vmpin.domain.templates import render
from vmpin.features.isolation import isolation_text as texts

#: Full heights of the chart, as shares of the time. The least one that holds every column is taken.
_HEIGHTS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
#: How many of the worst minutes the page of several pods lists.
_MOST_MINUTES = 8


def page(document: Mapping[str, Any], host: str) -> str:
    """The document as a page. :param host: the node's name."""
    pods = document["pods"]
    title = f"Isolation of {texts.title(pods[0])}" if len(pods) == 1 else "Isolation of exclusive CPUs"
    worst = sorted((pod for pod in pods if pod["worst"] is not None), key=lambda pod: -pod["worst"]["share"])
    return render("vmpin.features.isolation", "isolation_page.html", title=title, host=host, since=document["since"],
                  until=document["until"], slo=document.get("slo"), pods=pods, worst_pods=worst[:_MOST_MINUTES],
                  texts=texts, chart_height=_chart_height, sentence=lambda text: f"{text[0].upper()}{text[1:]}.")


def _chart_height(bins: Iterable[Mapping[str, Any]]) -> float:
    most = max((1 - part["share"] for part in bins if part["share"] is not None), default=0.0)
    return next((height for height in _HEIGHTS if most <= height), 1.0)
