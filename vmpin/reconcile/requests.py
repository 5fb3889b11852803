"""For how long the runtime has been at work on an NRI request: a container's creation, or an update of its CPUs.

A request ends with the runtime's next report of the container. A failed update has no report, and neither has a
creation that fails together with the connection; so a request ends after a time limit at the latest.
"""

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import RequestExpired
from vmpin.domain.model import ContainerId, SandboxId

#: Seconds. The kubelet gives a runtime two minutes for a request (runtimeRequestTimeout), CRI-O's own limits
#: are four; an update takes milliseconds, or as long as Kata plugs in vCPUs and memory.
CREATION, UPDATE = 300.0, 60.0


class RuntimeRequests:
    """The requests of all containers."""

    def __init__(self) -> None:
        #: When each was first seen (monotonic): by container, and for an update by the CPUs that are asked for.
        self._since: dict[tuple[SandboxId, ContainerId, CpuSet | None], float] = {}

    def over(self, state: DesiredState, now: float) -> list[RequestExpired]:
        """The ones to give up. Those that are pending no more are forgotten. :param now: CLOCK_MONOTONIC in seconds.
        """
        pending: dict[tuple[SandboxId, ContainerId, CpuSet | None], float] = {}
        for sandbox in state.sandboxes.values():
            for container, record in sandbox.containers.items():
                if record.pending:
                    creation = record.requested or record.container.creating
                    asked = None if creation else record.container.requested_cpuset
                    pending[sandbox.id, container, asked] = CREATION if creation else UPDATE
        self._since = {key: self._since.get(key, now) for key in pending}
        return [RequestExpired(sandbox, container) for (sandbox, container, asked), limit in pending.items()
                if now - self._since[sandbox, container, asked] >= limit]
