"""The report of a guest: the state of each container in it, the connection to its agent, and counters.

Pure values. The guest is not trusted: its reports are shown, with limits, and change nothing on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId

#: The states of a container, beside "unknown". With the last two, `error` gives the reason.
APPLIED, PENDING, NO_AGENT, SENT = "applied", "pending", "no agent", "sent"
LEFT_ALONE, ERROR = "left alone", "error"


@dataclass(frozen=True)
class ContainerReport:
    """One container in the guest. CPUs are the guest's numbers."""

    state: str
    error: str = ""
    cgroup: str = ""
    wanted: CpuSet = EMPTY
    effective: CpuSet = EMPTY
    processes: int = 0
    threads: int = 0
    outside: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The state, and the error if there is one, for a table."""
        return f"{self.state}: {self.error}" if self.error else self.state

    def data(self) -> dict[str, object]:
        """Return the report for the status document; `text` is for tables."""
        return {"state": self.state, "error": self.error, "cgroup": self.cgroup or None,
                "wanted": _shown(self.wanted), "effective": _shown(self.effective), "processes": self.processes,
                "threads": self.threads, "outside": list(self.outside), "text": self.text}


def _shown(cpus: CpuSet) -> str:
    """The CPU list, or only the count of an implausibly long one, which would take long to write."""
    return str(cpus) if len(cpus) <= 1024 else f"{len(cpus)} CPUs"


@dataclass
class GuestCounters:
    """Counters of one guest, for the status and for metrics."""

    connects: int = 0
    pushes: int = 0
    answers: int = 0
    #: Connections ended because the guest sent something other than the protocol, or too much.
    refused: int = 0
    last_error: str = ""


@dataclass(frozen=True)
class GuestReport:
    """A guest's part in the status. `by` is the agent that sets its containers' CPUs, "" while none answers; `state`
    is the way to the agent, or why there is none; `foreign`: something answers that does not use the protocol;
    `system` are the guest's own processes."""

    by: str = ""
    state: str = ""
    containers: Mapping[ContainerId, ContainerReport] = field(default_factory=dict)
    system: ContainerReport | None = None
    counters: GuestCounters = field(default_factory=GuestCounters)
    foreign: bool = False

    def of(self, container: ContainerId) -> ContainerReport:
        """The container's report, or one that follows from the guest's state."""
        if container in self.containers:
            return self.containers[container]
        if self.by:
            return ContainerReport(PENDING)
        return ContainerReport(ERROR, self.state) if self.foreign else ContainerReport(NO_AGENT)

    def data(self) -> dict[str, object]:
        """Return the report for the status document, beside each container's own `ContainerReport.data`."""
        return {"by": self.by, "state": self.state, "system": None if self.system is None else self.system.data(),
                **asdict(self.counters)}


#: For the status document: the guest itself, and each container's report.
GuestData = tuple[dict[str, object], dict[ContainerId, dict[str, object]]]
