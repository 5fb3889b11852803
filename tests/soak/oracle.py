"""What must be so, from what a story did: the rules of placement as the documentation has them, written anew.

With the default policy. What the rules leave open (which vCPU gets which CPU) is left open here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Cpus = frozenset[int]


@dataclass
class Container:
    """`cpus` None: it was given none and lives on the shared pool."""

    name: str
    cpus: Cpus | None


@dataclass
class Sandbox:
    """What the sources were told of a sandbox. `held`: unpinned by hand."""

    containers: dict[str, Container] = field(default_factory=dict)
    held: bool = False


def mask(sandbox: Sandbox, pool: Cpus) -> Cpus:
    """S."""
    found: Cpus = frozenset()
    for container in sandbox.containers.values():
        found |= container.cpus or pool
    return found or pool


def exclusive(sandbox: Sandbox, pool: Cpus) -> Cpus:
    """E."""
    found: Cpus = frozenset()
    for container in sandbox.containers.values():
        if container.cpus and not container.cpus & pool:
            found |= container.cpus
    return found


def verdict(sandbox: Sandbox, vcpus: int, pool: Cpus) -> str:
    own = exclusive(sandbox, pool)
    if sandbox.held:
        return "off"
    if not own:
        return "floating"
    shares = any(not container.cpus or container.cpus & pool for container in sandbox.containers.values())
    return "pinned" if vcpus >= len(own) + shares else "degraded"


def wrong(sandbox: Sandbox, vcpus: Mapping[int, Cpus], others: Mapping[int, Cpus], pool: Cpus,
          everything: Cpus) -> list[str]:
    """In which way threads are not where they belong."""
    if sandbox.held:
        return [f"{who} has {_text(has)}, and had everything before vmpin"
                for who, has in _all(vcpus, others) if has != everything]
    whole, own = mask(sandbox, pool), exclusive(sandbox, pool)
    apart = (whole - own) or whole  # exclusive CPUs are left to the vCPUs
    found = [f"thread {tid} has {_text(has)} and not {_text(apart)}" for tid, has in others.items() if has != apart]
    if not own:
        return found + [f"vCPU {vcpu} has {_text(has)} and not {_text(whole)}"
                        for vcpu, has in vcpus.items() if has != whole]
    if len(vcpus) < len(own):
        return found + [f"vCPU {vcpu} has {_text(has)}, which is not within {_text(whole)}"
                        for vcpu, has in vcpus.items() if not has or not has <= whole]
    spare = (whole - own) or whole
    pinned = sorted(tuple(has) for has in vcpus.values() if len(has) == 1 and has <= own)
    floating = [has for has in vcpus.values() if not (len(has) == 1 and has <= own)]
    if spare == own and len(own) == 1:  # the only CPU there is: who is pinned there and who floats looks the same
        return found + [f"a vCPU has {_text(has)} and not {_text(own)}" for has in vcpus.values() if has != own]
    if pinned != sorted((cpu,) for cpu in own):
        found.append(f"vCPUs are pinned to {[cpu for (cpu,) in pinned]} and not one to each of {_text(own)}")
    return found + [f"a spare vCPU has {_text(has)} and not {_text(spare)}" for has in floating if has != spare]


def _all(vcpus: Mapping[int, Cpus], others: Mapping[int, Cpus]) -> Iterable[tuple[str, Cpus]]:
    yield from ((f"vCPU {vcpu}", has) for vcpu, has in vcpus.items())
    yield from ((f"thread {tid}", has) for tid, has in others.items())


def _text(cpus: Cpus) -> str:
    return ",".join(map(str, sorted(cpus))) or "nothing"
