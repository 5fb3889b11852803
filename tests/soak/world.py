"""The machine of a story: a watcher, VMs with agents in them, and a container runtime.

Each action does to real processes, sockets and files what the kubelet, a runtime or an operator does, and keeps in
mind what is to follow from it (`oracle.Sandbox`). What stays out: what goes wrong (trouble), and when what happens
(story).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import nri_peer
from need import need_tool
from real_node import Node, talk

from soak import agents, machines
from soak.agents import Agents
from soak.machines import Machine, RealQemu, StandIn
from soak.oracle import Container, Cpus, Sandbox
from soak.runtime import Runtime
from vmpin.host.sysfs import Sysfs
from vmpin.wire.nri_enums import Verb

#: What the run directory may hold: full in a moment, and more than a story needs.
RUN_SIZE = "1m"


@dataclass
class Guest:
    """A sandbox of the story, and its VM while it runs."""

    id: str
    machine: Machine | None
    inside: agents.Guest | None = None
    told: Sandbox = field(default_factory=Sandbox)
    #: The watcher has settled it.
    settled: bool = False
    #: Its masks were written while nobody kept them: those are what it had "before vmpin", or has without it.
    tainted: bool = False


class World(Node):
    """Ends with nothing left. Has to run in a mount namespace of its own: its run directory is a file system."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.everything: Cpus = frozenset(Sysfs().online())
        first, *rest = sorted(self.everything)
        self.pool: Cpus = frozenset((first,))
        self.rest: Cpus = frozenset(rest)
        self.guests: dict[str, Guest] = {}
        #: Pods that there were.
        self.removed: list[str] = []
        #: The watcher was stopped (SIGSTOP).
        self.frozen = False
        self.made: Counter[str] = Counter()
        self.storms: list[subprocess.Popen[bytes]] = []
        self.sys = self.top / "sys"
        self.runtime = Runtime(self.top / "nri.sock", self._listing)
        self.filling = self.run / "filling"
        self.wrap = [need_tool("setpriv"), "--pdeathsig", "KILL"]  # no watcher outlives its story
        self.configure(
            node={"shared_pool": str(first)}, paths={"sys": str(self.sys)},
            watch={"resync_seconds": 0.5}, drift={"on_fight": "persist"}, proof={"sample_seconds": 1},
            guest={"via": "vmpin-agent"}, metrics={"address": f"unix:{self.run}/metrics.sock", "per_sandbox": True})

    def __enter__(self) -> Self:
        self.run.mkdir()
        subprocess.run([need_tool("mount"), "-t", "tmpfs", "-o", f"size={RUN_SIZE},mode=755", "vmpin-soak", self.run],
                       check=True)
        _copy_sys(self.sys)
        self.binary = machines.build(self.top)
        self.agents = Agents()
        self.runtime.start()
        return self

    def __exit__(self, *failed: Any) -> None:
        self.runtime.kill()
        for storm in self.storms:
            storm.kill()
            storm.wait()
        for guest in self.guests.values():
            self.end(guest)
        self.agents.close()
        self.kill()
        subprocess.run([need_tool("umount"), self.run], check=True)
        super().__exit__(*failed)

    # What there is

    @property
    def starts(self) -> int:
        """Of the watcher."""
        return self._starts

    def running(self) -> list[Guest]:
        return [guest for guest in self.guests.values() if guest.machine is not None]

    def pick(self) -> Guest | None:
        found = self.running()
        return self.rng.choice(found) if found else None

    def free(self) -> list[int]:
        """CPUs that nobody owns."""
        taken: Cpus = frozenset()
        for guest in self.guests.values():
            for container in guest.told.containers.values():
                taken |= container.cpus or frozenset()
        return sorted(self.rest - taken)

    def _listing(self) -> tuple[list[Any], list[Any]]:
        pods = [self._pod(guest) for guest in self.guests.values()]
        containers = [self._container(guest, container) for guest in self.guests.values()
                      for container in guest.told.containers.values()]
        return pods, containers

    def _pod(self, guest: Guest) -> Any:
        pid = 0 if guest.machine is None else guest.machine.pids[0]
        return nri_peer.pod(guest.id, name=guest.id[-6:], namespace="soak", uid="", pid=pid, runtime_handler="kata")

    def _container(self, guest: Guest, container: Container) -> Any:
        return nri_peer.container(self.id(container.name), guest.id, listed(container.cpus), name=container.name)

    # Pods

    def begin(self, real: bool = False) -> None:
        """A pod: its VM runs before anybody tells of it, or some time after."""
        self.made["sandboxes"] += 1
        guest = Guest(self.id(f"s{self.made['sandboxes']:04}"), None)
        early = self.rng.random() < 0.3
        with self.runtime.changing():
            self.guests[guest.id] = guest
            if early:
                self.runtime.tell(Verb.RUN_POD, self._pod(guest))
        if early and self.rng.random() < 0.5:
            self.create(guest)
        vcpus = self.rng.randint(1, 4)
        if real:
            guest.machine = RealQemu(guest.id, vcpus)
        else:
            helpers = [name for name in ("virtiofsd", "shim") if self.rng.random() < 0.5]
            if self.rng.random() < 0.4:
                guest.inside = agents.Guest(self.top / "vc/vm" / guest.id / "kata.hvsock")
            guest.machine = StandIn(self.binary, guest.id, vcpus, helpers,
                                    None if guest.inside is None else guest.inside.listener)
            if guest.inside is not None:
                self.agents.serve(guest.inside)
        if not early:
            with self.runtime.changing():
                self.runtime.tell(Verb.RUN_POD, self._pod(guest))

    def create(self, guest: Guest, name: str = "") -> None:
        """A container, told by the hook and over NRI, or by one of them."""
        self.made["containers"] += 1
        container = Container(name or f"c{self.made['containers']:05}", self._cpus())
        told = self.rng.choice(("both", "hook", "nri"))
        if told != "nri":
            bundle = self.bundle(container.name, listed(container.cpus) or None)
            self._hook("createRuntime", self.state(guest.id, container.name, bundle))
        with self.runtime.changing():
            guest.told.containers[container.name] = container
            if told != "hook":
                self.runtime.tell(Verb.POST_START, self._pod(guest), self._container(guest, container))

    def update(self, guest: Guest) -> bool:
        """:returns: whether there was a container to be given other CPUs; so do those below."""
        if not guest.told.containers:
            return False
        container = self.rng.choice(list(guest.told.containers.values()))
        with self.runtime.changing():
            # A container without CPUs is not given some later: an empty cpuset in an update means no change.
            container.cpus = self._cpus() or container.cpus
            self.runtime.tell(Verb.POST_UPDATE, self._pod(guest), self._container(guest, container))
        return True

    def delete(self, guest: Guest, name: str = "", heard: bool = True) -> bool:
        """:param heard: whether the hook is called; the runtime tells whoever is connected in any case."""
        if not guest.told.containers:
            return False
        container = guest.told.containers[name or self.rng.choice(list(guest.told.containers))]
        with self.runtime.changing():
            del guest.told.containers[container.name]
            self.runtime.tell(Verb.STOP, self._pod(guest), self._container(guest, container))
            self.runtime.tell(Verb.REMOVE, self._pod(guest), self._container(guest, container))
        bundle = self.top / "bundles" / self.id(container.name)
        if heard and bundle.exists():
            self._hook("poststop", self.state(guest.id, container.name, bundle))
        shutil.rmtree(bundle, ignore_errors=True)
        return True

    def remove(self, guest: Guest) -> None:
        """The whole pod, in order."""
        for name in list(guest.told.containers):
            self.delete(guest, name)
        self.end(guest)
        with self.runtime.changing():
            del self.guests[guest.id]
            self.removed.append(guest.id)
            self.runtime.tell(Verb.STOP_POD, self._pod(guest))
            self.runtime.tell(Verb.REMOVE_POD, self._pod(guest))

    def end(self, guest: Guest) -> None:
        """Its VM, and who is in it."""
        if guest.machine is not None:
            guest.machine.end()
            guest.machine = None
        if guest.inside is not None:
            self.agents.end(guest.inside)
            guest.inside = None

    def _cpus(self) -> Cpus | None:
        """A container's: some that nobody owns, the shared pool, or none at all."""
        free = self.free()
        if free and self.rng.random() < 0.6:
            return frozenset(self.rng.sample(free, self.rng.randint(1, min(2, len(free)))))
        return self.pool if self.rng.random() < 0.8 else None

    def _hook(self, stage: str, state: dict[str, object]) -> None:
        """What the hook sends; when nobody listens the real one, which leaves it in the spool."""
        answer = b""
        if not self.frozen:
            with contextlib.suppress(OSError):
                answer = talk(self.run / "hook.sock", self.message(stage, state))
        if answer != b"ok\n":
            self.made["spooled"] += 1
            for _ in range(5):  # after its deadline it has 20 ms for the spool, which a busy machine may take from it
                before = os.listdir(self.run / "spool")
                assert self.call_hook(stage, state).wait(120) == 0, "the hook failed a container"
                if not self.frozen or os.listdir(self.run / "spool") != before:
                    break


def listed(cpus: Cpus | None) -> str:
    return ",".join(map(str, sorted(cpus or ())))


def _copy_sys(to: Path) -> None:
    """As much of the machine's /sys as there is to read, in files that can be written."""
    for part in ("cpu", "node"):
        root = Path("/sys/devices/system") / part
        for path in [*root.glob("*"), *root.glob("cpu[0-9]*/topology/*"), *root.glob("cpu[0-9]*/cache/index*/*"),
                     *root.glob("node[0-9]*/cpulist")]:
            with contextlib.suppress(OSError):
                if path.is_file():
                    made = to / "devices/system" / part / path.relative_to(root)
                    made.parent.mkdir(parents=True, exist_ok=True)
                    made.write_bytes(path.read_bytes())
