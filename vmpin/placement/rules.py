"""The rules that place the threads of a VM sandbox: which CPUs each may use.

Pure; a placement given as `previous` results in itself. In comments, S is the sandbox mask, E the sandbox's exclusive
CPUs, P the shared pool and H the housekeeping CPUs.

With any policy, no thread is placed on another pod's exclusive CPU; by default none leaves S. The emulator, vhost and
virtiofsd threads are in no container's cpuset: Kata keeps them in the sandbox's cgroup or, with
sandbox_cgroup_only=false, in one without limits (sandbox.go, kata_overhead). So each role has a policy of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import Rank, Rulings, writer_of
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole, Vcpu, VcpuId, VcpuState
from vmpin.domain.policy import Policy, ThreadPolicy, VcpuRule
from vmpin.domain.sandbox_placement import Placement, Previous, VcpuPlacement, Verdict
from vmpin.domain.terminal import number_of
from vmpin.named_tuple import NamedTuple
from vmpin.placement.ownership import CpuClaims, Node, Ownership, is_counted, is_exclusive
from vmpin.placement.rulings import effective_containers
from vmpin.placement.vcpus import CandidateCpus, place_vcpus

_OTHERS: tuple[ThreadRole, ...] = tuple(role for role in ThreadRole if role is not ThreadRole.VCPU)

#: A reason of the verdict `waiting`.
VCPUS_UNIDENTIFIED = ("its vCPU threads cannot all be identified yet: until then its other threads are kept on the "
                      "sandbox mask")
#: The reason of the verdict `unmanaged`.
UNMANAGED = ("no container of it is known, and no shared pool (no readable checkpoint of the kubelet, "
             "node.shared_pool is not set): its threads keep the masks they have")
#: The reason of the verdict `unmanaged` while a watcher waits for the runtime's first list.
UNLISTED = ("its containers are not known before the runtime lists them to the watcher (NRI): its threads keep the "
            "masks they have")


class PlacementRequest(NamedTuple):
    """A sandbox to place. `vcpus` are those whose threads are identified. `container_ended`: one of its containers
    ended recently. `nic_node`: the NUMA node of its NIC on the host, None if unknown."""

    id: SandboxId
    vcpus: tuple[Vcpu, ...]
    containers: tuple[Container, ...]
    vcpu_state: VcpuState = VcpuState.IDENTIFIED
    container_ended: bool = False
    nic_node: int | None = None

    @property
    def vcpus_identified(self) -> bool:
        return self.vcpu_state is VcpuState.IDENTIFIED


def place(request: PlacementRequest, node: Node, own: Ownership, policy: Policy,
          previous: Previous | None = None) -> Placement:
    """Place one sandbox, whose claims are in `own`."""
    before = previous or Previous()
    claim = own.claims.get(request.id) or CpuClaims((), ())
    if node.shared_pool is None and not claim.exclusive and not claim.shared and not before.mask:
        return _unmanaged(request, UNMANAGED)
    reasons: list[str] = []
    foreign = own.foreign(request.id)
    mask = _mask(request, claim, foreign, node, own, before, reasons)
    if not mask:
        return _unmanaged(request, *reasons)
    lost = bool(reasons)
    offline = union(container.own_cpus for container in request.containers
                    if is_exclusive(container) and is_counted(container)) - node.online
    if offline and not lost:
        reasons.append(f"CPUs {offline}, which its containers own, are not online")
    allowed = mask - foreign  # a stale cpuset still contains CPUs that became another pod's
    exclusive = claim.cpus
    candidates = CandidateCpus(allowed, exclusive, foreign, allowed - exclusive, node, own)
    if not request.vcpus_identified and policy.vcpus is not VcpuRule.OFF:
        reasons.append(VCPUS_UNIDENTIFIED if request.vcpu_state is VcpuState.AWAITED else
                       "its vCPU threads cannot all be identified: its other threads are kept on the sandbox mask")
    places, shortage = place_vcpus(request.vcpus, request.vcpus_identified, claim, candidates, policy, before, reasons)
    containers, unserved = _containers(request, claim, places)
    unserved = unserved if request.vcpus_identified else ""  # a vCPU that is identified later may back them
    if unserved:
        reasons.append(unserved)
    if (shortage or unserved) and request.vcpus_identified:
        reasons += _uncounted_by_kata(request)
    others = {role: _other(role, candidates, policy, request, reasons) for role in _OTHERS}
    verdict = _verdict(request, claim, places, policy, lost, bool(shortage or unserved or offline), reasons)
    return Placement(request.id, mask, verdict, tuple(dict.fromkeys(reasons)), places, others, containers,
                     _waiting(request, own, allowed), claim.pending)


def outlasts_creations(placement: Placement, claims: CpuClaims) -> bool:
    """Whether a sandbox's threads keep their CPUs when the containers that are being created start, if no vCPU is
    plugged in until then: the containers have no exclusive CPUs, or one vCPU is pinned on each."""
    return placement.verdict is Verdict.PINNED or not claims.creating


def place_before_vm(sandbox: SandboxId, state: SandboxState | None, node: Node, own: Ownership, policy: Policy,
                    rulings: Rulings, previous: Previous | None = None) -> Placement | None:
    """The placement of a sandbox without a VM yet: the CPUs of its reported containers, else the shared pool. None if
    no mask is to be set: it was unpinned, or there are neither CPUs nor a pool.
    :param state: the sandbox as reported by the sources, None if none reported it."""
    if state is not None and state.suspended:
        return None
    containers = () if state is None else effective_containers(state, rulings)
    request = PlacementRequest(sandbox, (), containers, VcpuState.UNIDENTIFIED)
    placement = place(request, node, own, policy, previous)
    return None if placement.verdict is Verdict.UNMANAGED else placement


def _verdict(request: PlacementRequest, claim: CpuClaims, places: Sequence[VcpuPlacement], policy: Policy, lost: bool,
             short: bool, reasons: list[str]) -> Verdict:
    """The verdict on a placement. If it waits for more vCPUs, the reason is added to `reasons`.
    :param lost: S had no valid CPU. :param short: too few vCPUs, for one-to-one or for a container, or CPUs of
    its own are offline."""
    if policy.vcpus is VcpuRule.OFF:
        return Verdict.OFF
    if request.vcpu_state is VcpuState.AWAITED and not lost:
        return Verdict.WAITING
    if short or lost:
        return Verdict.DEGRADED
    if not claim.cpus or policy.vcpus is not VcpuRule.AUTO:
        return Verdict.FLOATING
    if claim.creating and sum(vcpu.pinned for vcpu in places) < len(claim.cpus):
        reasons.append(f"{number_of(len(places), 'vCPU')} for {number_of(len(claim.cpus), 'CPU', 'exclusive')}, while "
                       "a container is created that more may come with")
        return Verdict.WAITING
    return Verdict.PINNED


def _uncounted_by_kata(request: PlacementRequest) -> list[str]:
    """The remedy for a VM that lacks vCPUs for CPUs that Kata has not counted. Kata sizes the VM by its containers'
    CPU quotas, and by their cpusets only where no container has a quota (src/runtime/virtcontainers/sandbox.go:
    calculateSandboxCPUs; runtime-rs: resource/src/cpu_mem/cpu.rs). A claim carries no quota, and since Kubernetes 1.33
    a container with CPUs of the kubelet's has none, either (DisableCPUQuotaWithExclusiveCPUs)."""
    counted, vcpus = list(filter(is_counted, request.containers)), len(request.vcpus)
    own = {rank: len(union(container.own_cpus for container in counted if container.exclusive
                           and container.ruled_by == rank.label)) for rank in (Rank.DRA, Rank.KUBELET)}
    annotation = "the annotation io.katacontainers.config.hypervisor.default_vcpus"
    if own[Rank.DRA] > vcpus:
        return [f"its DRA claims have {number_of(own[Rank.DRA], 'CPU')}, and a claim gives a VM no vCPU: give its "
                f"containers a CPU limit as well, or the pod {annotation}"]
    if own[Rank.KUBELET] >= vcpus and not all(container.exclusive for container in counted):
        return ["a container with exclusive CPUs may have no CPU quota (Kubernetes 1.33 and later), and beside one "
                f"with a quota Kata then gives it no vCPU: give the pod {annotation}"]
    return []


def _unmanaged(request: PlacementRequest, why: str) -> Placement:
    """A placement that sets no mask: the masks may have been set by hand, for a reason."""
    vcpus = sorted(vcpu.id for vcpu in request.vcpus)
    containers = {container.id: tuple(vcpus) for container in request.containers
                  if container.state is not ContainerState.STOPPED}
    places = tuple(VcpuPlacement(vcpu, None) for vcpu in vcpus)
    return Placement(request.id, EMPTY, Verdict.UNMANAGED, (why,), places, dict.fromkeys(_OTHERS), containers)


def _mask(request: PlacementRequest, claim: CpuClaims, foreign: CpuSet, node: Node, own: Ownership, before: Previous,
          reasons: list[str]) -> CpuSet:
    """S: the union of the containers' cpusets. If that has no CPU that is not another pod's: the CPUs that the kubelet
    gives its pod in addition to those of its containers, else the last mask, else the shared pool, with the reason
    added to `reasons`. EMPTY if all of these are unusable: a sandbox never gets CPUs that were not given to it
    (reserved ones)."""
    rest, no_container_known = own.rest_of_pod(request.id), not claim.exclusive and not claim.shared
    if no_container_known:
        # Without a shared pool, only the previous mask shows which CPUs it may use.
        mask = EMPTY if node.shared_pool is None else own.pool
        # CRI-O may give the pause container CPUs (infra_ctr_cpuset). Until there is another container, Kata's cgroup
        # has these alone (src/runtime/virtcontainers/sandbox.go: createResourceController).
        pause = union(container.cpuset or EMPTY for container in request.containers if container.pause) & node.online
        mask = mask and (mask & pause or pause or mask)
    else:
        mask = claim.cpus | union(own.pool if cpus is None else cpus for _, cpus in claim.shared)
        stale = _without_cpus(claim, foreign) if mask - foreign and own.pool - foreign else ()
        if stale:
            reasons.append(f"the CPUs of {', '.join(stale)} are other containers' alone: "
                           f"it is kept on the shared pool {own.pool}")
            return mask | own.pool
    if rest and not mask - foreign:
        mask = rest  # those of a container that is yet to be created or restarted
    if mask - foreign:
        return mask  # with the foreign CPUs of a stale cpuset: `place` keeps threads off those
    if mask:
        why = f"its CPUs {mask} are other containers' alone"
    elif claim.exclusive or any(cpus is not None for _, cpus in claim.shared):
        why = "none of the sandbox's CPUs is online"
    elif no_container_known and node.shared_pool is None:
        why = "no container of it is known any more, and no shared pool"
    else:
        why = "the shared pool has no CPU"
    last = before.mask & node.online
    if last - foreign:
        reasons.append(f"{why}: the last valid mask {last} is kept")
        return last
    if own.pool - foreign:
        reasons.append(f"{why}: it is kept on the shared pool {own.pool}")
        return own.pool
    reasons.append(f"{why}, and no CPU is left for it: its threads keep the masks they have")
    return EMPTY


def _without_cpus(claim: CpuClaims, foreign: CpuSet) -> Sequence[ContainerId]:
    """The shared containers of which every CPU is another pod's, by annotations or the pool. (Under a complete ruling
    they have no cpuset here, see `rulings`.)"""
    exclusive = dict(claim.exclusive)
    return [container for container, cpus in claim.shared if cpus and cpus <= foreign and container not in exclusive]


def _waiting(request: PlacementRequest, own: Ownership, allowed: CpuSet) -> str:
    """Describe what the placement waits for; "" for nothing: for a request that the runtime is working on, or for
    stale cpusets to be rewritten, if a thread needs that."""
    counted = [container for container in request.containers if is_counted(container)]
    if not counted and request.container_ended:
        # Kata leaves the sandbox's cgroup unchanged when its last container ends, because it writes no empty cpuset
        # (src/runtime/pkg/resourcecontrol/cgroups.go, UpdateCpuSet; crates/resource/src/cgroups/resource_inner.rs).
        return "waits for a container, or for its end: its cgroup may still have the CPUs of its last container alone"
    requests = [f"create {container.name or container.id}" if container.creating else
                f"give {container.name or container.id} the CPUs {container.requested_cpuset}"
                for container in counted if container.creating or container.requested_cpuset is not None]
    if requests:
        return f"waits for the runtime to {', '.join(requests)}"
    stale = [container for container in counted if container.stale_cpuset]
    if not stale or allowed <= union(container.stale_cpuset or container.cpuset or own.pool for container in counted):
        return ""
    cpusets = ", ".join(f"{container.name or container.id} from {container.stale_cpuset} to "
                        f"{container.own_cpus or own.pool}" for container in stale)
    return f"waits for {writer_of(stale[0].ruled_by)} to rewrite the cpuset of {cpusets}"


def _containers(request: PlacementRequest, claim: CpuClaims,
                places: Sequence[VcpuPlacement]) -> tuple[dict[ContainerId, tuple[VcpuId, ...]], str]:
    """The vCPUs of each live container, and why some container has none of its own ("" if all have)."""
    all_vcpus = tuple(vcpu.id for vcpu in places)
    floating = tuple(vcpu.id for vcpu in places if vcpu.container is None)
    exclusive = dict(claim.exclusive)
    group = {member: cpus for members, cpus in claim.groups for member in members}
    apart = any(vcpu.container is not None for vcpu in places)
    vcpus_of: dict[ContainerId, tuple[VcpuId, ...]] = {}
    unserved = []
    for container in request.containers:
        if container.state is ContainerState.STOPPED:
            continue
        if container.pause:
            vcpus_of[container.id] = floating or all_vcpus  # it claims no CPU, so it is never unserved
            continue
        if not apart:
            vcpus_of[container.id] = all_vcpus
            continue
        cpus = exclusive.get(container.id)
        if cpus is None:
            own_vcpus = floating
        else:
            # A vCPU on CPUs that containers of a pod have in common belongs to each of them.
            own_vcpus = tuple(vcpu.id for vcpu in places if vcpu.container is not None and vcpu.cpus
                              and vcpu.cpus <= (cpus if vcpu.pinned else group[container.id]))
        if not own_vcpus and container.id not in claim.creating:
            unserved.append(str(container.id))
        vcpus_of[container.id] = own_vcpus or all_vcpus
    if not unserved:
        return vcpus_of, ""
    return vcpus_of, (f"no vCPU is left for {', '.join(unserved)}: the VM's "
                      f"{number_of(len(all_vcpus), 'vCPU backs exclusive CPUs')}, "
                      "and it may use every one of them")


def _other(role: ThreadRole, candidates: CandidateCpus, policy: Policy, request: PlacementRequest,
           reasons: list[str]) -> CpuSet | None:
    """The CPUs of the threads of a role other than the vCPUs; None: their masks are not set."""
    rule = policy.rule(role)
    unsure = not request.vcpus_identified and policy.vcpus is not VcpuRule.OFF
    if unsure and role not in (ThreadRole.VIRTIOFSD, ThreadRole.SHIM):
        return candidates.allowed  # any of these threads may be a vCPU
    apart = candidates.shared_part or candidates.allowed
    if rule is ThreadPolicy.APART:
        return apart
    if rule is ThreadPolicy.NEAR:
        near = EMPTY if request.nic_node is None else candidates.node.topology.nodes.get(request.nic_node, EMPTY)
        return (apart & near) or apart
    if rule is ThreadPolicy.OFF:
        return None
    if rule is ThreadPolicy.SANDBOX:
        return candidates.allowed
    if rule is ThreadPolicy.SHARED:
        cpus = candidates.shared_part or candidates.pool
    elif rule is ThreadPolicy.HOUSEKEEPING:
        cpus = candidates.housekeeping
    else:
        assert isinstance(rule, CpuSet)
        cpus = (rule & candidates.node.online) - candidates.foreign
    if cpus:
        return cpus

    reasons.append(f"{role.policy}: {rule}: no such CPU can be used; the sandbox mask is used")
    return candidates.allowed
