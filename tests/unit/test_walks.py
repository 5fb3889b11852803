"""The walks of docs/architecture.md, made: each station is run through, in the order of its table, and a walk crosses
no more files, and climbs no more often, than the page says.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from guest_peer import until
from newcomers import Machine, by_name, mask, sandbox
from nri_peer import container, pod
from test_floors import FLOORS, MODULES, own
from walks import Walk

from vmpin.cli.main import main
from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.daemon.watcher import Watcher
from vmpin.domain.runtime_call import VmSize
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.host.lock import Lock
from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.nri_events import NriCounters
from vmpin.sources.nri.plugin import NriPlugin
from vmpin.sources.nri.session import NriSession
from vmpin.sources.nri.stream import NriStream
from vmpin.sources.spool import Spool
from vmpin.wire import mux, ttrpc
from vmpin.wire.nri_messages import MESSAGES, PLUGIN_SERVICE
from vmpin.wire.proc_events import Fork

pytest_plugins = ["given_unit"]

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PATHS = {module: str(path.relative_to(ROOT / "vmpin")) for module, path in MODULES.items()}


def stations(heading: str) -> list[tuple[str, str]]:
    """The stations of a table: (file below vmpin, function)."""
    section = TEXT[TEXT.index(f"## {heading}"):].split("\n## ")[0]
    return re.findall(r"^\| \d+ \| `vmpin/([\w/]+\.py)` \| `([\w.]+)`", section, re.MULTILINE)


@cache
def imports() -> dict[str, set[str]]:
    """The files that each file imports, itself or by way of others."""
    reach = {PATHS[module]: {PATHS[name] for name in own(path) if name in PATHS} for module, path in MODULES.items()}
    grown = True
    while grown:
        grown = False
        for files in reach.values():
            more = set().union(*(reach[file] for file in files)) - files
            grown |= bool(more)
            files |= more
    return reach


def check(name: str, walk: Walk, table: Iterable[tuple[str, str]]) -> None:
    """A walk runs through the stations of its table in order, and keeps to the page's figures."""
    calls = [call[:2] for call in walk.calls]
    at = -1
    for station in table:
        assert station in calls[at + 1:], f"{name}: {station} is not run through, or before the station above it"
        at = calls.index(station, at + 1)
    [(files, climbs)] = re.findall(rf"^\| {re.escape(name)} \| (\d+) \| (\d+) \|", TEXT, re.MULTILINE)
    crossed, climbed = walk.files(*(file for file, _ in table)), walk.climbs(imports(), FLOORS)
    assert len(crossed) <= int(files), crossed
    assert len(climbed) <= int(climbs), climbed


def call_bytes(stream: int, method: str, message: object) -> bytes:
    payload = message.SerializeToString()  # type: ignore[attr-defined]
    return mux.frames(mux.PLUGIN, ttrpc.encode(ttrpc.Call(stream, PLUGIN_SERVICE, method, payload)))


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


def quiet(machine: Machine) -> Config:
    """Have a watcher of this machine use its hook's and its control socket alone."""
    machine.settings |= {"watch.nri": "off", "watch.births": "false", "guest.via": "off", "watch.kubelet": "false"}
    machine.reconciler = machine.fresh()
    return machine.reconciler.config


def watcher_of(machine: Machine, config: Config, lock: Lock) -> Watcher:
    spool = Spool(config.paths.spool)
    spool.prepare()
    return Watcher(lambda: config, machine.reconciler, spool, [], lock, Timeouts())


def test_a_hooks_message_to_its_masks(machine: Machine, crowd: Path) -> None:
    config = quiet(machine)
    vmm = machine.running(crowd)
    assert mask(vmm) == machine.pool
    bundle = machine.path / "c1"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"linux": {"resources": {"cpu": {"cpus": str(machine.other)}}}}))
    state = {"id": "c1", "pid": 0, "bundle": str(bundle), "annotations": {
        "io.kubernetes.cri.sandbox-id": sandbox("a"), "io.kubernetes.cri.container-type": "container"}}
    message, walk = b"vmpin-hook/1 stage=createRuntime time=1\n" + json.dumps(state).encode(), Walk()

    async def received() -> None:
        with Lock(config.paths.lock_file) as lock:
            watcher = watcher_of(machine, config, lock)
            with walk.recorded():
                assert await watcher.hooks.receive(message, os.geteuid()) == b"ok\n"
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    asyncio.run(received())
    assert mask(vmm) == machine.other
    check("a hook's message to its masks", walk.until("host/affinity.py", "pin_seen"),
          stations("From a hook's message to a mask"))


def test_a_new_thread_to_its_mask(machine: Machine, crowd: Path) -> None:
    """From the placer on: the kernel's socket needs rights."""
    vmm, walk = machine.running(crowd), Walk()
    tid = by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.both.frozen())
    with walk.recorded():
        machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)])
    assert mask(tid) == machine.pool
    named = ("procevents/named_vcpus.py", "NamedVcpuPlacer.place")
    way = [station for station in stations("From a new thread to its mask") if station != named]
    check("a new thread to its mask", walk.until("host/affinity.py", "pin_seen"), way[2:5])


def test_status(machine: Machine, crowd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line's part and the watcher's."""
    config, walk = quiet(machine), Walk()
    machine.running(crowd)
    arguments = ["status", f"--set=paths.run={config.paths.run}"]

    async def asked() -> None:
        with Lock(config.paths.lock_file) as lock:
            watcher = watcher_of(machine, config, lock)
            task = asyncio.create_task(watcher.run())
            await until(lambda: watcher.about is not None)
            with walk.recorded():
                assert await asyncio.to_thread(main, arguments) == 0
            os.kill(os.getpid(), signal.SIGTERM)
            await task

    asyncio.run(asked())
    assert sandbox("a") in capsys.readouterr().out
    check("`vmpin status`", walk, ())


def test_each_table_is_read() -> None:
    for heading in ("From a hook's message to a mask", "From CreateContainer to a grant",
                    "From a new thread to its mask"):
        assert len(stations(heading)) >= 5
