"""Two sides: on the build machine test_lab.py, which boots the node; in the node node_tests/, and only there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lab.boots import Background, Boot

collect_ignore = ["test_lab.py"] if os.environ.get("VMPIN_LAB_NODE") else ["node_tests"]

_BOOTING = pytest.StashKey[Background]()
_PLACE = pytest.StashKey["TemporaryDirectory[str]"]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The nodes that are to be booted begin to, beside the tests that come before them."""
    specs = [item.callspec for item in session.items if hasattr(item, "callspec")]
    boots = [boot for spec in specs if isinstance(boot := spec.params.get("boot"), Boot)]
    if not boots or session.config.option.collectonly or os.geteuid() != 0:  # then they say so themselves
        return
    subprocess.run(["modprobe", "-q", "overlay"], check=False)
    session.config.stash[_PLACE] = place = TemporaryDirectory(prefix="vmpin-boots-")
    session.config.stash[_BOOTING] = Background(boots, Path(place.name))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _BOOTING in config.stash:
        config.stash[_BOOTING].end()
        config.stash[_PLACE].cleanup()


@pytest.fixture(scope="session")
def nodes(pytestconfig: pytest.Config) -> Background:
    """Those of this session."""
    return pytestconfig.stash[_BOOTING]
