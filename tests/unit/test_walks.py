"""The walks of docs/architecture.md, made: each station is run through, in the order of its table, and a walk crosses
no more files, and climbs no more often, than the page says.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from guest_peer import until
from newcomers import Machine, by_name, mask, sandbox
from walk_tables import check, stations
from walks import Walk

from vmpin.cli.main import main
from vmpin.config.settings import BY_KEY, Config
from vmpin.config.timeouts import Timeouts
from vmpin.daemon.task_table import tasks_of
from vmpin.daemon.watcher import Watcher
from vmpin.host.lock import Lock
from vmpin.sources.spool import Spool
from vmpin.wire.proc_events import Fork

pytest_plugins = ["given_unit"]


def quiet(machine: Machine) -> Config:
    """Have a watcher of this machine use its hook's and its control socket alone."""
    machine.settings |= {"watch.nri": "off", "watch.births": "false", "guest.via": "off",
                         "watch.kubelet": "false"}
    machine.settings |= {"proof.sample_seconds": "off"} if "proof.sample_seconds" in BY_KEY else {}
    machine.reconciler = machine.fresh()
    return machine.node_state.config


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
    message, walk = b"vmpin-hook/1 stage=createRuntime boot=1\n" + json.dumps(state).encode(), Walk()

    async def received() -> None:
        with Lock(config.paths.lock_file) as lock:
            watcher = watcher_of(machine, config, lock)
            with walk.recorded():
                assert await watcher.hooks.receive(message, os.geteuid()) == b"ok\n"
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    asyncio.run(received())
    assert mask(vmm) == machine.other
    check("a hook's message to its masks", walk.until("host/affinity.py", "pin_threads"),
          stations("From a hook's message to a mask"))


def test_a_new_thread_to_its_mask(machine: Machine, crowd: Path) -> None:
    """From the placer on: the kernel's socket needs rights."""
    vmm, walk = machine.running(crowd), Walk()
    tid = by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.both.frozen())
    with walk.recorded():
        machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)])
    assert mask(tid) == machine.pool
    named = ("procevents/newborn_placer.py", "NewbornPlacer._place_named")
    way = [station for station in stations("From a new thread to its mask") if station != named]
    check("a new thread to its mask", walk.until("host/affinity.py", "pin_threads"), way[2:5])


def test_status(machine: Machine, crowd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line's part and the watcher's."""
    config, walks = quiet(machine), [Walk(), Walk(), Walk()]
    machine.running(crowd)
    arguments = ["status", f"--set=paths.run={config.paths.run}"]

    async def asked() -> None:
        with Lock(config.paths.lock_file) as lock:
            watcher = watcher_of(machine, config, lock)
            task = asyncio.create_task(watcher.run(tasks_of))
            await until(lambda: watcher.about is not None)
            for walk in walks:  # each with a thread of its own, which is recorded from its start
                with ThreadPoolExecutor(1) as client, walk.recorded():
                    assert await asyncio.get_running_loop().run_in_executor(client, main, arguments) == 0
            os.kill(os.getpid(), signal.SIGTERM)
            await task

    asyncio.run(asked())
    assert sandbox("a") in capsys.readouterr().out
    # Other tasks of the watcher may run meanwhile.
    check("`vmpin status`", min(walks, key=lambda walk: len(walk.calls)), ())


def test_each_table_is_read() -> None:
    for heading in ("From a hook's message to a mask", "From a new thread to its mask"):
        assert len(stations(heading)) >= 5
