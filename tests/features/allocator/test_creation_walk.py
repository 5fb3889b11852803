"""The walk of a container's creation, from NRI's bytes to the grant: as docs/architecture.md has it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from nri_peer import container, pod
from walk_tables import check, stations
from walks import Walk

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.vm_size import VmSize
from vmpin.sources.nri.connection import NriStream
from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.nri_events import NriCounters
from vmpin.sources.nri.plugin import NriPlugin
from vmpin.sources.nri.session import NriSession
from vmpin.wire import ttrpc
from vmpin.wire.nri_messages import MESSAGES, PLUGIN_SERVICE


def call_bytes(stream: int, method: str, message: object) -> bytes:
    payload = message.SerializeToString()  # type: ignore[attr-defined]
    return ttrpc.frames(ttrpc.PLUGIN, ttrpc.encode(ttrpc.Call(stream, PLUGIN_SERVICE, method, payload)))


def test_a_creation_to_its_grant(tmp_path: Path) -> None:
    cpus = CpuSet(range(8))
    machine = Topology.build(cpus, [CpuSet((cpu, cpu + 4)) for cpu in range(4)], [cpus], {0: cpus})
    allocator = CpuAllocator(machine, AllocationOptions(AllocationMode.ON, reserved=CpuSet((0,))),
                             LedgerFile(tmp_path / "ledger.json", "boot"), lambda pod: VmSize())
    plugin = NriPlugin(socket.socket, NriQueue())
    session = NriSession("vmpin", "90", NriCounters(), set(), {}, 0, allocator)
    theirs, ours = socket.socketpair()
    wake = os.eventfd(0)
    with theirs, ours:
        stream = NriStream(ours, wake)
        plugin._process(stream, session, call_bytes(1, "Synchronize", MESSAGES["SynchronizeRequest"](
            pods=[pod("old")], containers=[container("shared", "old")])))
        new = container(state=1)
        new.linux.resources.cpu.shares.value, new.linux.resources.cpu.quota.value = 2048, 200_000
        new.linux.resources.cpu.period.value = 100_000
        asking = pod(annotations={"cpu-policy.vmpin.io": "exclusive"})
        walk = Walk()
        with walk.recorded():
            plugin._process(stream, session, call_bytes(3, "CreateContainer", MESSAGES["CreateContainerRequest"](
                pod=asking, container=new)))
    os.close(wake)
    ledger = allocator.ledger()
    assert ledger is not None
    assert [len(grant.cpus) for grant in ledger.grants.values() if grant.container == "c1"] == [2]
    table = stations("From CreateContainer to a grant")
    check("CreateContainer to a grant", walk.until(*table[-1]), table)
