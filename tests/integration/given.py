"""A pytest plugin (`pytest_plugins`): a node of a test's own, upon this machine's CPUs, where it needs no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from need import need_root, need_tool
from process_masks import two_cpus
from real_node import Node


@pytest.fixture
def node() -> Iterator[Node]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Node() as made:
        yield made


@pytest.fixture
def cpus() -> tuple[str, str]:
    return two_cpus()
