"""The work that the proc-events feed leaves to passes."""

from dataclasses import dataclass, field

from vmpin.domain.model import SandboxId
from vmpin.vmm.virtual_machine import Vm


@dataclass
class FollowUp:
    """Sandboxes and threads that need a pass after some events."""

    #: Sandboxes to reconcile now, and a moment later because their new threads are in place already.
    now: set[SandboxId] = field(default_factory=set)
    soon: set[SandboxId] = field(default_factory=set)
    #: Sandboxes whose VMM has just started.
    started: set[SandboxId] = field(default_factory=set)
    #: Sandboxes with new threads whose names do not show their roles.
    unnamed: set[SandboxId] = field(default_factory=set)
    #: New kernel threads, which have no names yet.
    kernel_threads: set[int] = field(default_factory=set)
    #: New threads of VMMs that may be kernel workers (vhost): those without a COMM event since.
    maybe_workers: dict[int, Vm] = field(default_factory=dict)
    #: Whether the set of followed processes and helpers has changed.
    processes_changed: bool = False
    #: Whether any event was of a followed process.
    relevant: bool = False
