"""What the allocator's ledger means for placement: which containers own which CPUs, and the pool.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId


class GrantedCpus(NamedTuple):
    """`exclusive`: the CPUs that are a container's own. `spare`: pool CPUs that its cpuset has besides those, for a
    VM's spare vCPUs and other threads. `shared`: the containers whose CPUs are no one's own, with their cpuset; None
    for one that has none of its own, as in a VM: it is kept on the pool by the affinity of the VM's threads."""

    exclusive: Mapping[ContainerId, CpuSet] = MappingProxyType({})
    spare: Mapping[ContainerId, CpuSet] = MappingProxyType({})
    shared: Mapping[ContainerId, CpuSet | None] = MappingProxyType({})
    pool: CpuSet = EMPTY

    def apply(self, containers: tuple[Container, ...]) -> tuple[Container, ...]:
        """The live containers of a sandbox with the CPUs that the ledger gives them; one that it does not have stays
        as its sources report it."""
        return tuple(self._of(container) for container in containers)

    def _of(self, container: Container) -> Container:
        own = self.exclusive.get(container.id)
        if own:
            spare = self.spare.get(container.id, EMPTY)
            return container._replace(exclusive=True, cpuset=own | spare, spare=spare)
        return container._replace(exclusive=False) if container.id in self.shared else container
