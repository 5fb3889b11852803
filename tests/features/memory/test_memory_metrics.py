"""The metric of sandboxes' memory: at bounded cost, and only on request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from metered import metered
from trees import make_tree

from vmpin.config import loading as configuration
from vmpin.cpuset import EMPTY
from vmpin.daemon.watcher import Watcher
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.errors import ConfigError
from vmpin.features.memory import FEATURE
from vmpin.features.memory.memory_metrics import AT_ONCE, MemoryReadings
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.reconcile.view import NodeView
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm


class CountedCgroups(Cgroups):
    """The pids whose cgroup was read, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "cg", Procfs(root / "proc"))
        self.pids: list[int] = []

    def directory(self, pid: int, controller: str, container: str = "") -> Path | None:
        if controller == "memory":
            self.pids.append(pid)
        return super().directory(pid, controller, container)


def name(pid: int) -> SandboxId:
    return SandboxId(f"s{pid}")


def vm(pid: int) -> Vm:
    return Vm(name(pid), QEMU, Process(pid, ThreadId(pid, 1), ThreadRole.EMULATOR, []))


def test_a_scrape_reads_a_few_cgroups_those_that_were_read_longest_ago(tmp_path: Path) -> None:
    make_tree(tmp_path, "".join(f"proc/{pid}/cgroup = 0::/{pid}\ncg/{pid}/memory.numa_stat = anon N0={pid} N1=0\n"
                                for pid in range(1, 50)) + "cg/cgroup.controllers = memory\n")
    cgroups, vms = CountedCgroups(tmp_path), {name(pid): vm(pid) for pid in range(1, 2 * AT_ONCE + 1)}
    readings = MemoryReadings(cast(NodeView, SimpleNamespace(cgroups=cgroups, vms=vms)))
    first, second = dict(readings.read()), dict(readings.read())
    assert [len(first), len(second)] == [AT_ONCE, 2 * AT_ONCE]
    assert second[name(32)] == {0: 32, 1: 0}
    assert cgroups.pids == [*range(1, 2 * AT_ONCE + 1)]
    del vms[name(1)]
    vms[name(49)] = vm(49)
    third = readings.read()
    assert name(1) not in third
    assert third[name(49)] == {0: 49, 1: 0}
    assert cgroups.pids[2 * AT_ONCE:] == [49, *range(2, AT_ONCE + 1)]


def part(flags: dict[str, str]) -> Any:
    assert FEATURE.watch is not None
    config = configuration.load(None, {}, flags)
    return FEATURE.watch(cast(Watcher, SimpleNamespace(view=SimpleNamespace(config=config))))


def test_the_metric_is_there_on_request_alone() -> None:
    assert part({}) is None
    with pytest.raises(ConfigError, match=r"metrics\.per_sandbox is off"):
        part({"memory.metrics": "true"})
    assert part({"memory.metrics": "true", "metrics.per_sandbox": "true"}).metrics is not None


def test_the_metric_has_whether_vcpus_are_placed_on_the_node(tmp_path: Path) -> None:
    with metered(tmp_path, metrics_per_sandbox="true") as node:
        node.fill()
        nodes = node.view.node.topology.nodes
        near = ["yes" if node.first <= nodes.get(number, EMPTY) else "no" for number in (0, 1)]
        assert node.values("vmpin_sandbox_memory_bytes") == {
            ("tests", near[0], "0", "shop", node.id): 1 << 30, ("tests", near[1], "1", "shop", node.id): 4096}
        node.node_state.placement_cache.placements.clear()
        assert {near for _, near, *_ in node.values("vmpin_sandbox_memory_bytes")} == {"unknown"}
