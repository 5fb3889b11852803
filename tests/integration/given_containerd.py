"""Fixtures that a test module takes as its own: a real containerd, and a node of a test's own whose pods are its.

    containerd, node = given_containerd.containerd, given_containerd.node

A plugin's `node` would be every module's that is collected after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cri_node import CriNode
from real_containerd import Containerd


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    with Containerd() as made:
        yield made


@pytest.fixture
def node(containerd: Containerd, cpus: tuple[str, str]) -> Iterator[CriNode]:
    """The first CPU is the shared pool."""
    with CriNode(containerd) as made:
        made.configure(node={"shared_pool": cpus[0]})
        yield made
