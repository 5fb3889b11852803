"""The interrupts of exclusive CPUs: those that they take, and moving those of devices to other CPUs.

interrupt_table, irq_counts, irq_plan, irq_text and irq_checks are pure; irq_files, originals_file and irqbalance are
the adapters; irq_mover carries a plan out, irqs_watcher_part calls it.
docs/irqs.md describes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vmpin.feature import Document, Feature, WatcherPart

if TYPE_CHECKING:
    from pathlib import Path

    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher
    from vmpin.reconcile.view import NodeView

_FILE = "irqs.json"


def _path(config: Config) -> Path:
    return config.paths.run / _FILE


def _give_back(config: Config, logged: set[str] | None = None) -> bool:
    """Give back what a watcher moved. :param logged: refusals that need no line in the log again."""
    from vmpin.reconcile.state_file import beside

    path = _path(config)
    if not path.exists() and not beside(path)[1].exists():
        return True
    import logging

    from vmpin.features.irqs.irq_files import IrqFiles
    from vmpin.features.irqs.irq_mover import give_back
    from vmpin.features.irqs.originals_file import OriginalsFile
    from vmpin.host.procfs import Procfs

    proc = Procfs(config.paths.proc)
    try:
        return give_back(IrqFiles(proc, config.paths.sys), OriginalsFile(path, proc.boot_id()), logged)
    except OSError as err:
        logging.getLogger(__name__).error("not given back: the masks of interrupts: %s", err)
        return False


def _giving_back(config: Config) -> list[str]:
    if not (path := _path(config)).exists():
        return []
    from vmpin.features.irqs.irq_files import IrqFiles
    from vmpin.features.irqs.irq_mover import giving_back
    from vmpin.features.irqs.originals_file import OriginalsFile
    from vmpin.host.procfs import Procfs

    proc = Procfs(config.paths.proc)
    try:
        return giving_back(IrqFiles(proc, config.paths.sys), OriginalsFile(path, proc.boot_id(), aside=False))
    except OSError as err:
        return [f"the masks of interrupts cannot be read: {err}"]


def _planned(view: NodeView) -> list[str]:
    if view.config.of_features["irqs"].policy != "away":
        return []
    from vmpin.features.irqs.irqs_watcher_part import planned

    return planned(view, _path(view.config))


def _leaving(config: Config) -> WatcherPart:
    """Give back what an earlier watcher moved: at the start, and what was refused at each resync. A refusal is logged
    once."""
    logged = set[str]()

    def begin() -> None:
        _give_back(config, logged)

    def after_resync() -> None:
        if _path(config).exists():
            _give_back(config, logged)

    return WatcherPart(begin=begin, after_resync=after_resync)


def _watch(watcher: Watcher) -> WatcherPart | None:
    config = watcher.view.config
    policy = config.of_features["irqs"].policy
    if policy == "off":
        return _leaving(config) if _path(config).exists() else None
    from vmpin.features.irqs.irqs_watcher_part import watcher_part

    return watcher_part(watcher.view, policy, _path(config), _leaving(config))


def _cpu_notes(document: Document) -> Mapping[int, Sequence[str]]:
    if not document.get("features", {}).get("irqs"):
        return {}
    from vmpin.features.irqs.irq_text import cpu_notes

    return cpu_notes(document)


def _lines(sandbox: Document) -> Iterable[str]:
    if not sandbox.get("interrupts"):
        return ()
    from vmpin.features.irqs.irq_text import sentences

    return [f"interrupts: {text}" for text in sentences(sandbox)]


def _sentences(sandbox: Document) -> Iterable[str]:
    if not sandbox.get("interrupts"):
        return ()
    from vmpin.features.irqs.irq_text import sentences

    return [f"{text}." for text in sentences(sandbox)]


def _facts(config: Config, root: Path) -> Document:
    from vmpin.features.irqs.irq_facts import irq_facts

    return irq_facts(config, root)


FEATURE = Feature(name="irqs", sections={"irqs": "irqs_settings.IrqSettings"}, fixed=("irqs",), files=(_FILE,),
                  give_back=_give_back, giving_back=_giving_back, planned=_planned, watch=_watch, cpu_notes=_cpu_notes,
                  lines=_lines, sentences=_sentences, facts=_facts, checks="irq_checks.CHECKS")
