"""The owners of the node's CPUs, from the effective containers (`rulings`) of all pods, runc's too: exclusive CPUs,
the shared pool, and collisions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import writer_of
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId
from vmpin.domain.topology import Topology
from vmpin.named_tuple import NamedTuple


class Node(NamedTuple):
    """The machine. `shared_pool` is the kubelet's default set or the configured one, EMPTY if the kubelet's static
    policy has assigned every CPU, None without either; `housekeeping` are the CPUs for threads with the policy
    housekeeping; `recent` are CPUs without an owner that had one recently."""

    topology: Topology
    shared_pool: CpuSet | None = None
    housekeeping: CpuSet = EMPTY
    recent: CpuSet = EMPTY

    @property
    def online(self) -> CpuSet:
        return self.topology.online


class CpuClaims(NamedTuple):
    """The CPUs that one sandbox's live containers claim, as far as they are online."""

    #: The exclusive containers, in the sandbox's order, with their CPUs.
    exclusive: tuple[tuple[ContainerId, CpuSet], ...]
    #: The shared containers with their CPUs; None without a cpuset: it uses the shared pool.
    shared: tuple[tuple[ContainerId, CpuSet | None], ...]
    #: Containers of either kind with a stale cpuset, and that cpuset.
    stale: tuple[tuple[ContainerId, CpuSet], ...] = ()
    #: The exclusive containers that the runtime is creating: vCPUs may be plugged in for them.
    creating: frozenset[ContainerId] = frozenset()
    #: Whether the runtime is working on a request: a container's creation, or an update.
    pending: bool = False
    #: The name of the program that has to rewrite the stale cpusets.
    writer: str = ""

    @property
    def cpus(self) -> CpuSet:
        """E: the sandbox's exclusive CPUs."""
        return union(cpus for _, cpus in self.exclusive)

    @property
    def groups(self) -> tuple[tuple[tuple[ContainerId, ...], CpuSet], ...]:
        """The exclusive containers in groups of those with CPUs in common, and each group's CPUs. Containers of a pod
        may have CPUs in common: the kubelet passes an init container's CPUs on to the next container, and with
        pod-level resources lists several containers with the same CPUs."""
        groups: list[tuple[tuple[ContainerId, ...], CpuSet]] = []
        for container, cpus in self.exclusive:
            joined = [group for group in groups if not group[1].isdisjoint(cpus)]
            place = groups.index(joined[0]) if joined else len(groups)
            groups = [group for group in groups if group not in joined]
            groups.insert(place, ((*(member for members, _ in joined for member in members), container),
                                  union((cpus, *(others for _, others in joined)))))
        return tuple(groups)


def is_counted(container: Container) -> bool:
    """Whether a container counts: created or running, and not the sandbox's own pause container."""
    return container.state is not ContainerState.STOPPED and not container.pause


def is_exclusive(container: Container) -> bool:
    """Whether an effective container (rulings.effective_containers) owns CPUs."""
    return bool(container.cpuset and container.exclusive)


def claims_of(containers: Iterable[Container], node: Node) -> CpuClaims:
    """The claims of a sandbox's effective containers."""
    exclusive: list[tuple[ContainerId, CpuSet]] = []
    shared: list[tuple[ContainerId, CpuSet | None]] = []
    stale = []
    creating: set[ContainerId] = set()
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
            creating |= {container.id} if container.creating else set()
        else:
            # During an update a shared container may be on its old and on its new CPUs. Ownership changes only when
            # the update is done.
            requested = container.requested_cpuset
            cpus = container.cpuset | requested if container.cpuset and requested else container.cpuset
            shared.append((container.id, cpus & node.online if cpus else None))
    return CpuClaims(tuple(exclusive), tuple(shared), tuple(stale), frozenset(creating), pending, writer)


class Ownership(NamedTuple):
    """The CPUs of the node, by owner."""

    claims: Mapping[SandboxId, CpuClaims]
    #: All exclusive CPUs of the node.
    exclusive: CpuSet
    #: P. It has exclusive CPUs only if the kubelet or the operator put one there.
    pool: CpuSet
    #: The pod uids of sandboxes. A pod that only an authority lists has its uid as the key in `claims`.
    pods: Mapping[SandboxId, str] = MappingProxyType({})
    #: CPUs of P that had an owner recently.
    recent: CpuSet = EMPTY

    @property
    def pool_for_policies(self) -> CpuSet:
        """P for the threads that a policy `shared` puts there: without exclusive CPUs, and without those that had an
        owner recently. A container that is created and removed each second must not move other pods' threads."""
        return self.pool - self.exclusive - self.recent

    def foreign(self, sandbox: SandboxId) -> CpuSet:
        """The exclusive CPUs of other pods: no thread of `sandbox` may be placed there."""
        claims = self.claims.get(sandbox)
        foreign = self.exclusive if claims is None else self.exclusive - claims.cpus
        return foreign - self.rest_of_pod(sandbox)

    def rest_of_pod(self, sandbox: SandboxId) -> CpuSet:
        """The CPUs that an authority gives a sandbox's pod in addition to those of its known containers: for the pod
        as a whole, or for containers that are yet to be created."""
        rest = self.claims.get(SandboxId(self.pods.get(sandbox, "")))
        return EMPTY if rest is None or rest is self.claims.get(sandbox) else rest.cpus

    def owner_names(self, cpu: int) -> str:
        """A CPU's owners as a text."""
        return " and ".join(f"{container} of {sandbox}" if container else f"pod {sandbox}"
                            for sandbox, container in self.owners(cpu))

    def owners(self, cpu: int) -> list[tuple[SandboxId, ContainerId]]:
        return [(sandbox, container) for sandbox, claim in self.claims.items()
                for container, cpus in claim.exclusive if cpu in cpus]


def with_unreported(all_claims: Mapping[SandboxId, CpuClaims], unreported: Mapping[tuple[str, str], CpuSet],
                    online: CpuSet) -> Mapping[SandboxId, CpuClaims]:
    """Add the claims of containers that only an authority lists. :param unreported: of `unreported_assignments`."""
    more: dict[SandboxId, CpuClaims] = {}
    for (uid, name), cpus in unreported.items():
        pod = SandboxId(uid)
        old = more.get(pod, CpuClaims((), ()))
        more[pod] = CpuClaims((*old.exclusive, (ContainerId(name), cpus & online)), ())
    return {**all_claims, **more} if more else all_claims


def ownership(all_claims: Mapping[SandboxId, CpuClaims], node: Node,
              pods: Mapping[SandboxId, str] | None = None) -> Ownership:
    """Join the claims of all sandboxes. If P is unknown, or completely offline, it is all online CPUs that are not
    exclusive. If P is empty it stays so: the CPUs outside it may be reserved (the kubelet's is also empty for a moment
    between its two writes).
    :param pods: pod uids by sandbox."""
    exclusive = union(cpus for claim in all_claims.values() for _, cpus in claim.exclusive)
    pool, unowned = node.shared_pool, node.online - exclusive
    pool = unowned if pool is None else (pool and (pool & node.online or unowned))
    # Not `pods or {}`: the mapping of a node without pods yet gets them later.
    return Ownership(all_claims, exclusive, pool, {} if pods is None else pods, node.recent & pool)


class Collision(NamedTuple):
    """An exclusive CPU on which another pod may run."""

    cpu: int
    sandboxes: tuple[SandboxId, ...]
    what: str


def find_collisions(own: Ownership, vms: Collection[SandboxId] = ()) -> list[Collision]:
    """CPUs that containers of two pods own, and CPUs that one pod owns and another's cpuset contains. The cause is
    never vmpin, but the kubelet or another program that assigns CPUs: it contradicts itself, at least for a moment
    (the kubelet narrows running shared containers up to ten seconds after it has assigned a CPU).
    :param vms: the sandboxes whose cpusets are ignored, because no process runs by them: VMs, whose threads are
    checked one by one."""
    collisions = []
    owned = owned_twice = EMPTY
    for claim in own.claims.values():
        owned_twice |= owned & claim.cpus
        owned |= claim.cpus
    for cpu in owned_twice:
        owners = _owning_sandboxes(own, cpu)
        # A pod whose sandbox is created again has two sandboxes for a while.
        if len({own.pods.get(sandbox) or sandbox for sandbox in owners}) > 1:
            collisions.append(Collision(cpu, owners, f"exclusive to {own.owner_names(cpu)}"))
    for sandbox, claim in own.claims.items():
        if sandbox in vms:
            continue
        foreign = own.foreign(sandbox)
        stale = dict(claim.stale)
        shared = [(container, cpus) for container, cpus in claim.shared if container not in stale]
        stale_cpuset = f"cpuset, which {claim.writer} has yet to rewrite,"
        for noun, cpusets in (("shared cpuset", shared), (stale_cpuset, claim.stale)):
            for container, cpus in cpusets:
                for cpu in (cpus or EMPTY) & foreign:
                    text = f"exclusive to {own.owner_names(cpu)}, but in the {noun} of {container} of {sandbox}"
                    collisions.append(Collision(cpu, _owning_sandboxes(own, cpu, sandbox), text))
    return sorted(collisions, key=lambda collision: (collision.cpu, collision.sandboxes))


def _owning_sandboxes(own: Ownership, cpu: int, *more: SandboxId) -> tuple[SandboxId, ...]:
    return tuple(dict.fromkeys([*(sandbox for sandbox, _ in own.owners(cpu)), *more]))
