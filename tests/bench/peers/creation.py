"""Part: what a real containerd takes to create a container, with a plugin of vmpin's or a peer's, or none.

The plugins follow one another in each round, at the same containerd with the same shared containers."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_node import cpu_seconds, cpus, node
from measure import CannotMeasure, progress

from peers import plugins
from peers.figures import VMPIN, Measure
from peers.plugins import FOLLOWING, OWN, Site

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "integration")]

NONE = "none"
#: Containers of one pod: each pod has a shim.
_IN_POD = 10
_PATIENCE = 300.0
#: Seconds after a container's end in which its plugin's work still counts, as that container's and not the next one's.
_TAIL = 0.3
#: Of each kind in a round.
_CONTAINERS = 2
#: As the kubelet has it for one whole CPU, and for a container without a request.
_WHOLE: Mapping[str, Any] = {"cpu_shares": 1024, "cpu_quota": 100_000, "cpu_period": 100_000}
_SHARED: Mapping[str, Any] = {"cpu_shares": 2}


class Node:
    """A containerd with shared containers. `times` by what was created, and the plugin; `cpu`: of the plugin's process
    for a container's whole life, in ms."""

    def __init__(self, containerd: Any, site: Site, shared: int) -> None:
        self._containerd, self._site = containerd, site
        self.times: dict[str, dict[str, list[float]]] = {}
        self.refused: dict[str, str] = {}
        self._numbers = 0
        for number in range(shared):
            if number % _IN_POD == 0:
                pod = containerd.pod(f"shared-{number}")
            pod.container(f"c{number}", **_SHARED)

    def round(self, name: str, count: int) -> None:
        """`count` containers of each kind with one plugin. One of each before does not count, but for the first with
        a CPU of its own, for which all others have to go from it."""
        with self._connected(name) as pid:
            self._life(name, "", False, 1, pid)
            self._life(name, "shared", False, count, pid)
            if name in OWN and name not in self.refused:
                self._life(name, "the first with a CPU of its own", True, 1, pid)
                self._life(name, "a CPU of its own", True, count, pid)

    def _life(self, name: str, kind: str, own: bool, count: int, pid: int) -> None:
        from cri import CriError  # here, as gRPC starts threads

        for _ in range(count):
            self._numbers += 1
            pod = self._containerd.pod(f"new-{self._numbers}", annotations=OWN[name] if own else {})
            used = cpu_seconds(pid) if pid else 0.0
            begin = time.perf_counter()
            try:
                container = pod.create("main", **(_WHOLE if own else _SHARED))
            except CriError as err:
                self._refuse(name, str(err.details())[:200])
                return
            finally:
                spent = (time.perf_counter() - begin) * 1000
            cpu_list = container.start().cgroup_cpus()
            pod.remove()
            if own and name != NONE and cpu_list != str(cpus()[1]):
                self._refuse(name, f"it gave the CPUs {cpu_list}")
                return
            if pid:
                time.sleep(_TAIL)
            if kind:
                self._add(f"creation of a container, {kind}", name, spent)
                if pid:
                    self._add(f"CPU time of a lifecycle, {kind}", name, 1000 * (cpu_seconds(pid) - used))

    def _refuse(self, name: str, why: str) -> None:
        self.refused[name] = f"{name} for containers with a CPU of their own: {why}"

    def _add(self, title: str, name: str, value: float) -> None:
        self.times.setdefault(title, {}).setdefault(name, []).append(value)

    @contextlib.contextmanager
    def _connected(self, name: str) -> Iterator[int]:
        """:returns: the plugin's pid; 0 for none."""
        if name == NONE:
            yield 0
            return
        already = self._synchronized()
        with plugins.started(self._site, name, self._containerd.nri_socket) as process:
            deadline = time.monotonic() + _PATIENCE
            while self._synchronized() == already:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise CannotMeasure(f"{name} does not connect: {self._site.tail(name)}")
                time.sleep(0.1)
            yield process.pid

    def _synchronized(self) -> int:
        """Plugins that containerd connected so far."""
        return len(re.findall(r'plugin \S+ connected', self._containerd.log()))


def creation(command: Path, binaries: Mapping[str, Path], sizes: Sequence[int],
             rounds: int) -> tuple[list[Measure], list[str]]:
    """:param sizes: how many shared containers there are.
    :param rounds: of plugins, with two containers of each kind."""
    from real_containerd import Containerd  # here, as gRPC starts threads

    peers = [name for name in plugins.BINARIES if name != "dra-driver-cpu"]  # its containers with CPUs have claims
    missing = plugins.left_out(binaries, peers)
    measures = []
    for shared in sizes:
        progress(f"starting containerd with {shared} shared containers")
        with contextlib.redirect_stdout(sys.stderr), Containerd() as containerd, node(command) as made:
            site = Site(made, containerd.top, containerd.enclosure, binaries, containerd.top / "cri.sock",
                        containerd.enclosure.enter)
            measured = Node(containerd, site, shared)
            for number in range(rounds):
                progress(f"round {number + 1} of {rounds}")
                for name in (NONE, VMPIN, FOLLOWING, *(name for name in peers if name in binaries)):
                    measured.round(name, _CONTAINERS)
        measures += [Measure(f"{title}, {shared} shared ones there", "ms", times, pairs=False)
                     for title, times in measured.times.items()]
        missing += [why for why in measured.refused.values() if why not in missing]
    return measures, missing
