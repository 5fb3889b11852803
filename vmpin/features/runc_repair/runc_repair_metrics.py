"""The metric of repairs of runc containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def repair_families(repairs: Mapping[str, int]) -> Iterator[Metric]:
    """The family of the metric. :param repairs: since the start, by outcome."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily("vmpin_runc_repairs_total", "Cpusets of runc containers restored by the runtime "
                                 "(runc.repair), by result.", labels=["outcome"])
    for outcome, count in repairs.items():
        family.add_metric([outcome], count)
    yield family
