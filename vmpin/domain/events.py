"""What a source may say. An event is a fact with its source; `state.reduce` decides what becomes of it, and
`observe` what becomes of a claim."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId


class Source(enum.IntEnum):
    """Who said it; `state.decide` says whose word counts. The numbers stand in the state file.

    The bundle tells what a container was created with; its cgroup, Kata's own state and the runtime (NRI) what it has
    now.
    """

    BUNDLE = 1
    CGROUP = 2
    KATA = 3
    NRI = 4

    @property
    def label(self) -> str:
        return self.name.lower()


class SandboxSeen(NamedTuple):
    """A sandbox exists. `runtime` is kata-go, kata-rs, vmm (found by its command line), nri or oci (told by a hook).

    `vmm` is its VMM's main thread when the source knows it for sure (a hook's pid, looked at while it held).
    `handler` is the runtime handler that the pod asked for, "" when nobody said (or for the default one).
    """

    sandbox: SandboxId
    runtime: str
    pod: Pod | None = None
    vmm: ThreadId | None = None
    handler: str = ""


class ContainerSeen(NamedTuple):
    """A container was created, started or updated.

    `time` is CLOCK_BOOTTIME in ns when it was so. `init` is the container's own first process on the host, which a
    container in a VM has not. `listed`: it comes from a runtime's list, whose CPUs may be old: CRI-O lists those of
    creation after its own restart, as it keeps updates in memory (internal/lib/container_server.go). `requested`: the
    runtime has been asked to create it, which may yet fail.
    """

    sandbox: SandboxId
    container: Container
    source: Source
    time: int
    bundle: str = ""
    init: ThreadId | None = None
    listed: bool = False
    requested: bool = False


class CpusetSeen(NamedTuple):
    """A known container's cpuset is this now. `time` is CLOCK_BOOTTIME in ns of when it was so."""

    sandbox: SandboxId
    container: ContainerId
    cpuset: CpuSet
    source: Source
    time: int


@dataclass(frozen=True)
class CpusetRequested:
    """The runtime has been asked to give a container this cpuset, which may yet fail."""

    sandbox: SandboxId
    container: ContainerId
    cpuset: CpuSet


@dataclass(frozen=True)
class RequestExpired:
    """A request to the runtime has been under way for too long: nothing is believed of it any more."""

    sandbox: SandboxId
    container: ContainerId


class ContainerStopped(NamedTuple):
    sandbox: SandboxId
    container: ContainerId
    time: int


class ContainerMisplaced(NamedTuple):
    """The runtime has this container in another sandbox: here it was never one."""

    sandbox: SandboxId
    container: ContainerId


class SandboxGone(NamedTuple):
    sandbox: SandboxId


class SuspensionChanged(NamedTuple):
    """The operator took a sandbox out of vmpin's hands (`vmpin unpin`), or gave it back."""

    sandbox: SandboxId
    suspended: bool


Event = (SandboxSeen | ContainerSeen | CpusetSeen | CpusetRequested | RequestExpired | ContainerStopped |
ContainerMisplaced
         | SandboxGone | SuspensionChanged)


class VmmClaim(NamedTuple):
    """Somebody's word that a process is a sandbox's VMM.

    It counts when `identity` (read while the word was fresh) is still that process, or when its command line names the
    sandbox by its whole id, or the VM by `uuid` ("" for none): never for a part of either, which anyone's may hold.
    """

    pid: int
    uuid: str = ""
    identity: ThreadId | None = None
