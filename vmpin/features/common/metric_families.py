"""Families of Prometheus from numbers. Imported only for metrics: prometheus_client takes 5 MB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Metric  # features name it from here

#: By the labels' values: those of several labels as a tuple, of a single one the text, of none the number alone.
Values = Mapping[Any, float] | float


def gauge(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def counter(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family
