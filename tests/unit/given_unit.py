"""A pytest plugin (`pytest_plugins`): what more than one module's tests are given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import kata_shim
import pytest
from guest_tree import Worker, worker
from need import lacking
from newcomers import Machine, built_crowd, machines


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machines(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_crowd(tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="module")
def shim_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kata_shim.built(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def two_cpus() -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        lacking("needs CPUs 0 and 1")


@pytest.fixture
def both() -> Iterator[tuple[Worker, Worker]]:
    """Two processes of the test's own."""
    with worker() as one, worker() as two:
        yield one, two


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: `link` leads to below `other`."""
    (tmp_path / "other" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("other/below")
    (tmp_path / "spec.json").write_text('{"ociVersion": "1.1.0"}')
    monkeypatch.chdir(tmp_path)
    return tmp_path
