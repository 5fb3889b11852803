"""What speaks with a guest, from the host: with vmpin's own agent, and with Kata's. The guest is not trusted: what it
says is shown, with limits, and never a reason to change anything on the host. What stays out: how to reach it
(channel/), and what it is to be told (guestmap)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId

#: What the status shows of a container, beside "unknown". With the last two, `error` says why.
APPLIED, PENDING, NO_AGENT, SENT = "applied", "pending", "no agent", "sent"
LEFT_ALONE, ERROR = "left alone", "error"


@dataclass(frozen=True)
class ContainerReport:
    """What is known about one container in the guest: `state` is one of the words above; `error` says more. CPUs are
    the guest's own numbers."""

    state: str
    error: str = ""
    cgroup: str = ""
    wanted: CpuSet = EMPTY
    effective: CpuSet = EMPTY
    processes: int = 0
    threads: int = 0
    outside: tuple[int, ...] = ()

    @property
    def word(self) -> str:
        """For a table: the state, or what is wrong."""
        return f"{self.state}: {self.error}" if self.error else self.state

    def data(self) -> dict[str, object]:
        """For the status document; `text` is what a table shows."""
        return {"state": self.state, "error": self.error, "cgroup": self.cgroup or None,
                "wanted": _shown(self.wanted), "effective": _shown(self.effective), "processes": self.processes,
                "threads": self.threads, "outside": list(self.outside), "text": self.word}


def _shown(cpus: CpuSet) -> str:
    """Only here, where somebody asks, and not what no guest has: to write down a guest's thousands takes long."""
    return str(cpus) if len(cpus) <= 1024 else f"{len(cpus)} CPUs"


class GuestError(Exception):
    """Why a connection to a guest ended, in words for the status."""


class NoAgentFound(GuestError):
    """Nobody is there who speaks the protocol."""


class SessionEnded(GuestError):
    """Somebody was there a moment ago."""


@dataclass
class GuestCounters:
    """Of one guest, for the status and for metrics."""

    connects: int = 0
    pushes: int = 0
    answers: int = 0
    #: Connections ended because what came was not the protocol, or too much of it.
    refused: int = 0
    last_error: str = ""


@dataclass(frozen=True)
class GuestReport:
    """A guest's part in the status. `by` is who sets its containers' CPUs, "" while nobody answers; `state` is how it
    is reached, or why it is not; `odd` when somebody answers, and not as he should; `system` are the guest's own
    processes."""

    by: str = ""
    state: str = ""
    containers: Mapping[ContainerId, ContainerReport] = field(default_factory=dict)
    system: ContainerReport | None = None
    counters: GuestCounters = field(default_factory=GuestCounters)
    odd: bool = False

    def of(self, container: ContainerId) -> ContainerReport:
        found = self.containers.get(container)
        if found is not None:
            return found
        if self.by:
            return ContainerReport(PENDING)
        return ContainerReport(ERROR, self.state) if self.odd else ContainerReport(NO_AGENT)

    def data(self) -> dict[str, object]:
        """For the status document, beside each container's own `ContainerReport.data`."""
        return {"by": self.by, "state": self.state, "system": None if self.system is None else self.system.data(),
                **asdict(self.counters)}


#: For the status document: the guest itself, and what it says of each container.
GuestData = tuple[dict[str, object], dict[ContainerId, dict[str, object]]]
