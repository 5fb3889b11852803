"""The machine of a story whose containers are real: runc and crun make them, with the real hook in their config.json,
and Kata's files report those of some VMs. There is no NRI: what a container has is read from its cgroup and from these
files."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kata_files import KataFiles
from runtime_bundle import Bundle

from soak.oracle import Container, Cpus
from soak.trouble import TroubledWorld
from soak.world import Guest, Kind, listed
from vmpin.cli.main import main as vmpin_command
from vmpin.features.installer.oci_hook import DEFAULT_STAGES

#: Which stages call the hook: each of these is enough.
_STAGES = (DEFAULT_STAGES, ("createRuntime", "poststop"), ("poststart", "poststop"))
MOST_RUNC_PODS = 3
MOST_CONTAINERS = 4  # in a pod


class _Vm(NamedTuple):
    sandbox: str
    pid: int


class ContainerWorld(TroubledWorld):
    """A world of real containers."""

    nri = False
    resync = 1.0
    processes_in_a_storm = 100  # each of them takes 30 ms in an emulated node

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kata = KataFiles(self.top / "vc")
        self._bundles: dict[str, Bundle] = {}

    def cli(self, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """In this process: an emulated node takes seconds to start an interpreter."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = vmpin_command([args[0], "--config", str(self.config), *args[1:]])
        return subprocess.CompletedProcess(list(args), code, output.getvalue(), "")

    @property
    def deaf(self) -> bool:
        """The hook's messages would reach neither the watcher nor the spool, and no other source has them."""
        return self.frozen or self.filling.exists()

    # Pods

    def _kind(self) -> Kind:
        return self.rng.choice((Kind.HOOK, Kind.KATA))

    def begin(self, real: bool = False) -> None:
        super().begin(real)
        self._write_kata(list(self.guests.values())[-1])

    def begin_runc(self) -> bool | None:
        """A pod without a VM, and its first container."""
        if self.deaf or sum(guest.kind is Kind.RUNC for guest in self.guests.values()) >= MOST_RUNC_PODS:
            return False
        self.made["sandboxes"] += 1
        guest = Guest(self.id(f"s{self.made['sandboxes']:04}"), None, Kind.RUNC)
        self.guests[guest.id] = guest
        return self.create(guest)

    def remove(self, guest: Guest) -> bool | None:
        if self.deaf:
            return False
        if self.rng.random() < 0.5:
            self.end(guest)
        super().remove(guest)
        if guest.kind is Kind.KATA:
            with contextlib.suppress(FileNotFoundError):
                self._kata.remove(_Vm(guest.id, 0))
        return None

    def _write_kata(self, guest: Guest) -> None:
        if guest.kind is not Kind.KATA or guest.machine is None:
            return
        containers = guest.expected.containers
        self._kata.write(_Vm(guest.id, guest.machine.pids[0]),
                         {name: listed(container.cpus) for name, container in containers.items()},
                         stopped=[name for name, container in containers.items() if container.ended],
                         ids={name: self.id(name) for name in containers},
                         hypervisor="qemu" if guest.inside is None else "firecracker")

    # Containers

    def create(self, guest: Guest) -> bool | None:
        if self.deaf or len(guest.expected.containers) >= MOST_CONTAINERS:
            return False
        self.made["containers"] += 1
        runtime = "" if guest.kind is Kind.KATA else self.rng.choice(("runc", "runc", "crun"))
        container = Container(f"c{self.made['containers']:05}", self._cpus(), runtime)
        stages = self.rng.choice(_STAGES)
        guest.expected.containers[container.name] = container
        if guest.kind is Kind.KATA:
            self._write_kata(guest)
            return None
        made = self.real(runtime, guest.id, container.name, listed(container.cpus) or None, stages=stages)
        self._bundles[container.name] = made
        before = set(os.listdir(self.run / "spool"))
        made.run()
        self.made["spooled"] += len(set(os.listdir(self.run / "spool")) - before)
        assert not self.ended() or set(os.listdir(self.run / "spool")) - before, "the hook left nothing in the spool"
        return None

    def set_cpus(self, guest: Guest, container: Container, cpus: Cpus | None) -> None:
        container.cpus = cpus
        self._write_kata(guest)
        if container.runtime and cpus:
            self._bundles[container.name].update(listed(cpus))

    def delete(self, guest: Guest, name: str = "", with_hook: bool = True) -> bool | None:
        """The runtime always calls the hook."""
        if self.deaf or not guest.expected.containers:
            return False
        container = guest.expected.containers.pop(name or self.rng.choice(list(guest.expected.containers)))
        self._write_kata(guest)
        if container.runtime:
            made = self._bundles.pop(container.name)
            made.clean()
            self.bundles.remove(made)
        if guest.kind is Kind.RUNC and not guest.expected.containers and not name:
            super().remove(guest)
        return None

    def end_process(self, guest: Guest) -> bool | None:
        """A container's process ends by itself: no hook reports that, nor has the kubelet removed it. Not that of a
        container whose report the watcher may not have read: then nothing on the node shows that the process was its
        own, and it counts until it is removed."""
        found = [container for container in guest.expected.live() if container.settled]
        if not found:
            return False
        container = self.rng.choice(found)
        container.ended = True
        self._write_kata(guest)
        if container.runtime:
            for pid in self.pids(container):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return None

    def amid(self, change: Callable[[], object]) -> bool | None:
        """Kill the watcher while something changes."""
        if self.deaf or self.ended():
            return False
        timer = threading.Timer(self.rng.random() * 1.5, self.kill_watcher)
        timer.start()
        try:
            change()
        finally:
            timer.join()
        return None

    # What the kernel has of them

    def pids(self, container: Container) -> list[int]:
        (cgroup,) = self._cgroups(container)
        return [int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()]

    def touched(self) -> Iterator[str]:
        """What of a container is not just as the runtime set it."""
        for guest in self.guests.values():
            for container in guest.expected.live():
                if container.runtime:
                    yield from self._touched(container)

    def _touched(self, container: Container) -> Iterator[str]:
        wanted = container.cpus or self.everything
        (cgroup,) = self._cgroups(container)
        configured = (cgroup / "cpuset.cpus").read_text().strip()
        if (configured and _parsed(configured) != wanted) or (not configured and container.cpus):
            yield f"the cgroup of {container.name} has cpuset.cpus {configured!r}, not {listed(container.cpus)!r}"
        pids = self.pids(container)
        if not pids:
            yield f"no process is left of {container.name}"
        for pid in pids:
            has = frozenset(os.sched_getaffinity(pid))
            if has != wanted:
                yield f"process {pid} of {container.name} may run on {listed(has)}, not on {listed(wanted)}"

    def _cgroups(self, container: Container) -> list[Path]:
        name = self._bundles[container.name].cgroup
        return [path.parent for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpuset")
                if (path := Path(root) / name / "cpuset.cpus").exists()]


def _parsed(text: str) -> Cpus:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)
