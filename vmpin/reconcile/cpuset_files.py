"""The cpuset.cpus files of cgroups that containers' first processes and VMMs are in: the watcher watches them, and has
them read when they were written.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.reconcile.intake import received
from vmpin.reconcile.node_state import NodeState


class CpusetFiles:
    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state
        #: The file of each process; None for a process in the top cgroup, or in none.
        self._file_of: dict[ThreadId, Path | None] = {}
        self._turn = -1  #: The pass in which cgroups were looked up last.

    def paths(self) -> set[Path]:
        """The files to watch. The cgroup of a process is looked up when the process is new, and then in one of sixteen
        passes."""
        cgroups, turn = self._node_state.cgroups, self._node_state.inventory.process_table.round
        processes = [*(init for _, _, init in self._node_state.state.with_processes()),
                     *(vm.vmm.id for vm in self._node_state.vms.values())]
        files: dict[ThreadId, Path | None] = {}
        for process in processes:
            if process in self._file_of and (turn == self._turn or (process.tid ^ turn) & 15):
                files[process] = self._file_of[process]
            else:
                path = cgroups.cpuset_path(process.tid)
                files[process] = None if path is None or cgroups.is_top(path) else cgroups.cpus_file(path)
        self._file_of, self._turn = files, turn
        return {path for path in files.values() if path is not None}

    def expect_moves(self, sandboxes: Iterable[SandboxId]) -> None:
        """Have the cgroups of sandboxes' VMMs looked up again: the runtime may have moved them, or soon will."""
        for sandbox in sandboxes:
            if (vm := self._node_state.vms.get(sandbox)) is not None:
                self._file_of.pop(vm.vmm.id, None)

    def read(self, written: Collection[Path]) -> set[SandboxId]:
        """Read the files that were written. :returns: the sandboxes they belong to."""
        node_state = self._node_state
        touched: set[SandboxId] = set()
        for sandbox, record, init in node_state.state.with_processes():
            if self._file_of.get(init) in written:
                touched.add(sandbox)
                node_state.apply_events(node_state.sources.cgroup(sandbox, record, init))
        for vm in node_state.vms.values():
            if self._file_of.get(vm.vmm.id) in written:
                touched.add(vm.sandbox)
                node_state.drift_evidence.written(vm.sandbox)
                node_state.pinner.recheck(vm.sandbox)
        return received("files", touched)
