"""The interfaces of what samples the run times of VMs' threads, and of the features that use each sample. Pure."""

from typing import Protocol

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId


class SampleSource(Protocol):
    """Takes the samples."""

    def round(self) -> None:
        """Sample all VMs at once."""

    def sample(self, sandbox: SandboxId) -> None:
        """Sample one VM at once, if there is one."""


class RunListener(Protocol):
    """Receives the result of each sample."""

    def round_begins(self) -> None:
        """All VMs are about to be sampled, one after the other."""

    def ran(self, sandbox: SandboxId, spent: int, cpu: int, stayed: bool, place: CpuSet | None) -> None:
        """A thread ran `spent` ns and was on `cpu` in the end. :param stayed: it was there all the time.
        :param place: its placement at the sample before; None also where that has changed."""

    def unplaced(self, sandbox: SandboxId, spent: int) -> None:
        """A process's run time grew by `spent` ns more than those of its threads; below zero: by less."""

    def sampled(self, sandbox: SandboxId) -> None:
        """All threads of a VM have been sampled."""

    def round_ended(self) -> None:
        """All VMs have been sampled."""

    def go_on(self, budget: float) -> bool:
        """Go on for some seconds with work of its own, between two rounds. :returns: whether there is more of it."""

    def close(self) -> None:
        """No more samples are taken."""
