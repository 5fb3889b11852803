"""Ownership of the node's CPUs, from all its containers: exclusive CPUs, the shared pool, and contested CPUs.

Pure. Containers of runc pods count like those of VM sandboxes: their exclusive CPUs are theirs. Which CPUs are
a container's own, and what the shared pool is, the authorities decide (rulings).
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import writer_of
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId
from vmpin.domain.topology import Topology


class Node(NamedTuple):
    """The machine. `shared_pool` is the kubelet's default set or the configured one: empty where the kubelet's static
    policy has assigned every CPU, None where there is neither; `housekeeping` are the CPUs for threads whose policy is
    housekeeping, empty without any."""

    topology: Topology
    shared_pool: CpuSet | None = None
    housekeeping: CpuSet = EMPTY

    @property
    def online(self) -> CpuSet:
        return self.topology.online


class CpuClaims(NamedTuple):
    """The CPUs that one sandbox's live containers claim, cut to the online ones."""

    #: The exclusive containers, in the sandbox's order, with their CPUs.
    exclusive: tuple[tuple[ContainerId, CpuSet], ...]
    #: The shared containers with their CPUs, None for one that has no cpuset and lives on the shared pool.
    shared: tuple[tuple[ContainerId, CpuSet | None], ...]
    #: Of containers of either kind whose cpuset is yet to be rewritten: the one they still have.
    stale: tuple[tuple[ContainerId, CpuSet], ...] = ()
    #: The exclusive containers that the runtime is creating: vCPUs may be plugged in for them.
    creating: frozenset[ContainerId] = frozenset()
    #: Whether the runtime is working on a request: a container's creation, or an update.
    pending: bool = False
    #: The program that is to rewrite the stale cpusets, as texts name it.
    writer: str = ""

    @property
    def cpus(self) -> CpuSet:
        """E: the CPUs that are exclusively this sandbox's."""
        return union(cpus for _, cpus in self.exclusive)

    @property
    def groups(self) -> tuple[tuple[tuple[ContainerId, ...], CpuSet], ...]:
        """The exclusive containers, together where they have CPUs in common (of one pod: the kubelet hands an init
        container's on to the next, and with pod-level resources lists several with the same), with those CPUs."""
        found: list[tuple[tuple[ContainerId, ...], CpuSet]] = []
        for container, cpus in self.exclusive:
            met = [group for group in found if not group[1].isdisjoint(cpus)]
            if not met:
                found.append(((container,), cpus))
                continue
            members = tuple(each for others, _ in met for each in others)
            joined = ((*members, container), union([cpus, *(group for _, group in met)]))
            found = [joined if group is met[0] else group for group in found if group is met[0] or group not in met]
        return tuple(found)


def is_counted(container: Container) -> bool:
    """Whether a container counts: created or running, and not the sandbox's own pause container."""
    return container.state is not ContainerState.STOPPED and not container.pause


def is_exclusive(container: Container) -> bool:
    """Whether an effective container (rulings.effective_containers) owns CPUs."""
    return bool(container.cpuset and container.exclusive)


def claims_of(containers: Iterable[Container], node: Node) -> CpuClaims:
    """Return what a sandbox's effective containers claim."""
    exclusive: list[tuple[ContainerId, CpuSet]] = []
    shared: list[tuple[ContainerId, CpuSet | None]] = []
    stale = []
    coming: set[ContainerId] = set()
    pending, writer = False, ""
    for container in containers:
        if not is_counted(container):
            continue
        pending = pending or container.creating or container.requested_cpuset is not None
        if container.stale_cpuset:
            stale.append((container.id, container.stale_cpuset & node.online))
            writer = writer_of(container.ruled_by)
        if is_exclusive(container):
            exclusive.append((container.id, container.own_cpus & node.online))
            if container.spare & node.online:
                shared.append((container.id, container.spare & node.online))
            coming |= {container.id} if container.creating else set()
        else:
            # While an update is under way a shared container may be on its old CPUs and on the new ones. Ownership
            # does not change before the update has been done.
            asked = container.requested_cpuset
            cpus = container.cpuset | asked if container.cpuset and asked else container.cpuset
            # An empty cpuset means none: such a container runs on the pool.
            shared.append((container.id, cpus & node.online if cpus else None))
    return CpuClaims(tuple(exclusive), tuple(shared), tuple(stale), frozenset(coming), pending, writer)


class Ownership(NamedTuple):
    """The CPUs of the node, by owner."""

    claims: Mapping[SandboxId, CpuClaims]
    #: All exclusive CPUs of the node.
    exclusive: CpuSet
    #: P: without exclusive CPUs, unless the kubelet or the operator put one there.
    pool: CpuSet
    #: The pod uid of sandboxes that runtimes reported; claims of pods that only the kubelet reports are by that uid.
    pods: Mapping[SandboxId, str] = MappingProxyType({})

    def foreign(self, sandbox: SandboxId) -> CpuSet:
        """CPUs that belong to other pods only: no thread of `sandbox` may be put there."""
        mine = self.claims.get(sandbox)
        foreign = self.exclusive if mine is None else self.exclusive - mine.cpus
        return foreign - self.rest_of_pod(sandbox)

    def rest_of_pod(self, sandbox: SandboxId) -> CpuSet:
        """The CPUs that the kubelet gives the pod of a sandbox and that none of its known containers owns: the pod has
        them as a whole, or for containers that are yet to be created."""
        rest = self.claims.get(SandboxId(self.pods.get(sandbox, "")))
        return EMPTY if rest is None or rest is self.claims.get(sandbox) else rest.cpus

    def owner_names(self, cpu: int) -> str:
        """Return a CPU's owners as a text."""
        return " and ".join(f"{container} of {sandbox}" if container else f"pod {sandbox}"
                            for sandbox, container in self.owners(cpu))

    def owners(self, cpu: int) -> list[tuple[SandboxId, ContainerId]]:
        return [(sandbox, container) for sandbox, claim in self.claims.items()
                for container, cpus in claim.exclusive if cpu in cpus]


def with_unreported(all_claims: Mapping[SandboxId, CpuClaims], unreported: Mapping[tuple[str, str], CpuSet],
                    online: CpuSet) -> Mapping[SandboxId, CpuClaims]:
    """Add the claims of containers that only an authority lists.
    :param unreported: CPUs by pod uid and container's name."""
    more: dict[SandboxId, CpuClaims] = {}
    for (uid, name), cpus in unreported.items():
        pod = SandboxId(uid)
        old = more.get(pod, CpuClaims((), ()))
        more[pod] = CpuClaims((*old.exclusive, (ContainerId(name), cpus & online)), ())
    return {**all_claims, **more} if more else all_claims


def ownership(all_claims: Mapping[SandboxId, CpuClaims], node: Node,
              pods: Mapping[SandboxId, str] | None = None) -> Ownership:
    """Join the claims of every sandbox. P unknown, or wholly offline, is the online CPUs minus every exclusive one; an
    empty one is empty: the kubelet's is for a moment between its two writes, and the CPUs outside it may be reserved.
    :param pods: pod uids by sandbox."""
    exclusive = union(cpus for claim in all_claims.values() for _, cpus in claim.exclusive)
    pool, unowned = node.shared_pool, node.online - exclusive
    pool = unowned if pool is None else (pool and (pool & node.online or unowned))
    return Ownership(all_claims, exclusive, pool, pods or {})


class Collision(NamedTuple):
    """A CPU on which more work may run than its owner agreed to."""

    cpu: int
    sandboxes: tuple[SandboxId, ...]
    what: str


def find_collisions(own: Ownership, vms: Collection[SandboxId] = ()) -> list[Collision]:
    """CPUs that containers of two pods own, and CPUs that one pod owns and another's cpuset reaches. What containers
    of one pod have in common is that pod's. vmpin causes none of this: the kubelet (or another program that assigns
    CPUs) contradicts itself, at least for a moment (it narrows running shared containers up to ten seconds after it
    has assigned a CPU).
    :param vms: the sandboxes whose cpusets count for nothing here, as no process runs by them: VMs whose threads are
        looked at one by one."""
    found = []
    seen = twice = EMPTY
    for claim in own.claims.values():
        twice |= seen & claim.cpus
        seen |= claim.cpus
    for cpu in twice:
        sandboxes = _distinct(sandbox for sandbox, _ in own.owners(cpu))
        # A pod whose sandbox is created again has two for a while.
        if len({own.pods.get(sandbox) or sandbox for sandbox in sandboxes}) > 1:
            found.append(Collision(cpu, sandboxes, f"exclusive to {own.owner_names(cpu)}"))
    for sandbox, claim in own.claims.items():
        if sandbox in vms:
            continue
        foreign = own.foreign(sandbox)
        stale = dict(claim.stale)
        shared = [(container, cpus) for container, cpus in claim.shared if container not in stale]
        late = f"cpuset, which {claim.writer} has yet to rewrite,"
        for what, reaching in (("shared cpuset", shared), (late, claim.stale)):
            for container, cpus in reaching:
                for cpu in (cpus or EMPTY) & foreign:
                    text = f"exclusive to {own.owner_names(cpu)}, but in the {what} of {container} of {sandbox}"
                    found.append(Collision(cpu, _distinct([*(each for each, _ in own.owners(cpu)), sandbox]), text))
    return sorted(found, key=lambda collision: (collision.cpu, collision.sandboxes))


def _distinct(sandboxes: Iterable[SandboxId]) -> tuple[SandboxId, ...]:
    return tuple(dict.fromkeys(sandboxes))
