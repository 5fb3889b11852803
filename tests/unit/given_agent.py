"""A pytest plugin (`pytest_plugins`): the agent as the one file that it is shipped as."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.cli.main import main


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pyz") / "vmpin-agent.pyz"
    assert main(["guest", "build", "-o", str(path)]) == 0
    return path
