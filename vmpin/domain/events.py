"""Events: what a source reports. `desired_state.reduce` decides what an event changes, vmm what a claim does.

Each event is a fact with a source and a time. Duplicates, late events and a wrong order are harmless.
"""

from __future__ import annotations

import enum

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId
from vmpin.named_tuple import NamedTuple


class Source(enum.IntEnum):
    """The source of a report about a container (`desired_state.authoritative_source` chooses the one that counts). The
    bundle has the CPUs at its creation, the other sources the current ones. The numbers are stored in the state
    file."""

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
    `init` is the container's first process on the host; a container in a VM has none. `from_list`: it comes from a
    runtime's list, whose CPUs may be old: CRI-O lists those of creation after its own restart, as it keeps updates in
    memory (internal/lib/container_server.go). `requested`: the runtime has been asked to create it, which may yet
    fail."""

    sandbox: SandboxId
    container: Container
    source: Source
    time: int
    bundle: str = ""
    init: ThreadId | None = None
    from_list: bool = False
    requested: bool = False


class CpusetSeen(NamedTuple):
    """A container's cpuset has changed to `cpuset`."""

    sandbox: SandboxId
    container: ContainerId
    cpuset: CpuSet
    source: Source
    time: int


class CpusetRequested(NamedTuple):
    """An update of a container's cpuset was requested from the runtime; it may still fail."""

    sandbox: SandboxId
    container: ContainerId
    cpuset: CpuSet


class RequestExpired(NamedTuple):
    """A request to the runtime has taken too long and no longer counts."""

    sandbox: SandboxId
    container: ContainerId


class ContainerStopped(NamedTuple):
    sandbox: SandboxId
    container: ContainerId
    time: int


class ContainerMisplaced(NamedTuple):
    """A container does not belong to this sandbox: the runtime reports it in sandbox `by`."""

    sandbox: SandboxId
    container: ContainerId
    by: SandboxId


class SandboxGone(NamedTuple):
    sandbox: SandboxId


class SuspensionChanged(NamedTuple):
    """The operator has suspended the placement of a sandbox (`vmpin unpin`), or resumed it (`vmpin repin`)."""

    sandbox: SandboxId
    suspended: bool


#: Events about an existing sandbox.
SandboxEvent = (SandboxSeen | ContainerSeen | CpusetSeen | CpusetRequested | RequestExpired | ContainerStopped
                | ContainerMisplaced | SuspensionChanged)
Event = SandboxEvent | SandboxGone


class VmmClaim(NamedTuple):
    """A source's claim that a process is a sandbox's VMM. It is accepted if the process still has `identity` (read
    when the claim was made), or if its command line has the sandbox's full id or the VM's full `uuid` ("" for none). A
    part of either is not enough, because any process may have it. `hypervisor` is the kind of VMM as Kata names it, ""
    if the source does not report it."""

    pid: int
    uuid: str = ""
    identity: ThreadId | None = None
    hypervisor: str = ""
