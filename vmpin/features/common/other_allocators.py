"""Other programs that give out the CPUs of this node, by evidence that only programs of this node can leave: a
connection to its container runtime, a socket that answers in a directory of root's, its runtime's configuration. The
name of a process is none by itself: a program in any container may have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.facts import ALLOCATORS, Engine, OtherAllocator
from vmpin.features.common.socket_peers import peers, sockets_of
from vmpin.host.daemons import CONFIGURED, DAEMONS, kind_of, programs
from vmpin.host.files import Files
from vmpin.host.listening import answers
from vmpin.host.procfs import Procfs
from vmpin.runtime.engines import engines

#: Sockets of allocators on the node. koordlet: pkg/koordlet/runtimehooks/config.go; cri-resource-manager:
#: pkg/sockets/sockets.go.
_SOCKETS = {"/var/run/koordlet/koordlet.sock": "koordinator", "/var/run/cri-resmgr/cri-resmgr.sock": "cri-resmgr"}
#: dra-driver-cpu's registration with the kubelet (cmd/dracpu/app.go; dynamic-resource-allocation/kubeletplugin).
_DRA_SOCKETS = "plugins_registry/dra.cpu*-reg.sock"


class OtherAllocatorSearch:
    """:param files: the node's. :param sockets: the runtime's, for NRI and CRI. :param kubelet: its directory."""

    def __init__(self, proc: Procfs, files: Files, sockets: Sequence[Path], kubelet: Path) -> None:
        self._proc, self._files, self._sockets = proc, files, sockets
        self._kubelet = kubelet
        self._peers: dict[int, Path] | None = None
        self._of_runtime: tuple[OtherAllocator, ...] = ()

    def find(self) -> tuple[OtherAllocator, ...]:
        """Search now. Processes and the runtime's configuration are read only if the connections to the runtime have
        changed; vmpin's own changes whenever the runtime is restarted."""
        connected = peers(self._sockets)
        if connected != self._peers:
            self._peers = connected
            self._of_runtime = (*self._connected(connected), *self._configured())
        return (*self._answering(), *self._of_runtime)

    def _answering(self) -> Iterator[OtherAllocator]:
        for path in sorted(self._kubelet.glob(_DRA_SOCKETS)):
            if answers(path):
                yield OtherAllocator("dra-driver-cpu", f"it answers at {path}")
        for name, kind in _SOCKETS.items():
            if answers(self._files.host(name)):
                yield OtherAllocator(kind, f"it answers at {name}")

    def _connected(self, connected: dict[int, Path]) -> Iterator[OtherAllocator]:
        if not connected:
            return
        # CMK connects to no runtime.
        names = [name for name, kind in DAEMONS.items() if kind in ALLOCATORS and kind != "cmk"]
        for program in programs(self._proc, names):
            path = next(filter(None, map(connected.get, sockets_of(self._proc, program.pid))), None)
            if path is not None:
                yield OtherAllocator(DAEMONS[program.name],
                                     f"{program.name} (pid {program.pid}) is connected to {path}")

    def _configured(self) -> Iterator[OtherAllocator]:
        for engine in engines(self._files, programs(self._proc, CONFIGURED)):
            if engine.pid is not None:
                yield from self._installed(engine)
                yield from self._workloads(engine)

    def _installed(self, engine: Engine) -> Iterator[OtherAllocator]:
        """The plugins that a runtime starts by itself."""
        for name in self._files.names(engine.nri_plugins) if engine.nri is not False else ():
            kind = kind_of([name])
            if kind in ALLOCATORS:
                yield OtherAllocator(kind, f"{engine.name} starts {engine.nri_plugins}/{name}")

    def _workloads(self, engine: Engine) -> Iterator[OtherAllocator]:
        for workload, cpuset in engine.workloads.items():
            try:
                cpus = CpuSet.parse(cpuset)
            except CpuSetError:
                continue
            if cpus:
                yield OtherAllocator("CRI-O's workloads", f"its configuration gives CPUs {cpus} to pods of the "
                                     f"workload {workload}", cpus)
