"""A watcher's view of one VM, whose vCPU is a thread of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nri_events
import pytest
from own_threads import CPU, SHOP, OwnThread, need_real_time, own_threads
from ruled import claims
from trees import make_tree

from vmpin.config.loading import load
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container, ContainerId, ThreadRole, Vcpu, VcpuId, VmThread
from vmpin.domain.topology import Topology
from vmpin.features.scheduling.class_file import ClassFile
from vmpin.features.scheduling.class_setter import ClassSetter
from vmpin.features.scheduling.pod_choices import ANNOTATION
from vmpin.features.scheduling.scheduling_watcher_part import NodeScheduling
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import Node, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.sources.nri.nri_events import NriEvent, PodEvent
from vmpin.wire.nri_enums import Verb

POOL = 60  #: No CPU of this machine: the threads of the VM that are not vCPUs are there.
NODE = Node(Topology.build(CpuSet((CPU, POOL))), CpuSet((POOL,)))


class Vm:
    """A watcher's view of one VM whose vCPU 0 is a thread of this process, alone on its CPU while it is `placed`."""

    def __init__(self, root: Path, thread: OwnThread, **keys: object) -> None:
        self.thread, self.path = thread, root / "run/scheduling.json"
        make_tree(root, "run/\nsys/kernel/sched_rt_period_us = 1000000\n")
        self.limit_file = root / "sys/kernel/sched_rt_runtime_us"
        self.limit(950000)
        vcpu = VmThread(thread.id, ThreadRole.VCPU, "CPU 0/KVM", 1, VcpuId(0))
        self.config = load(None, {}, {"paths.run": str(root / "run"), **{
            f"scheduling.{key}": str(value) for key, value in keys.items()}})
        self.view: Any = SimpleNamespace(
            config=self.config, proc=Procfs(root), placements={}, unmanaged={}, refusals=lambda sandbox: [],
            sandboxes={SHOP: SandboxState(SHOP)}, unknown_originals=0,
            list_awaited=False,
            vms={SHOP: SimpleNamespace(vmm=SimpleNamespace(id=thread.main, threads={thread.tid: vcpu}))})
        self.place()
        self.part: Any = self.scheduling().part()

    def scheduling(self) -> NodeScheduling:
        setter = ClassSetter(Procfs(), ClassFile(self.path, "boot"), self.config.contention_rules)
        return NodeScheduling(self.view, self.config.of_features["scheduling"], setter)

    def limit(self, microseconds: int) -> None:
        self.limit_file.write_text(f"{microseconds}\n")

    def place(self, *, exclusive: bool = True) -> None:
        containers = (Container(ContainerId("web"), cpuset=CpuSet((CPU,)), exclusive=exclusive),
                      Container(ContainerId("logs"), cpuset=CpuSet((POOL,)), exclusive=False))
        self.view.ownership = own = ownership({SHOP: claims(containers, NODE)}, NODE)
        self.view.placements[SHOP] = place(PlacementRequest(SHOP, (Vcpu(VcpuId(0)),), containers), NODE, own,
                                           self.config.rules)

    def members(self) -> Any:
        return self.part.members(SandboxState(SHOP)).get("scheduling")

    def resync(self) -> None:
        self.part.after_pass()
        self.part.after_resync()


@pytest.fixture
def thread() -> Iterator[OwnThread]:
    need_real_time()
    with own_threads(1) as (its,):
        yield its


def run_pod(value: str, namespace: str) -> NriEvent:
    pod = nri_events.pod(id_=SHOP)._replace(namespace=namespace, annotations={ANNOTATION: value})
    return PodEvent(Verb.RUN_POD, pod, 0)
