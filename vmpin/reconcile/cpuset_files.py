"""The cpuset.cpus files of cgroups that containers' first processes and VMMs are in, and of those above containers':
the watcher watches them, and has them read when they were written.
"""

from collections.abc import Container, Iterable, Iterator, Set
from pathlib import Path

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.reconcile.intake import received
from vmpin.reconcile.node_state import NodeState


class CpusetFiles:
    """:param watched: the files that are watched now."""

    def __init__(self, node_state: NodeState, watched: Container[Path] = ()) -> None:
        self._node_state, self._watched = node_state, watched
        #: The files of each process; none for a process in the top cgroup, or in none.
        self._files_of: dict[ThreadId, tuple[Path, ...]] = {}
        self._turn = -1  #: The pass in which cgroups were looked up last.
        #: The files of the cgroups that the last `paths` looked up.
        self.looked_up: set[Path] = set()
        node_state.sources.reports_writes = self._are_watched

    def _are_watched(self, process: ThreadId) -> bool:
        files = self._files_of.get(process, ())
        return bool(files) and all(file in self._watched for file in files)

    def paths(self) -> set[Path]:
        """The files to watch. The cgroup of a process is looked up when the process is new, and then in one of sixteen
        passes."""
        turn = self._node_state.inventory.process_table.round
        processes = {vm.vmm.id: False for vm in self._node_state.vms.values()}
        processes |= {init: True for _, _, init in self._node_state.state.with_processes()}
        files: dict[ThreadId, tuple[Path, ...]] = {}
        self.looked_up = set()
        for process, above in processes.items():
            before = self._files_of.get(process)
            if before is None or (turn != self._turn and not (process.tid ^ turn) & 15):
                before = tuple(self._files(process, above))
                self.looked_up.update(before)
            files[process] = before
        self._files_of, self._turn = files, turn
        return set().union(*files.values())

    def _files(self, process: ThreadId, above: bool) -> Iterator[Path]:
        """The file of a process's cgroup, and with `above` those of the cgroups above it: CPUs that these do not have
        are not effective below."""
        cgroups = self._node_state.cgroups
        path = cgroups.cpuset_path(process.tid)
        while path is not None and not cgroups.is_top(path):
            yield cgroups.cpus_file(path)
            path = path.parent if above else None

    def moved(self, sandboxes: Iterable[SandboxId]) -> bool:
        """Look up the cgroups of sandboxes' VMMs again, as the runtime may have moved them, or soon will.
        :returns: whether other files than before are to be watched, or one that did not exist before."""
        vmms = [vm.vmm.id for sandbox in sandboxes if (vm := self._node_state.vms.get(sandbox)) is not None]
        now = {vmm: tuple(self._files(vmm, above=False)) for vmm in vmms}
        moved = any(files != self._files_of.get(vmm) or any(file not in self._watched for file in files)
                    for vmm, files in now.items())
        self._files_of |= now
        return moved

    def read(self, written: Set[Path]) -> set[SandboxId]:
        """Read the files that were written. :returns: the sandboxes of containers with other CPUs, and of VMMs."""
        node_state = self._node_state
        of_processes = {process for process, files in self._files_of.items() if not written.isdisjoint(files)}
        touched: set[SandboxId] = set()
        for sandbox, record, init in node_state.state.with_processes():
            if init in of_processes:
                before = node_state.state
                node_state.apply_events(node_state.sources.cgroup_events(sandbox, record, init))
                if node_state.state is not before:
                    touched.add(sandbox)
        for vm in node_state.vms.values():
            if vm.vmm.id in of_processes:
                touched.add(vm.sandbox)
                node_state.drift_evidence.record_write(vm.sandbox)
                node_state.pinner.recheck(vm.sandbox)
        return received("files", touched)
