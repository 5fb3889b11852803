"""A second NRI plugin that gives CPUs in its own answer to a creation, before vmpin's and after it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator

import pytest
from allocating_node import WHOLE, AllocatingNode
from cri import CriError
from nri_rival import giving, rival
from real_containerd import Containerd, one_in_ci
from waiting import wait

from vmpin.cpuset import CpuSet

pytestmark = pytest.mark.root


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        made.connect()
        yield made


def given(node: AllocatingNode) -> dict[str, str]:
    """The CPUs by pod, of all that the ledger has as a container's own."""
    return {each["pod"]: each["cpus"] for each in node.data("alloc")["grants"] if each["cpus"]}


def test_cpus_of_a_plugin_before_it_are_left_alone_and_reported(node: AllocatingNode) -> None:
    with rival(node.containerd, "05", giving(CpuSet.parse(node.rest))):
        other = node.pod("rival").container("main", **WHOLE)
        assert other.cgroup_cpus() == node.rest
        assert given(node) == {}
        [grant] = [each for each in node.data("alloc")["grants"] if each["pod"] == "rival"]
        assert grant["left_alone"]
        assert "another program's cpuset" in node.cli("alloc", "-o", "wide").stdout
        (named,) = node.data("status")["features"]["allocator"]["foreign"]
        assert named.endswith("/rival/main")
        found = json.loads(node.cli("doctor", "allocation", "-o", "json").stdout)["findings"]
        assert [(each["level"], "CPUs as well" in each["what"]) for each in found] == [("bad", True)]
        own = node.pod("own").container("main", **WHOLE)
        assert (own.cgroup_cpus(), other.cgroup_cpus()) == (node.own, node.rest)
    assert given(node) == {"own": node.own}


def test_a_conflict_with_a_plugin_after_it_leaves_nothing_in_the_ledger(node: AllocatingNode) -> None:
    """The runtime refuses a creation for which two plugins give CPUs."""
    with rival(node.containerd, "99", giving(CpuSet.parse(node.rest))):
        pod = node.pod("rival")
        with pytest.raises(CriError):
            pod.create("main", **WHOLE)
        pod.remove()
        wait(lambda: given(node) == {}, lambda: f"still given: {node.data('allocations')}")
        own = node.pod("own").container("main", **WHOLE)
        assert own.cgroup_cpus() == node.own
    assert given(node) == {"own": node.own}


_PLUGIN = """\
import sys, threading
sys.path[:] = {path!r}
from pathlib import Path
from vmpin.sources.nri.connection import connect_to
from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.plugin import NriPlugin
NriPlugin(connect_to(Path({socket!r})), NriQueue(), "balloons", "95").start()
threading.Event().wait()
"""


@contextlib.contextmanager
def balloons(containerd: Containerd) -> Iterator[None]:
    """A program of that name, which is a plugin of containerd's."""
    program = containerd.top / "nri-resource-policy-balloons"
    program.symlink_to(sys.executable)
    code = _PLUGIN.format(path=sys.path, socket=str(containerd.nri_socket))
    with (containerd.top / "balloons.log").open("wb") as log:
        process = containerd.popen([str(program), "-IS", "-c", code], log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_beside_a_policy_plugin_it_gives_out_nothing_from_the_start_and_containers_start() -> None:
    with Containerd() as containerd, AllocatingNode(containerd) as node:
        node.configure(watch={"resync_seconds": 0.5})

        def suspended() -> str:
            return str(node.status()["features"]["allocator"]["suspended"])

        node.connect()
        assert suspended() == ""
        own = node.pod("own").container("main", **WHOLE)
        assert own.cgroup_cpus() == node.own
        with balloons(containerd):
            wait(lambda: "balloons may give out CPUs, too" in suspended(), node.log)  # it came later
            other = node.pod("other").container("main", **WHOLE)
            assert (own.cgroup_cpus(), other.cgroup_cpus()) in ((node.own, str(node.all)), (node.own, ""))
            node.stop()
            node.connect()
            assert "is connected to" in suspended()  # refused at the start
            found = node.cli("doctor", "allocation")
            assert (found.returncode, "balloons: nri-resource-policy-balloons (pid" in found.stdout) == (1, True)
            assert "SUSPENDED: allocator: balloons" in node.cli("status").stdout
            assert node.pod("third").container("main").cgroup_cpus() in (str(node.all), "")
        node.wait_for_sync(1)
        assert suspended()  # until it is restarted
        node.stop()
        node.connect()
        assert suspended() == ""
