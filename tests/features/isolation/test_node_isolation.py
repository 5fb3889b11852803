"""The watcher's part of isolation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from strayed import Spinners, spinners

from vmpin.errors import WatcherError
from vmpin.features.isolation.node_isolation import NodeIsolation
from vmpin.reports.residency.sampler import Sampler

_OFF = """\
import json, sys
from vmpin.features.isolation.node_isolation import NodeIsolation
NodeIsolation(None).part().after_pass()
print(json.dumps([name for name in sys.modules if name.startswith("vmpin.features.isolation.")]))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path) as made:
        yield made


def test_while_no_samples_are_taken_it_loads_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", _OFF], capture_output=True, timeout=120, check=True)
    assert json.loads(ran.stdout) == ["vmpin.features.isolation.node_isolation"]


def test_its_request_is_answered_while_samples_are_taken(node: Spinners) -> None:
    isolation = NodeIsolation(node.node_state)
    part = isolation.part()
    request = part.requests["isolation"]
    assert request.reading

    def answer() -> dict[str, object]:
        answered = request.answer({"since": 60}, None)
        assert asyncio.iscoroutine(answered)
        return asyncio.run(answered)

    with pytest.raises(WatcherError, match="no samples"):
        answer()
    sampler = Sampler(node.node_state)
    assert part.listen is not None
    sampler.listener = part.listen(sampler)
    assert answer()["pods"] == []
    sampler.close()
    assert isolation.observer is None
    assert (node.root / "run" / "isolation").exists()
    with pytest.raises(WatcherError, match="no samples"):
        answer()
