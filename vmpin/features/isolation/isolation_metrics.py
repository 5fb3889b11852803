"""The metrics of isolation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric

from vmpin.domain.model import SandboxId
from vmpin.status.prometheus import POD, ScrapeData, pod_labels


class ForeignTime(Protocol):
    """Foreign seconds on exclusive CPUs since the start, by CPU, and by owner and CPU."""

    def foreign_seconds(self) -> Mapping[int, float]: ...

    def foreign_by_sandbox(self) -> Mapping[SandboxId, Mapping[int, float]]: ...


def foreign_families(scrape: ScrapeData, observer: ForeignTime | None) -> Iterator[Metric]:
    """Foreign time by CPU and, where asked for, by owner.

    :param observer: None while no samples are taken."""
    family = CounterMetricFamily("vmpin_exclusive_cpu_foreign_seconds_total", "Time of a CPU, while it was "
                                 "exclusive, that the kernel and foreign programs had.", labels=["cpu"])
    by_cpu: Mapping[int, float] = {} if observer is None else observer.foreign_seconds()
    for cpu, spent in by_cpu.items():
        family.add_metric([str(cpu)], spent)
    yield family
    if not scrape.per_sandbox:
        return
    family = CounterMetricFamily("vmpin_sandbox_exclusive_cpu_foreign_seconds_total", "As vmpin_exclusive_cpu_foreign_"
                                 "seconds_total, for each sandbox that owns CPUs, with a VM or without.",
                                 labels=[*POD, "cpu"])
    by_sandbox: Mapping[SandboxId, Mapping[int, float]] = {} if observer is None else observer.foreign_by_sandbox()
    for sandbox, names in pod_labels(by_sandbox, scrape.view).items():
        for cpu, spent in by_sandbox[sandbox].items():
            family.add_metric([*names, str(cpu)], spent)
    yield family
