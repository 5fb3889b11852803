"""Isolation: what share of its exclusive CPUs' time a pod had for itself, by the minute, and the report of it.

Readings become intervals (cpu_intervals), intervals are booked by the minute (isolation_books), and the books become a
report (isolation_shares, isolation_report, isolation_text): all of that is pure. `vmpin verify
--others` judges samples of every thread over some seconds (usage, others: pure). What reads the machine:
isolation_observer, foreign_scans and thread_usage.
docs/isolation.md and docs/top.md describe it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmpin.feature import Feature, WatcherPart

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from pathlib import Path

    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher


def _watch(watcher: Watcher) -> WatcherPart:
    from vmpin.feature import present
    from vmpin.features.isolation.node_isolation import NodeIsolation

    async def settled() -> None:
        for wait in present(part.settled for part in watcher.parts.values()):
            await wait()

    return NodeIsolation(watcher.view, settled, watcher.lock.held).part()


def _files(config: Config) -> Iterable[Path]:
    from vmpin.features.common.kept_database import files_of

    return files_of(config.paths.run / "isolation")


#: Examples for the help of the program.
_OTHERS = "  vmpin verify --others      exit code 1 if another pod runs on exclusive CPUs, or may\n"
_TOP = "  vmpin top                  live: which threads take the CPUs of which pods\n"


def _options(verb: str, parser: ArgumentParser) -> None:
    if not verb and parser.epilog is not None:
        parser.epilog = parser.epilog.replace("is impossible\n", f"is impossible\n{_OTHERS}", 1).replace(
            "\nexit codes:", f"{_TOP}\nexit codes:", 1)
    if verb == "verify":
        from vmpin.features.isolation.verbs.others_options import add_options

        add_options(parser)


_VERBS = "vmpin.features.isolation.verbs"

FEATURE = Feature(name="isolation", watch=_watch, files=_files, options=_options,
                  verbs={"isolation": f"{_VERBS}.isolation", "top": f"{_VERBS}.top"})
