"""`vmpin top --batch`: plain blocks or lines of JSON, one for each interval."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from vmpin.cli.output import plain_table
from vmpin.domain.terminal import number_of, printable
from vmpin.features.isolation.top.pod_usage import NodeUsage, sorted_pods, usage_data
from vmpin.features.isolation.verbs.top.feed import NodeReader
from vmpin.features.isolation.verbs.top.sheet import PODS, foreign_text, percent, pod_row, rate

#: Foreign threads that a block lists; -o json has all.
_MOST = 10


def run_batch(reader: NodeReader, delay: float, count: int, order: str, text: str, output: str) -> int:
    """Print `count` intervals (0: without end). :param text: of the filter. :returns: the exit code."""
    reader.first()
    due = time.monotonic()
    done = 0
    while not count or done < count:
        due = max(due + delay, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        usage = reader.read()
        now = datetime.now(UTC)
        if output == "json":
            print(json.dumps({**usage_data(usage, f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z", order,
                                           text), "trouble": reader.trouble}))
        else:
            print("\n".join(block(usage, f"{now:%Y-%m-%dT%H:%M:%SZ}", order, text, reader.trouble)), end="\n\n")
        sys.stdout.flush()
        done += 1
    return 0


def block(usage: NodeUsage, when: str, order: str, text: str = "", trouble: str = "") -> Iterator[str]:
    """The lines of one interval."""
    rows = [row for row in sorted_pods(usage.pods, order) if row.matches(text)]
    foreign = rate(usage.foreign, usage.seconds, not usage.estimated)
    yield (f"{when} {usage.seconds:.1f} s, {number_of(len(rows), 'pod')}, busy "
           f"{percent(sum(row.busy for row in rows), usage.seconds)}, foreign {foreign} a second")
    if trouble:
        yield f"WATCHER: {printable(trouble)}"
    yield from (f"COLLISION on {printable(collision)}" for collision in usage.description.collisions)
    cells = [pod_row(row, usage).cells for row in rows]
    if cells:
        yield from plain_table([column.title for column in PODS], [[cell or "-" for cell in row] for row in cells])
    shown = {row.pod.id for row in rows}
    threads = [thread for thread in usage.foreign_threads if thread.owner in shown]
    yield from (f"FOREIGN {foreign_text(thread, usage, owner=True)}" for thread in threads[:_MOST])
    if len(threads) > _MOST:
        yield f"and {len(threads) - _MOST} more: -o json lists them"
