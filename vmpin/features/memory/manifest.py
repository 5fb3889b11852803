"""The parts of the feature `memory` (docs/memory.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vmpin.feature import Document, Feature

if TYPE_CHECKING:
    from vmpin.config.settings import Config
    from vmpin.doctor.finding import Check


def _inspect(config: Config, sandboxes: Sequence[dict[str, Any]]) -> None:
    from vmpin.features.memory.memory_nodes import add_memory
    from vmpin.host.procfs import Procfs
    from vmpin.host.sysfs import Sysfs

    add_memory(sandboxes, Procfs(config.paths.proc), Sysfs(config.paths.sys))


def _lines(sandbox: Document) -> Iterable[str]:
    from vmpin.features.memory.memory_text import summary

    text = summary(sandbox.get("memory"))
    return [f"memory: {text}"] if text else []


def _sentences(sandbox: Document) -> Iterable[str]:
    from vmpin.features.memory.memory_text import summary

    text = summary(sandbox.get("memory"))
    return [f"Its memory: {text}."] if text else []


def _legend(sandbox: Document) -> str:
    from vmpin.features.memory.memory_text import summary

    text = summary(sandbox.get("memory"))
    return f"memory {text}" if text else ""


def _checks() -> Sequence[Check]:
    from vmpin.doctor.finding import Check
    from vmpin.features.memory.memory_checks import memory

    return [Check("memory", "VMs whose memory is on another NUMA node than their vCPUs", memory)]


FEATURE = Feature(name="memory", inspect=_inspect, lines=_lines, sentences=_sentences, legend=_legend, checks=_checks)
