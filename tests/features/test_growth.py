"""After many lives of pods and VMs a watcher holds no more than after a few: every collection that can be reached from
it is measured, whatever it is of."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import newcomers
import pytest
from collections_of import grown, lengths
from guest_peer import PATIENCE, until
from kata_files import KataFiles
from need import need_root
from newcomers import Machine, by_name, mask, sandbox
from nri_peer import NriRuntime, container, pod

from vmpin.cli.control_client import ask
from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.daemon.task_table import tasks_of
from vmpin.daemon.watcher import Watcher
from vmpin.feature import features
from vmpin.host.lock import Lock
from vmpin.sources.spool import Spool
from vmpin.wire.nri_enums import CREATED, RUNNING
from vmpin.wire.nri_messages import MESSAGES

pytest_plugins = ["given_unit"]

#: Lives of pods until the first measurement, and until the last. One in `A_VM` is a VM.
FEW, MANY, A_VM = 60, 300, 10
#: What may be more at one moment than at another.
SLACK = 16
#: What switches on what features do for each pod and VM.
SETTINGS = {"proof": {"proof.sample_seconds": "0.2"}, "memory": {"memory.metrics": "true"},
            "network": {"policy.vhost": "near"}, "irqs": {"irqs.policy": "see"}}
#: What is kept of former pods on purpose, up to a number or for a time (seconds, or ns), which is made small.
LIMITS = {"vmpin.reconcile.pod_lookup.ENDED": 4, "vmpin.host.cgroup._MOST_LOCATIONS": 4,
          "vmpin.features.proof.residency_ledger.MAX_FINDINGS": 4,
          "vmpin.features.isolation.isolation_books.MAX_OWNERS": 4,
          "vmpin.procevents.latency._LATE": 10**8, "vmpin.sources.disk.FORGET_AFTER_NS": 10**8,
          "vmpin.sources.nri.call_codec.MAX_REMOVED": 4, "vmpin.sources.nri.nri_reports.PAUSE": 0.1,
          "vmpin.sources.nri.nri_reports.NEAR": 0.1, "vmpin.features.common.kept_database.WRITE_EVERY": 0.1}
_LIFE = ("CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer", "UpdateContainer",
         "PostUpdateContainer", "StopContainer", "RemoveContainer")


class KataVm(NamedTuple):
    sandbox: str
    pid: int


class Node:
    """Pods and VMs one after the other, as the runtime, hooks, files and processes of a node report them."""

    def __init__(self, machine: Machine, binary: Path, config: Config, runtime: NriRuntime) -> None:
        self.machine, self.binary, self.config, self.runtime = machine, binary, config, runtime
        self.kata, self.allocates = KataFiles(config.paths.kata_go), "allocate.mode" in machine.settings
        config.paths.cdi.mkdir()
        self.lives = 0

    def live(self, count: int) -> None:
        """Let so many pods live and end."""
        for _ in range(count):
            self.lives += 1
            claim = self.config.paths.cdi / f"dra.k8s.io-cpu_claim-{self.lives}.json"
            claim.write_text("{")
            os.mkfifo(self.config.paths.spool / f"{self.lives}.hook")
            if self.lives % A_VM:
                with subprocess.Popen(["sleep", "600"]) as process, self._shown(process.pid):
                    self._pod(sandbox(f"pod{self.lives}"), process.pid, "", str(self.machine.pool), lambda: None)
                    process.kill()
            else:
                self._vm(sandbox(f"vm{self.lives}"))
            claim.unlink()

    @contextmanager
    def _shown(self, pid: int) -> Iterator[None]:
        """Have the watcher see a process: what else runs on this machine is not for it to count."""
        link = self.config.paths.proc / str(pid)
        link.symlink_to(f"/proc/{pid}")
        yield
        link.unlink()

    def _call(self, method: str, of: Any, made: Any = None) -> bytes:
        message = MESSAGES["EventRequest"](pod=of, container=made) if method != "UpdateContainer" else MESSAGES[
            "UpdateContainerRequest"](pod=of, container=made, linux_resources=made.linux.resources)
        return self.runtime.call(method, message).payload

    def _pod(self, name: str, pid: int, handler: str, cpus: str, meanwhile: Callable[[], None]) -> None:
        """A pod with a container, from its creation to its removal. :param pid: of its first process, or VMM.
        :param meanwhile: called while the container runs."""
        of = pod(name, name=f"web-{self.lives}", uid=f"uid-{self.lives}", pid=pid, runtime_handler=handler,
                 annotations={"cpu-policy.vmpin.io/container.app": "exclusive"} if handler else {})
        made = container(f"c{name}", name, "" if self.allocates else cpus, CREATED)
        resources = made.linux.resources.cpu
        resources.shares.value, resources.quota.value, resources.period.value = 1024, 100_000, 100_000
        self._call("RunPodSandbox", of)
        for method in _LIFE:
            made.state = RUNNING if method in _LIFE[3:] else CREATED
            made.pid = 0 if method in _LIFE[:2] else pid
            if method == "StopContainer":
                meanwhile()
            answer = self._call(method, of, made)
            if method == "CreateContainer":
                given = MESSAGES.decode("CreateContainerResponse", answer).adjust.linux.resources.cpu.cpus
                resources.cpus = given or resources.cpus
        self._call("StopPodSandbox", of)
        self._call("RemovePodSandbox", of)

    def _vm(self, name: str) -> None:
        """A pod in a VM that Kata's state and a hook report, too. One of its threads drifts, it is unpinned, and
        placed again."""
        vmm = self.machine.crowd(self.binary, "qemu-system-x86_64", "-name", f"sandbox-{name},debug-threads=on",
                                 "-smp", "2")
        with self._shown(vmm.pid):
            self._vm_pod(name, vmm)

    def _vm_pod(self, name: str, vmm: subprocess.Popen[bytes]) -> None:
        other, vm = self.machine.other, KataVm(name, vmm.pid)
        self.kata.write(vm, {"web": str(other)}, ids={"web": f"c{name}"})
        self._hook("createRuntime", name, vmm.pid)

        def meanwhile() -> None:
            vcpu = by_name(vmm, "CPU 1/KVM")
            newcomers.until(lambda: mask(vcpu) == other)
            os.sched_setaffinity(vcpu, self.machine.both.frozen())
            newcomers.until(lambda: mask(vcpu) == other)
            for request in ({"op": "unpin", "sandbox": name}, {"op": "reconcile", "sandbox": name}, {"op": "status"}):
                assert "error" not in (ask(self.config, request) or {})
            vmm.kill()
            vmm.communicate()
            self.machine.children.remove(vmm)

        self._pod(name, vmm.pid, "kata", str(other), meanwhile)
        self._hook("poststop", name, 0)
        self.kata.remove(vm)

    def _hook(self, stage: str, name: str, pid: int) -> None:
        """A hook's message about the container of a pod."""
        state = {"id": f"c{name}", "pid": pid, "bundle": str(self.machine.path / "bundle"), "annotations": {
            "io.kubernetes.cri.sandbox-id": name, "io.kubernetes.cri.container-type": "container"}}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.config.paths.hook_socket))
            connection.sendall(b"vmpin-hook/1 stage=%s boot=1\n%s" % (stage.encode(), json.dumps(state).encode()))
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b"ok\n"

    def measured(self, watcher: Watcher) -> Counter[str]:
        """The lengths of all collections, and how much there is of what the process has elsewhere. Called in the
        loop's thread."""
        found = lengths(watcher)
        # A loop keeps up to a hundred timers that were cancelled (asyncio/base_events.py: _run_once).
        loop: Any = asyncio.get_running_loop()
        found[f"{type(loop).__name__}._scheduled"] = sum(not timer.cancelled() for timer in loop._scheduled)
        inotify = [fd for fd in os.listdir("/proc/self/fd") if _target(fd) == "anon_inode:inotify"]
        found["descriptors"], found["threads"] = len(os.listdir("/proc/self/fd")), threading.active_count()
        found["watched files"] = sum(Path(f"/proc/self/fdinfo/{fd}").read_text().count("wd:") for fd in inotify)
        found["files"] = sum(1 for _ in self.config.paths.run.rglob("*"))
        return found

    def samples(self) -> int:
        """The number of metrics, each with each of its labels."""
        time.sleep(2.0)  # twice as long as a page is given to the next client
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.machine.path / "metrics"))
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            return b"".join(iter(lambda: connection.recv(65536), b"")).count(b"\nvmpin_")


def _target(fd: str) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


@asynccontextmanager
async def watching(machine: Machine, binary: Path) -> AsyncIterator[tuple[Watcher, Node]]:
    """A watcher in this process, connected to a runtime of the test's own that has no pods."""
    there = {feature.name for feature in features()}
    for name, settings in SETTINGS.items():
        machine.settings |= settings if name in there else {}
    path, proc = machine.path / "nri", machine.path / "proc"
    proc.mkdir()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            (proc / name).symlink_to(f"/proc/{name}")
    machine.settings |= {"metrics.address": f"unix:{machine.path / 'metrics'}", "metrics.per_sandbox": "true"}
    machine.settings |= {"watch.nri": "on", "watch.resync_seconds": "0.1", "paths.cdi": str(machine.path / "cdi"),
                         "paths.proc": str(proc)}
    (machine.path / "bundle").mkdir()
    (machine.path / "bundle" / "config.json").write_text(json.dumps({
        "linux": {"resources": {"cpu": {"cpus": str(machine.other)}}}}))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(PATIENCE)
        machine.reconciler = machine.fresh()
        config = machine.node_state.config
        spool = Spool(config.paths.spool)
        with Lock(config.paths.lock_file) as lock:
            spool.prepare()
            watcher = Watcher(lambda: config, machine.reconciler, spool, [], lock, Timeouts(
                save=(0.001, 0.001), file_calm=0.001, rechecks=(0.001, 0.01)))
            task = asyncio.create_task(watcher.run(tasks_of))
            runtime = NriRuntime((await asyncio.to_thread(listener.accept))[0])
            await asyncio.to_thread(runtime.begin)
            await until(lambda: watcher.about is not None)
            if "cluster" in there:
                reader, writer = await asyncio.open_unix_connection(config.paths.status_socket)
                writer.write(b'{"op": "follow"}\n')
                following = asyncio.create_task(_read(reader))
            try:
                yield watcher, Node(machine, binary, config, runtime)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await task
                runtime.close()
                if "cluster" in there:
                    assert await following
                    writer.close()


async def _read(reader: asyncio.StreamReader) -> int:
    """:returns: how much was read."""
    count = 0
    while part := await reader.read(65536):
        count += len(part)
    return count


@pytest.mark.root
@pytest.mark.parametrize("allocates", [pytest.param(False, marks=pytest.mark.release), True])
async def test_nothing_that_a_watcher_holds_grows_with_the_pods_that_have_ended(
        allocates: bool, machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    if allocates:
        if "allocator" not in {feature.name for feature in features()}:
            pytest.skip("the allocator is not there")
        rest = CpuSet(os.sched_getaffinity(0)) - machine.other
        machine.settings |= {"allocate.mode": "on", "allocate.reserved": str(rest)}
    for name, limit in LIMITS.items():
        module, _, variable = name.rpartition(".")
        with suppress(ModuleNotFoundError):  # a feature's, which may be missing
            monkeypatch.setattr(importlib.import_module(module), variable, limit)
    async with watching(machine, crowd) as (watcher, node):
        await asyncio.to_thread(node.live, FEW)
        await asyncio.sleep(10 * watcher.view.config.watch.resync_seconds)
        few, samples = node.measured(watcher), await asyncio.to_thread(node.samples)
        await asyncio.to_thread(node.live, MANY - FEW)
        last: list[object] = []

        def at_rest() -> bool:
            last[:] = grown(few, node.measured(watcher), SLACK)
            return not last

        with suppress(TimeoutError):
            await until(at_rest)
        assert not last
        assert await asyncio.to_thread(node.samples) <= samples + SLACK
