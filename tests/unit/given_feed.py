"""The fixture of tests with a proc-events feed."""

from __future__ import annotations

from pathlib import Path

import pytest
from events_feed import Received
from need import need_root


@pytest.fixture
def received(tmp_path: Path) -> Received:
    need_root()
    return Received(tmp_path)
