"""Isolation: what share of its exclusive CPUs' time a pod had for itself, by the minute, and the report of it.

Readings become intervals (cpu_intervals), intervals are booked by the minute (isolation_books), and the books become a
report (isolation_shares, isolation_report, isolation_text): all of that is pure. `vmpin verify
--others` judges samples of every thread over some seconds (usage, others: pure). What reads the machine:
isolation_observer, foreign_scans and thread_usage.
docs/isolation.md and docs/top.md describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.feature import Feature, WatcherPart

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from vmpin.daemon.watcher import Watcher


def _watch(watcher: Watcher) -> WatcherPart:
    from vmpin.feature import present
    from vmpin.features.isolation.node_isolation import NodeIsolation

    async def settled() -> None:
        for wait in present(part.settled for part in watcher.parts.values()):
            await wait()

    return NodeIsolation(watcher.view, settled, watcher.lock.held).part()


_EXAMPLES = {"is impossible\n": """\
is impossible
  vmpin verify --others      exit code 1 if another pod runs on exclusive CPUs, or may
""", "\nexit codes:": """\
  vmpin top                  live: which threads take the CPUs of which pods

exit codes:"""}


def _options(verb: str, parser: ArgumentParser) -> None:
    if verb == "verify":
        from vmpin.features.isolation.verbs.others_options import add_options

        add_options(parser)


FEATURE = Feature(name="isolation", watch=_watch, files=("isolation", "isolation-wal", "isolation-journal"),
                  verbs={"isolation": "verbs.isolation", "top": "verbs.top"}, examples=_EXAMPLES, options=_options)
