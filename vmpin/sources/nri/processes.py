"""The processes with the pids that the runtime reports in NRI's events.

Each is looked up in /proc once, and not at each event of its container.
"""

from __future__ import annotations

from collections.abc import Iterator

from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.events import ContainerSeen, Source
from vmpin.domain.model import ContainerId, SandboxId, ThreadId
from vmpin.host.procfs import Procfs
from vmpin.sources.nri.nri_events import NriContainer, NriPod
from vmpin.sources.pids import PidOwner, owner_of

_NONE = 0, PidOwner()


class NriProcesses:
    """`postponed` is to be called at each resync."""

    def __init__(self, proc: Procfs) -> None:
        self._proc = proc
        #: The pid of each pod, and the process: its VMM, or another one, such as runc's pause process.
        self._pods: dict[SandboxId, tuple[int, PidOwner]] = {}
        #: The processes that were not looked up yet: pod, pid, and when it was reported (CLOCK_BOOTTIME ns).
        self._postponed: dict[ContainerId, tuple[SandboxId, int, int]] = {}

    def vmm_of(self, pod: NriPod, sandbox: SandboxState | None) -> ThreadId | None:
        """The VMM of a pod, None for a pod without one. :param sandbox: the pod in the state.
        :raises OSError: as `owner_of`."""
        if sandbox is not None and sandbox.vmm is not None and sandbox.vmm.tid == pod.pid:
            return sandbox.vmm
        pid, owner = self._pods.get(pod.id, _NONE)
        if pid == pod.pid:
            return owner.vmm
        owner = owner_of(pod.pid, self._proc, pod.id)
        # A process without arguments may be in the middle of executing a VMM, and a shim is no pod's own process.
        # One in a pid namespace of its own is no VMM, and its arguments may not be readable for ever (is_containers).
        if owner.vmm is not None or (owner.init is not None and (
                self._proc.nested(pod.pid) or self._proc.beginning(pod.pid))):
            self._pods[pod.id] = pod.pid, owner
        return owner.vmm

    def unrecognized(self, pod: SandboxId) -> ThreadId | None:
        """The process of a pod that was reported last, if it is neither a VMM nor a shim; it may have ended."""
        return self._pods.get(pod, _NONE)[1].init

    def init_of(self, container: NriContainer, sandbox: SandboxState | None, time_ns: int) -> ThreadId | None:
        """A container's first process on the host; None for a container in a VM, and for one that is left to
        `postponed`: without a cpuset of its own, in a pod that is no VM, it is not needed before the next resync.
        :param sandbox: its pod in the state. :param time_ns: when it was reported (CLOCK_BOOTTIME).
        :raises OSError: as `owner_of`."""
        pid, owner = self._pods.get(container.pod, _NONE)
        vmm = owner.vmm or (sandbox and sandbox.vmm)
        if not container.pid or vmm is not None:  # then the pid is the VMM's (Kata), or one in the guest (Kuasar)
            return None
        record = sandbox and sandbox.containers.get(container.id)
        if record is not None and record.init is not None and record.init.tid == container.pid:
            return record.init  # no container is started twice
        if pid and container.cpus is None:
            self._postponed[container.id] = container.pod, container.pid, time_ns
            return None
        return owner_of(container.pid, self._proc, container.pod).init

    def postponed(self, state: DesiredState) -> Iterator[ContainerSeen]:
        """Look the postponed processes up. A pid that another process has by now is none of a container's.
        :raises OSError: as `owner_of`; the next call goes on."""
        while self._postponed:
            container, (pod, pid, time_ns) = next(iter(self._postponed.items()))
            sandbox = state.sandboxes.get(pod)
            record = None if sandbox is None else sandbox.containers.get(container)
            if record is not None and not record.stopped and record.init is None:
                init = owner_of(pid, self._proc, pod, time_ns).init
                yield ContainerSeen(pod, record.container._replace(cpuset=None), Source.NRI, record.time, init=init,
                                    requested=record.requested)
            del self._postponed[container]

    def forget(self, pod: SandboxId) -> None:
        """Forget a pod that is gone."""
        self._pods.pop(pod, None)
