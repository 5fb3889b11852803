"""What the proc-events feed asks of passes."""

from dataclasses import dataclass, field

from vmpin.domain.model import SandboxId
from vmpin.vmm.virtual_machine import Vm


@dataclass
class FollowUp:
    """What events leave to be done by passes."""

    #: Sandboxes to reconcile now; and a moment later, as their new threads are in place already.
    now: set[SandboxId] = field(default_factory=set)
    soon: set[SandboxId] = field(default_factory=set)
    #: Sandboxes whose VMM has just started.
    started: set[SandboxId] = field(default_factory=set)
    #: Sandboxes with new threads whose names do not show their roles.
    unnamed: set[SandboxId] = field(default_factory=set)
    #: New kernel threads, which have no names yet.
    kernel_threads: set[int] = field(default_factory=set)
    #: New threads that may be the kernel's workers in a VMM (vhost): all that have not been named since.
    maybe_workers: dict[int, Vm] = field(default_factory=dict)
    #: Whether a process has become one that is followed, a helper, or none of these.
    processes_changed: bool = False
    #: Whether any event was of a followed process.
    relevant: bool = False
