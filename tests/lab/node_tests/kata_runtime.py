"""A runtime and Kata, as far as a container's creation, update and end go: each step in the order in which containerd
2.1.9 and Kata 4.1.0's Go shim take it, over a real NRI connection, a real cpuset cgroup and Kata's own file.

The VMM is a stand-in: Python under QEMU's name, whose vCPU threads come and go on command in milliseconds.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from nri_peer import NriRuntime, container, pod

from lab.node_tests.machines import Kata
from lab.node_tests.test_changes import CpusetCgroup
from vmpin.cpuset import CpuSet, union
from vmpin.host.procfs import Procfs
from vmpin.wire.nri_enums import CREATED, RUNNING, Verb
from vmpin.wire.nri_messages import MESSAGES

_VMM = """
import sys, threading
ends = {}
def vcpu(number, there):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write(f"CPU {number}/KVM")
    print(threading.get_native_id(), flush=True)
    ends[number][0].wait()
for line in sys.stdin:
    what, number = line.split()
    if what == "plug":
        ended = threading.Event()
        ends[number] = ended, threading.Thread(target=vcpu, args=(number, None))
        ends[number][1].start()
    else:
        ended, thread = ends.pop(number)
        ended.set()
        thread.join()
        print(0, flush=True)
"""


class Vmm:
    """With a boot vCPU, 0."""

    def __init__(self) -> None:
        self.sandbox = secrets.token_hex(32)
        argv = ["qemu-system-x86_64", "-c", _VMM, "-name", f"sandbox-{self.sandbox},debug-threads=on", "-smp",
                "1,cores=1,threads=1,sockets=8,maxcpus=8"]
        self._process = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self.vcpus: dict[int, int] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def plug(self, number: int) -> None:
        self.vcpus[number] = self._ask(f"plug {number}")

    def unplug(self, number: int) -> None:
        self._ask(f"unplug {number}")
        del self.vcpus[number]

    def tids(self) -> list[int]:
        return sorted(map(int, Procfs().tids(self.pid)))

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Vmm:
        self.plug(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


class KataRuntime:
    """The containers of one VM; the sandbox's cgroup has the union of their CPUs."""

    def __init__(self, nri: NriRuntime, vm: Vmm, cgroup: CpusetCgroup, kata: Kata) -> None:
        self.nri, self.vm, self.cgroup, self.kata = nri, vm, cgroup, kata
        self.cpus: dict[str, str] = {}
        #: By name: no two containers have one id, whatever their names.
        self._ids: dict[str, str] = {}
        self._pod = pod(vm.sandbox, pid=vm.pid, uid="uid-1")

    def create(self, name: str, cpus: str, vcpus: Iterable[int] = ()) -> None:
        """From CRI's CreateContainer to the end of StartContainer."""
        self._ids[name] = secrets.token_hex(32)
        self._call("CreateContainer", name, cpus, CREATED)
        self._report(Verb.POST_CREATE, name, cpus, CREATED)
        # Task create: vCPUs first, then the cgroup, then the state (virtcontainers/sandbox.go, CreateContainer).
        for number in vcpus:
            self.vm.plug(number)
        self.cpus[name] = cpus
        self._write()
        self._report(Verb.START, name, cpus, CREATED)
        self._report(Verb.POST_START, name, cpus, RUNNING)

    def fail(self, name: str, cpus: str) -> None:
        """A creation that comes to nothing."""
        self._ids[name] = secrets.token_hex(32)
        self._call("CreateContainer", name, cpus, CREATED)
        self._report(Verb.REMOVE, name, cpus, CREATED)

    def update(self, name: str, cpus: str) -> None:
        request = MESSAGES["UpdateContainerRequest"](pod=self._pod, container=self._container(name, self.cpus[name]))
        request.linux_resources.cpu.cpus = cpus
        assert self.nri.call("UpdateContainer", request).code == 0
        self.cpus[name] = cpus
        self._write()
        self._report(Verb.POST_UPDATE, name, cpus, RUNNING)

    def end(self, name: str) -> None:
        """Its process has ended: the task is deleted before anything is reported. Its vCPUs stay."""
        cpus = self.cpus.pop(name)
        self._write()
        self._call("StopContainer", name, cpus, RUNNING)
        self._report(Verb.REMOVE, name, cpus, RUNNING)

    def unplug(self, vcpus: Iterable[int]) -> None:
        """As Kata does when an update takes CPU time away."""
        for number in vcpus:
            self.vm.unplug(number)

    def _write(self) -> None:
        self.cgroup.set(str(union(map(CpuSet.parse, self.cpus.values()))))
        self.kata.write(self.vm, self.cpus, ids=self._ids)

    def _container(self, name: str, cpus: str, state: int = RUNNING) -> Any:
        return container(self._ids[name], self.vm.sandbox, cpus, state, name=name, pid=self.vm.pid)

    def _call(self, method: str, name: str, cpus: str, state: int) -> None:
        reply = self.nri.call(method, MESSAGES["EventRequest"](
            pod=self._pod, container=self._container(name, cpus, state)))
        assert (reply.code, reply.payload) == (0, b"")

    def _report(self, event: int, name: str, cpus: str, state: int) -> None:
        assert self.nri.state_change(event, self._pod, self._container(name, cpus, state)).code == 0
