"""A fixture that a test module takes as its own (given_containerd): a node whose shared pool is its first CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from need import need_root, need_tool
from real_node import Node


@pytest.fixture
def node(cpus: tuple[str, str]) -> Iterator[Node]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Node() as made:
        made.configure(node={"shared_pool": cpus[0]})
        yield made
