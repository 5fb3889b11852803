"""A pytest plugin (`pytest_plugins`): a container runtime, and an NRI plugin that is connected to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nri_connected import Connected
from nri_peer import PATIENCE, NriRuntimes


@pytest.fixture
def runtimes() -> Iterator[NriRuntimes]:
    made = NriRuntimes()
    yield made
    made.close()


@pytest.fixture
def connected(runtimes: NriRuntimes) -> Iterator[Connected]:
    made = Connected(runtimes)
    made.plugin.start()
    yield made
    made.plugin.stop(PATIENCE)
