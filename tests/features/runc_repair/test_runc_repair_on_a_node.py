"""A runc container under a real containerd gets back the CPUs that another program took, over CRI and over NRI."""

from __future__ import annotations

import given_containerd
import pytest
from cri_node import CriNode, drifted
from waiting import wait

pytest_plugins = ["given"]
containerd, node = given_containerd.containerd, given_containerd.node
pytestmark = pytest.mark.root


def repairs(node: CriNode) -> dict[str, int]:
    return dict(node.status()["features"]["runc_repair"])


@pytest.mark.parametrize("by_cri", [True, False], ids=["cri", "nri"])
def test_a_runc_container_that_drifted_is_given_back_its_cpus_when_asked_for(node: CriNode, cpus: tuple[str, str],
                                                                             by_cri: bool) -> None:
    socket = node.containerd.top / ("cri.sock" if by_cri else "none.sock")
    node.configure(runc={"repair": True}, paths={"cri": str(socket)})
    now = drifted(node, cpus)
    wait(lambda: now() == cpus[1] and repairs(node)["done"], lambda: f"still {now()}\n{node.log()}")

    wait(lambda: not node.status()["node"]["disagreements"], lambda: f"not read back: {node.status()}")
    before = repairs(node)
    node.resyncs(5)
    assert repairs(node) == before, node.log()
    assert not before["failed"]
    assert ("by=CRI" if by_cri else "by=NRI") in node.log()
