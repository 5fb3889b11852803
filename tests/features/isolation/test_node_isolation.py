"""The watcher's part of isolation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from metered import metered
from strayed import Spinners, spinners

from vmpin.errors import WatcherError
from vmpin.feature import WatcherPart
from vmpin.features.common.samples import RunListener
from vmpin.features.isolation.isolation_observer import IsolationObserver
from vmpin.features.isolation.node_isolation import NodeIsolation, foreign_families
from vmpin.features.proof.residency_ledger import ResidencyLedger
from vmpin.features.proof.sampler import Sampler

_OFF = """\
import json, sys
from vmpin.features.isolation.node_isolation import NodeIsolation
NodeIsolation(None, None, None).part().after_pass()
print(json.dumps([name for name in sys.modules if name.startswith("vmpin.features.isolation.")]))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path) as made:
        yield made


def test_while_no_samples_are_taken_it_loads_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", _OFF], capture_output=True, timeout=120, check=True)
    assert json.loads(ran.stdout) == ["vmpin.features.isolation.node_isolation"]


async def settled() -> None:
    """Sampling has begun, or is off."""


def listened(part: WatcherPart, sampler: Sampler) -> IsolationObserver:
    async def listening() -> RunListener:
        assert part.listen is not None
        return await part.listen(sampler)

    listener = asyncio.run(listening())
    assert isinstance(listener, IsolationObserver)
    return listener


def test_its_request_is_answered_while_samples_are_taken(node: Spinners) -> None:
    isolation = NodeIsolation(node.reconciler.view, settled, lambda: True)
    part = isolation.part()
    request = part.requests["isolation"]
    assert request.reading

    def answer() -> dict[str, object]:
        answered = request.answer({"since": 60}, None)
        assert asyncio.iscoroutine(answered)
        return asyncio.run(answered)

    with pytest.raises(WatcherError, match="no samples"):
        answer()
    sampler = Sampler(node.reconciler.view, ResidencyLedger())
    sampler.listener = observer = listened(part, sampler)
    assert answer()["pods"] == []
    sampler.close()
    assert isolation.observer is None
    sampler.listener = again = listened(part, sampler)
    assert again.books is observer.books
    sampler.close()
    assert part.end is not None
    part.end()
    assert (node.root / "run" / "isolation").exists()
    with pytest.raises(WatcherError, match="no samples"):
        answer()


BY_CPU, BY_SANDBOX = ("vmpin_exclusive_cpu_foreign_seconds_total",
                      "vmpin_sandbox_exclusive_cpu_foreign_seconds_total")


def test_foreign_time_is_exported_by_cpu_and_where_asked_for_by_sandbox(tmp_path: Path) -> None:
    with metered(tmp_path, metrics_per_sandbox="true") as node:
        node.fill()
        assert node.values(BY_CPU) == {(str(node.first.first),): 1.5}
        # Also of pods without a VM; of one that has ended meanwhile none.
        assert node.values(BY_SANDBOX) == {(str(node.first.first), "tests", "shop", node.id): 0.5}


def test_without_samples_it_has_no_values(tmp_path: Path) -> None:
    with metered(tmp_path) as node:
        node.parts = {"isolation": WatcherPart(metrics=lambda view, all_: foreign_families(view, all_, {}, {}))}
        assert f"# TYPE {BY_CPU} counter" in node.scrape()
        assert node.values(BY_CPU) == {}
        assert BY_SANDBOX not in node.scrape()
