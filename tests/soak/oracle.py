"""What must be so, from what a story did: the rules of placement as the documentation has them, written anew.

With the default policy. What the rules leave open (which vCPU gets which CPU) is left open here, too. Masks are exact,
so no thread may run on a CPU that another container owns: a story gives each CPU to one container at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Cpus = frozenset[int]


@dataclass
class Container:
    """`cpus` None: it was given none and lives on the shared pool. `ended`: its process is gone, it is not yet
    removed. `runtime`: a real one's name, "" where the container is only reported."""

    name: str
    cpus: Cpus | None
    runtime: str = ""
    ended: bool = False
    #: The watcher has processed a report of it.
    settled: bool = False


@dataclass
class Sandbox:
    """What the sources reported of a sandbox. `held`: unpinned by hand."""

    containers: dict[str, Container] = field(default_factory=dict)
    held: bool = False

    def live(self) -> list[Container]:
        return [container for container in self.containers.values() if not container.ended]


def mask(sandbox: Sandbox, pool: Cpus) -> Cpus:
    """S."""
    found: Cpus = frozenset()
    for container in sandbox.live():
        found |= container.cpus or pool
    return found or pool


def owned(container: Container, pool: Cpus) -> Cpus:
    """The CPUs that a container has to itself."""
    return container.cpus if container.cpus and not container.cpus & pool else frozenset()


def owners(sandbox: Sandbox, pool: Cpus) -> list[Cpus]:
    """The exclusive CPUs of each container that has some."""
    return [own for container in sandbox.live() if (own := owned(container, pool))]


def exclusive(sandbox: Sandbox, pool: Cpus) -> Cpus:
    """E."""
    return frozenset[int]().union(*owners(sandbox, pool))


def verdict(sandbox: Sandbox, vcpus: int, pool: Cpus) -> str:
    own = exclusive(sandbox, pool)
    if sandbox.held:
        return "off"
    if not own:
        return "floating"
    return "pinned" if vcpus >= len(own) + _has_shared(sandbox, pool) else "degraded"


def one_to_one(sandbox: Sandbox, vcpus: int, pool: Cpus) -> bool:
    """Whether each exclusive CPU has a vCPU of its own."""
    own = exclusive(sandbox, pool)
    return bool(own) and not sandbox.held and vcpus >= len(own)


def vcpu_masks(sandbox: Sandbox, count: int, pool: Cpus) -> Iterator[list[Cpus]]:
    """The masks that so many vCPUs may have together, in any order: several where the rules leave a choice."""
    whole, groups = mask(sandbox, pool), owners(sandbox, pool)
    own = exclusive(sandbox, pool)
    shared = _has_shared(sandbox, pool)
    if not own:
        yield [whole] * count
    elif count >= len(own):
        yield [frozenset((cpu,)) for cpu in own] + [(whole - own) or whole] * (count - len(own))
    elif count < len(groups) + shared:
        yield [whole] * count
    else:
        for sizes in _splits(count - shared, len(groups)):
            yield [each for group, size in zip(groups, sizes, strict=True) for each in [group] * size] + (
                [whole - own] * shared)


def wrong(sandbox: Sandbox, vcpus: Mapping[int, Cpus], others: Mapping[int, Cpus], pool: Cpus,
          everything: Cpus) -> list[str]:
    """In which way threads are not where they belong."""
    if sandbox.held:
        return [f"{thread} has {_text(has)}, and had everything before vmpin"
                for thread, has in _all(vcpus, others) if has != everything]
    whole, own = mask(sandbox, pool), exclusive(sandbox, pool)
    apart = (whole - own) or whole  # exclusive CPUs are left to the vCPUs
    found = [f"thread {tid} has {_text(has)} and not {_text(apart)}" for tid, has in others.items() if has != apart]
    have = sorted(map(sorted, vcpus.values()))
    choices = [sorted(map(sorted, choice)) for choice in vcpu_masks(sandbox, len(vcpus), pool)]
    if have not in choices:
        found.append(f"the vCPUs have {have} and not {' or '.join(map(str, choices))}")
    return found


def _has_shared(sandbox: Sandbox, pool: Cpus) -> bool:
    return any(not owned(container, pool) for container in sandbox.live())


def _splits(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """`count` as the sum of so many numbers, each at least one."""
    if parts == 1:
        yield (count,)
        return
    for first in range(1, count - parts + 2):
        for rest in _splits(count - first, parts - 1):
            yield (first, *rest)


def _all(vcpus: Mapping[int, Cpus], others: Mapping[int, Cpus]) -> Iterable[tuple[str, Cpus]]:
    yield from ((f"vCPU {vcpu}", has) for vcpu, has in vcpus.items())
    yield from ((f"thread {tid}", has) for tid, has in others.items())


def _text(cpus: Cpus) -> str:
    return ",".join(map(str, sorted(cpus))) or "nothing"
