"""What there is on the mixed node, as its story has it: pods, containers, and where their threads have to be."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.node_tests.machines import NestedVm
from vmpin.cpuset import EMPTY, CpuSet, union

POOL = CpuSet.parse("0-1")
OWNABLE = CpuSet.parse("2-7")
NODE = POOL | OWNABLE


class Kind(enum.StrEnum):
    RUNC = "runc pod"
    #: A VM whose containers a hook tells of: real ones on the host, annotated with the sandbox's id.
    HOOK = "VM by hook"
    #: A VM whose containers stand in persist.json.
    KATA = "VM by Kata"


@dataclass
class Container:
    """`cpus` is empty for one that nobody gave any. `ended`: its process is gone, it is not yet removed."""

    name: str
    runtime: str
    cpus: CpuSet
    ended: bool = False

    @property
    def exclusive(self) -> CpuSet:
        return self.cpus if self.cpus.isdisjoint(POOL) else EMPTY

    def __str__(self) -> str:
        return f"{self.name}({self.cpus or 'none'}{' ended' if self.ended else ''})"


@dataclass
class Pod:
    name: str
    kind: Kind
    sandbox: str
    containers: dict[str, Container] = field(default_factory=dict)
    vm: NestedVm | None = None
    #: Its VMM was killed.
    dead: bool = False
    #: QEMU's own word: thread ids of the vCPUs.
    vcpus: frozenset[int] = frozenset()

    @property
    def runs_vm(self) -> bool:
        return self.vm is not None and not self.dead

    def live(self) -> list[Container]:
        return [container for container in self.containers.values() if not container.ended]

    def exclusive(self) -> CpuSet:
        """E"""
        return union(container.exclusive for container in self.live())

    def mask(self) -> CpuSet:
        """S: the OR of the containers' CPUs; the pool for one without, and where there is none."""
        return union(container.cpus or POOL for container in self.live()) or POOL

    def vcpu_masks(self) -> list[list[CpuSet]]:
        """The masks that the vCPUs may have together, in any order: several where the rules leave a choice."""
        mask, owned, count = self.mask(), self.exclusive(), len(self.vcpus)
        groups = [container.exclusive for container in self.live() if container.exclusive]
        for_shared = int(any(not container.exclusive for container in self.live()))
        if not owned:
            return [[mask] * count]
        if count >= len(owned):
            return [[CpuSet([cpu]) for cpu in owned] + [(mask - owned) or mask] * (count - len(owned))]
        if count < len(groups) + for_shared:
            return [[mask] * count]
        return [[each for group, size in zip(groups, sizes, strict=True) for each in [group] * size]
                + [mask - owned] * for_shared
                for sizes in _splits(count - for_shared, len(groups))]

    def one_to_one(self) -> bool:
        return bool(self.exclusive()) and len(self.vcpus) >= len(self.exclusive())

    def __str__(self) -> str:
        state = "dead" if self.dead else f"{len(self.vcpus)} vCPUs" if self.vm is not None else ""
        return f"{self.name}[{self.kind}{', ' * bool(state)}{state}: {' '.join(map(str, self.containers.values()))}]"


def _splits(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """`count` as the sum of so many numbers, each at least one."""
    if parts == 1:
        yield (count,)
        return
    for first in range(1, count - parts + 2):
        for rest in _splits(count - first, parts - 1):
            yield (first, *rest)
