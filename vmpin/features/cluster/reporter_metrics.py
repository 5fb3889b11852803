"""The metrics of what follows and reports a node."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def reporter_families(followers: int, pod_reports: int) -> Iterator[Metric]:
    """The metrics of now. :param followers: clients that follow. :param pod_reports: requests since the watcher
    started."""
    yield GaugeMetricFamily("vmpin_followers", "Clients that follow the node's changes; vmpin reporter is one.",
                            followers)
    yield CounterMetricFamily("vmpin_pod_reports", "Requests in which vmpin reporter described the node's pods.",
                              pod_reports)
