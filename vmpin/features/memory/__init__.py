"""The memory of VMs: on which of the host's NUMA nodes it is, beside the CPUs of their vCPUs. Nothing moves it.
docs/memory.md describes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vmpin.feature import Document, Feature, WatcherPart

if TYPE_CHECKING:
    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher
    from vmpin.errors import ConfigError


def _check_config(config: Config) -> ConfigError | None:
    if not config.of_features["memory"].metrics or config.values.get("metrics.per_sandbox"):
        return None
    from vmpin.errors import ConfigError

    return ConfigError("memory.metrics is on and metrics.per_sandbox is off: the metric is of each sandbox",
                       "switch both on, or the first one off")


def _watch(watcher: Watcher) -> WatcherPart | None:
    if not watcher.view.config.of_features["memory"].metrics:
        return None
    from vmpin.features.memory.memory_metrics import MemoryReadings, memory_families

    readings = MemoryReadings(watcher.view)
    return WatcherPart(metrics=lambda view, _: memory_families(view, readings.read()))


def _inspect(config: Config, sandboxes: Sequence[dict[str, Any]]) -> None:
    from vmpin.features.memory.memory_nodes import add_memory
    from vmpin.host.cgroup import Cgroups
    from vmpin.host.procfs import Procfs
    from vmpin.host.sysfs import Sysfs

    proc = Procfs(config.paths.proc)
    add_memory(sandboxes, proc, Sysfs(config.paths.sys), Cgroups(config.paths.cgroup, proc))


def _summary(sandbox: Document) -> str:
    from vmpin.features.memory.memory_text import summary

    return summary(sandbox.get("memory"))


def _lines(sandbox: Document) -> Iterable[str]:
    return [f"memory: {text}"] if (text := _summary(sandbox)) else []


def _sentences(sandbox: Document) -> Iterable[str]:
    return [f"Its memory: {text}."] if (text := _summary(sandbox)) else []


def _legend(sandbox: Document) -> str:
    return f"memory {text}" if (text := _summary(sandbox)) else ""


FEATURE = Feature(name="memory", sections={"memory": "memory_settings.MemorySettings"}, check_config=_check_config,
                  fixed=("memory",), watch=_watch, inspect=_inspect, lines=_lines, sentences=_sentences,
                  legend=_legend, checks="memory_checks.CHECKS")
