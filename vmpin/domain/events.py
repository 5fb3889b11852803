"""Events: what a source reports. `desired_state.reduce` decides what an event changes, vmm what a claim does.

Each is a fact with its source and its time; sending one twice, late or in the wrong order does no harm.
"""

import enum
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId


class Source(enum.IntEnum):
    """Where a report of a container comes from (`desired_state.authoritative_source`: which one counts). The bundle
    has what it was created with, the others what it has now. The numbers are in the state file."""

    BUNDLE = 1
    CGROUP = 2
    KATA = 3
    NRI = 4

    @property
    def label(self) -> str:
        return self.name.lower()


class SandboxSeen(NamedTuple):
    """A sandbox exists. `runtime` is kata-go, kata-rs, vmm (found by its command line), nri or oci (from a hook).
    `vmm` is its VMM's main thread when the source is certain of it (a hook's pid, read while the hook ran). `handler`
    is the runtime handler that the pod asked for, "" when no source named one (or for the default one)."""

    sandbox: SandboxId
    runtime: str
    pod: Pod | None = None
    vmm: ThreadId | None = None
    handler: str = ""


class ContainerSeen(NamedTuple):
    """A container was created, started or updated. `time` (here and below) is CLOCK_BOOTTIME in ns of when it was so.
    `init` is the container's first process on the host; a container in a VM has none. `listed`: it comes from a
    runtime's list, whose CPUs may be old: CRI-O lists those of creation after its own restart, as it keeps updates in
    memory (internal/lib/container_server.go). `requested`: the runtime has been asked to create it, which may yet
    fail."""

    sandbox: SandboxId
    container: Container
    source: Source
    time: int
    bundle: str = ""
    init: ThreadId | None = None
    listed: bool = False
    requested: bool = False


class CpusetSeen(NamedTuple):
    """A container's cpuset is this now."""

    sandbox: SandboxId
    container: ContainerId
    cpuset: CpuSet
    source: Source
    time: int


class CpusetRequested(NamedTuple):
    """The runtime has been asked to give a container this cpuset, which may yet fail."""

    sandbox: SandboxId
    container: ContainerId
    cpuset: CpuSet


class RequestExpired(NamedTuple):
    """A request to the runtime has been under way for too long: it counts no longer."""

    sandbox: SandboxId
    container: ContainerId


class ContainerStopped(NamedTuple):
    sandbox: SandboxId
    container: ContainerId
    time: int


class ContainerMisplaced(NamedTuple):
    """The runtime has this container in another sandbox: it never was one of this sandbox.
    `by` is the sandbox that it belongs to."""

    sandbox: SandboxId
    container: ContainerId
    by: SandboxId


class SandboxGone(NamedTuple):
    sandbox: SandboxId


class SuspensionChanged(NamedTuple):
    """The operator has suspended the placement of a sandbox (`vmpin unpin`), or resumed it (`vmpin reconcile`)."""

    sandbox: SandboxId
    suspended: bool


#: What changes a sandbox that is there.
SandboxEvent = (SandboxSeen | ContainerSeen | CpusetSeen | CpusetRequested | RequestExpired | ContainerStopped
                | ContainerMisplaced | SuspensionChanged)
Event = SandboxEvent | SandboxGone


class VmmClaim(NamedTuple):
    """A source's claim that a process is a sandbox's VMM. It counts when `identity` (read when the claim was made) is
    still that process, or when its command line names the sandbox by its whole id, or the VM by `uuid` ("" for none):
    never a part of either, as any process may have that. `hypervisor` is the kind of VMM as Kata names it, "" where
    the source does not have it."""

    pid: int
    uuid: str = ""
    identity: ThreadId | None = None
    hypervisor: str = ""
