"""The machine of a story: a watcher, VMs with agents in them, and a container runtime.

Each action does to real processes, sockets and files what the kubelet, a runtime or an operator does, and records what
is to follow from it (`oracle.Sandbox`).
"""

from __future__ import annotations

import contextlib
import enum
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

from soak import agents, machines, oracle
from soak.agents import Agents
from soak.machines import Machine, RealQemu, StandIn
from soak.oracle import Container, Cpus, Sandbox
from soak.runtime import Runtime
from vmpin.features.installer.oci_hook import DEFAULT_DEADLINE_MS, HookOptions
from vmpin.host.sysfs import Sysfs
from vmpin.wire.nri_enums import Verb

#: What the run directory may hold: full in a moment, and more than a story needs.
RUN_SIZE = "1m"


class Kind(enum.StrEnum):
    """What reports a sandbox's containers."""

    #: A VM; the hook's messages and NRI, with no process on the host.
    REPORTED = "VM by hook and NRI"
    #: A VM; the hook, called by a real runtime for a container on the host that is annotated with the sandbox's id.
    HOOK = "VM by real runtimes"
    #: A VM; persist.json.
    KATA = "VM by Kata's files"
    #: No VM; the hook, called by a real runtime.
    RUNC = "runc pod"


@dataclass
class Guest:
    """A sandbox of the story, and its VM while it runs."""

    id: str
    machine: Machine | None
    kind: Kind = Kind.REPORTED
    inside: agents.Guest | None = None
    expected: Sandbox = field(default_factory=Sandbox)
    #: The watcher has settled it.
    settled: bool = False
    #: Its masks were written while no watcher kept them: those are what it had "before vmpin", or has without it.
    tainted: bool = False

    @property
    def ended(self) -> bool:
        """Its VM has; the pod is still there."""
        return self.machine is None and self.kind is not Kind.RUNC


class World(Node):
    """Ends with nothing left. Has to run in a mount namespace of its own: its run directory is a file system.

    `nri`: whether its runtime speaks NRI.
    """

    nri = True
    #: Whether there is an API server (cluster_world).
    cluster = False
    resync = 0.5

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.everything: Cpus = frozenset(Sysfs().online())
        self.pool: Cpus = frozenset(sorted(self.everything)[:max(1, len(self.everything) // 4)])
        self.rest: Cpus = self.everything - self.pool
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
            node={"shared_pool": listed(self.pool)}, paths={"sys": str(self.sys)},
            watch={"resync_seconds": self.resync}, drift={"on_contention": "persist"}, proof={"sample_seconds": 1},
            guest={"via": "vmpin-agent"}, metrics={"address": f"unix:{self.run}/metrics.sock", "per_sandbox": True})

    def __enter__(self) -> Self:
        self.run.mkdir()
        subprocess.run([need_tool("mount"), "-t", "tmpfs", "-o", f"size={RUN_SIZE},mode=755", "vmpin-soak", self.run],
                       check=True)
        _copy_sys(self.sys)
        self.binary = machines.build(self.top)
        self.agents = Agents()
        if self.nri:
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

    def pick(self, vm: bool = False) -> Guest | None:
        """A pod; with `vm` one with a running VM."""
        found = [guest for guest in self.guests.values() if not (vm and guest.kind is Kind.RUNC) and not guest.ended]
        return self.rng.choice(found) if found else None

    def free(self) -> list[int]:
        """CPUs that no container owns."""
        taken: Cpus = frozenset()
        for guest in self.guests.values():
            for container in guest.expected.containers.values():
                taken |= container.cpus or frozenset()
        return sorted(self.rest - taken)

    def _listing(self) -> tuple[list[Any], list[Any]]:
        pods = [self._pod(guest) for guest in self.guests.values()]
        containers = [self._container(guest, container) for guest in self.guests.values()
                      for container in guest.expected.containers.values()]
        return pods, containers

    def _pod(self, guest: Guest) -> Any:
        pid = 0 if guest.machine is None else guest.machine.pids[0]
        return nri_peer.pod(guest.id, name=guest.id[-6:], namespace="soak", uid=self._pod_uid(guest), pid=pid,
                            runtime_handler="kata")

    def _pod_uid(self, guest: Guest) -> str:
        return ""

    def _container(self, guest: Guest, container: Container) -> Any:
        return nri_peer.container(self.id(container.name), guest.id, listed(container.cpus), name=container.name)

    # Pods

    def begin(self, real: bool = False) -> None:
        """A pod: its VM runs before any source reports it, or some time after."""
        self.made["sandboxes"] += 1
        guest = Guest(self.id(f"s{self.made['sandboxes']:04}"), None, self._kind())
        early = self.rng.random() < 0.3 and guest.kind is not Kind.KATA  # its files have the VMM's pid
        with self.runtime.changing():
            self.guests[guest.id] = guest
            if early:
                self.runtime.report(Verb.RUN_POD, self._pod(guest))
        if early and self.rng.random() < 0.5:
            self.create(guest)
        vcpus = self.rng.randint(1, 4)
        if real:
            guest.machine = RealQemu(guest.id, vcpus, self.rng)
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
                self.runtime.report(Verb.RUN_POD, self._pod(guest))

    def _kind(self) -> Kind:
        return Kind.REPORTED

    def create(self, guest: Guest) -> bool | None:
        """A container, reported by the hook or over NRI, or by both. :returns: False when it cannot be done now; so do
        those below."""
        self.made["containers"] += 1
        container = Container(f"c{self.made['containers']:05}", self._cpus())
        reports = self.rng.choice(("both", "hook", "nri"))
        if reports != "nri":
            bundle = self.bundle(container.name, listed(container.cpus) or None)
            self._hook("createRuntime", self.state(guest.id, container.name, bundle))
        with self.runtime.changing():
            guest.expected.containers[container.name] = container
            if reports != "hook":
                self.runtime.report(Verb.POST_START, self._pod(guest), self._container(guest, container))
        return None

    def update(self, guest: Guest) -> bool | None:
        """Other CPUs for a container."""
        found = guest.expected.live()
        if not found:
            return False
        container = self.rng.choice(found)
        # A container without CPUs is not given some later: an empty cpuset in an update means no change.
        self.set_cpus(guest, container, self._cpus() or container.cpus)
        return None

    def hand_over(self) -> bool | None:
        """One container's own CPUs become another's, with no moment to settle between the two updates."""
        found = [(guest, container) for guest in self.guests.values() if not guest.ended
                 for container in guest.expected.live()]
        giving = [each for each in found if oracle.owned(each[1], self.pool)]
        taking = [each for each in found if not oracle.owned(each[1], self.pool)]
        if not giving or not taking:
            return False
        (giver, gives), (taker, takes) = self.rng.choice(giving), self.rng.choice(taking)
        cpus = gives.cpus
        self.set_cpus(giver, gives, self._shared())
        self.set_cpus(taker, takes, cpus)
        return None

    def set_cpus(self, guest: Guest, container: Container, cpus: Cpus | None) -> None:
        with self.runtime.changing():
            container.cpus = cpus
            self.runtime.report(Verb.POST_UPDATE, self._pod(guest), self._container(guest, container))

    def delete(self, guest: Guest, name: str = "", with_hook: bool = True) -> bool | None:
        """:param with_hook: whether the hook is called; the runtime reports to a connected plugin in any case."""
        if not guest.expected.containers:
            return False
        container = guest.expected.containers[name or self.rng.choice(list(guest.expected.containers))]
        with self.runtime.changing():
            del guest.expected.containers[container.name]
            self.runtime.report(Verb.STOP, self._pod(guest), self._container(guest, container))
            self.runtime.report(Verb.REMOVE, self._pod(guest), self._container(guest, container))
        bundle = self.top / "bundles" / self.id(container.name)
        if with_hook and bundle.exists():
            self._hook("poststop", self.state(guest.id, container.name, bundle))
        shutil.rmtree(bundle, ignore_errors=True)
        return None

    def remove(self, guest: Guest) -> bool | None:
        """The whole pod, in order."""
        for name in list(guest.expected.containers):
            self.delete(guest, name)
        self.end(guest)
        with self.runtime.changing():
            del self.guests[guest.id]
            self.removed.append(guest.id)
            self.runtime.report(Verb.STOP_POD, self._pod(guest))
            self.runtime.report(Verb.REMOVE_POD, self._pod(guest))
        return None

    def end(self, guest: Guest) -> None:
        """Its VM, and the agent in it."""
        if guest.machine is not None:
            guest.machine.end()
            guest.machine = None
        if guest.inside is not None:
            self.agents.end(guest.inside)
            guest.inside = None

    def _cpus(self) -> Cpus | None:
        """A container's: some that no other owns, some of the shared pool, or none at all."""
        free = self.free()
        if free and self.rng.random() < 0.6:
            return frozenset(self.rng.sample(free, self.rng.randint(1, min(3, len(free)))))
        return self._shared() if self.rng.random() < 0.8 else None

    def _shared(self) -> Cpus:
        return frozenset(self.rng.sample(sorted(self.pool), self.rng.randint(1, len(self.pool))))

    def options(self, **changes: Any) -> HookOptions:
        """A frozen watcher costs the hook its whole deadline."""
        return super().options(**({"deadline_ms": DEFAULT_DEADLINE_MS} if self.frozen else {}), **changes)

    def _hook(self, stage: str, state: dict[str, object]) -> None:
        """What the hook sends; when no watcher answers, the real hook is called, which leaves it in the spool."""
        answer = b""
        if not self.frozen:
            with contextlib.suppress(OSError):
                answer = talk(self.run / "hook.sock", self.message(stage, state))
        if answer != b"ok\n":
            self.made["spooled"] += 1
            for _ in range(50):  # after its deadline it has 20 ms for the spool, which a busy machine may take from it
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
