"""The metric of interrupts on exclusive CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vmpin.features.irqs.interrupt_table import IrqKind

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def irq_families(counts: Mapping[tuple[int, IrqKind], int]) -> Iterator[Metric]:
    """The family of the metric. :param counts: since the start, by CPU and kind."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily("vmpin_exclusive_cpu_interrupts_total", "Interrupts that a CPU took while it was "
                                 "exclusive, by kind.", labels=["cpu", "kind"])
    for (cpu, kind), count in counts.items():
        family.add_metric([str(cpu), kind.value], count)
    yield family
