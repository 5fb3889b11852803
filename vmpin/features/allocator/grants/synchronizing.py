"""The decision on Synchronize: makes the ledger agree with what the runtime lists; likewise where CPUs went off- or
online.

With a ledger, its grants count: what the runtime has is recorded, what has gone is given back, and what was missed
gets its CPUs. Without one, it is rebuilt from the containers' annotations and cpusets. Nothing that has its CPUs is
moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.admission import (
    about,
    as_sent,
    listed_state,
    missed,
    overtaken,
    plain_grant,
    refused,
    stopped,
    with_amount,
)
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuKind, CpuPolicy, CpuWish, Refusal
from vmpin.features.allocator.grants.eligibility import (
    SINGLE,
    PolicyRuling,
    brings_cpus,
    configured_groups,
    group_of,
    requested_amount,
    ruling,
)
from vmpin.features.allocator.grants.ledger import Answer, CpuAmount, Grant, Ledger
from vmpin.features.allocator.grants.placing import numa_node, rebalanced
from vmpin.features.allocator.grants.pool_cpus import all_updates, applied, pool
from vmpin.features.allocator.texts.annotation_values import AnnotatedWish, AnnotationError
from vmpin.features.allocator.texts.annotations import annotated_wish
from vmpin.features.allocator.texts.grant_data import GRANT_KEY, AnnotatedGrant, read_annotation
from vmpin.named_tuple import NamedTuple


def on_synchronize(machine: Topology, listed: Listed, ledger: Ledger | None, options: AllocationOptions) -> Answer:
    """The ledger as the runtime's list has it. `ledger` None: it is lost. The answer has all updates that are due.

    The order matters: a later step gets only CPUs that the earlier ones left.

    1. What has gone gives its CPUs back. A listed container loses a lapsed grant whose CPUs another has (`overtaken`).
    2. Containers that are not in the ledger get the grants that annotation and cpuset prove (`adopted`). The others
       are `unproven`: without a cpuset, with another plugin's, or with a claim that breaks a rule.
    3. If the ledger is lost: VMs' containers on the pool are recorded, and the shared CPUs taken from the cpusets.
    4. Spare sets and shared CPUs follow.
    5. The unproven with a cpuset are recorded: containers that are left alone, so that no other gets their CPUs.
    6. Known containers get the state, cpuset and request that the runtime has, which may be a resize: those that give
       CPUs back come first.
    7. The unproven without a cpuset get CPUs, of what is left."""
    before = ledger or Ledger()
    notes: list[str] = []
    live = {container.id: container for container in listed.containers
            if container.state is not ContainerState.STOPPED}
    after = _without_the_gone(machine, before, listed, live, options)
    after = after.without([key for key, grant in after.grants.items() if key in live and overtaken(after, grant)])
    by_age = sorted(live.values(), key=_age)
    known = [container for container in by_age if container.id in after.grants]
    others = [container for container in by_age if container.id not in after.grants]
    after, unproven = adopted(machine, after, others, options, notes, ledger is None)
    known += [container for container in others if container.id in after.grants]  # a resize may have been missed, too
    if ledger is None:
        # Kata made vCPUs for containers on the pool, too: without their limits, spare sets would shrink, and move.
        after = after.with_grants(*(plain_grant(machine, container) for container in unproven
                                    if container.vm and not container.cpuset
                                    and not _asks_for_cpus(machine, container, options)))
        after = _shared_as_listed(machine, after, options)
    after = rebalanced(machine, after, options)
    after = _with_missed(machine, after, (container for container in unproven if container.cpuset), options, notes)
    known.sort(key=lambda container: requested_amount(container).size >= after.grants[container.id].amount.size)
    for container in known:
        after = _as_listed(machine, after, container, options, notes)
    after = _with_missed(machine, after, (container for container in unproven if not container.cpuset), options, notes)
    updates = all_updates(machine, after, options)
    return as_sent(Answer(applied(after, updates), None, updates, "", tuple(notes)), after, options)


def on_online_changed(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Answer:
    """CPUs went off- or online. A grant keeps its CPUs, those that are offline too: they are its own when they are
    back. The updates are those to make by CRI; `with_written` records each that was done."""
    after = rebalanced(machine, ledger, options)
    notes = [f"{about(grant)}: its CPUs {grant.cpus - machine.online} are offline"
             for grant in sorted(after.grants.values()) if grant.live and not grant.cpus <= machine.online]
    if not after.shared:
        notes.append("the pool has no CPU that is online: shared containers keep their cpusets")
    return as_sent(Answer(after, None, all_updates(machine, after, options), "", tuple(notes)), after, options)


def _with_missed(machine: Topology, ledger: Ledger, containers: Iterable[RequestedContainer],
                 options: AllocationOptions, notes: list[str]) -> Ledger:
    for container in containers:
        answer = missed(machine, ledger, container, options)
        ledger = answer.ledger
        notes += answer.notes
    return ledger


def _age(container: RequestedContainer) -> tuple[bool, int, ContainerId]:
    """The sort key: running containers come before created ones."""
    return (container.state is ContainerState.CREATED, container.time_ns, container.id)


def _without_the_gone(machine: Topology, ledger: Ledger, listed: Listed,
                      live: Mapping[ContainerId, RequestedContainer], options: AllocationOptions) -> Ledger:
    """The ledger without pods that are not listed; containers that are not listed have stopped: a runtime does not
    list exited ones (containerd: internal/cri/nri/nri_api_linux.go). A container that is being created is not listed
    either, so the pod keeps reserved CPUs as well."""
    pods = listed.sandboxes | {container.sandbox for container in live.values()}
    ledger = ledger.without([key for key, grant in ledger.grants.items() if grant.sandbox not in pods])
    gone = [key for key, grant in sorted(ledger.grants.items()) if grant.live and key not in live]
    return stopped(machine, ledger, gone, options, undo=False)


def _as_listed(machine: Topology, ledger: Ledger, container: RequestedContainer, options: AllocationOptions,
               notes: list[str]) -> Ledger:
    """The ledger with the state, the cpuset and the request that the runtime has for a known container."""
    grant = ledger.grants[container.id]
    current = (container.cpuset or EMPTY) == grant.written
    ledger = ledger.with_grants(grant._replace(state=listed_state(container), written=container.cpuset or EMPTY,
                                               guaranteed=container.guaranteed))
    if not current:
        # An old list: after its own restart, CRI-O lists the resources of creation.
        return ledger
    outcome = with_amount(machine, ledger, container, options)
    if isinstance(outcome, Refusal):
        answer = refused(ledger, container, outcome)
        notes += answer.notes
        return answer.ledger
    after, lines = outcome
    notes += lines
    return after


def _shared_as_listed(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Ledger:
    """The ledger with the shared CPUs that containers on the pool have: a lost ledger is no reason to change them."""
    listed = union(grant.written for grant in ledger.grants.values()
                   if grant.policy is CpuPolicy.NONE and not grant.left_alone)
    return ledger._replace(shared=listed & pool(machine, ledger, options))


class _Claim(NamedTuple):
    """A container with a cpuset, and the grant in its annotation."""

    container: RequestedContainer
    annotated: AnnotatedGrant
    cpuset: CpuSet
    amount: CpuAmount  #: Its present request.
    group: str  #: As `Grant.group`.

    @property
    def created(self) -> bool:
        """True for a container that has not started."""
        return self.container.state is ContainerState.CREATED

    @property
    def named(self) -> CpuSet:
        """Return those of its cpuset that are the container's own by its annotation."""
        return self.annotated.cpus & self.cpuset

    @property
    def exact(self) -> bool:
        """True where it has the CPUs that it was created with."""
        return self.annotated.cpus | self.annotated.spare == self.cpuset

    @property
    def resized(self) -> bool:
        """True where it requests another number of CPUs than it was created with, or has other CPUs."""
        return not self.exact or len(self.annotated.cpus) not in (0, self.amount.size)


def adopted(machine: Topology, ledger: Ledger, unknown: list[RequestedContainer], options: AllocationOptions,
            notes: list[str], lost: bool = False) -> tuple[Ledger, list[RequestedContainer]]:
    """The ledger with the grants of containers that are not in it, as far as annotation and cpuset prove them; and the
    other containers: they have no cpuset, or one of another plugin.

    A container's annotation shows what its cpuset means, and the cpuset, which the runtime lists, proves the CPUs. A
    pod's author may have written the annotation: so its claim is adopted only within the rules, and only where no
    other grant has the CPUs. :param lost: there was no ledger."""
    claims, unproven = [], []
    for container in unknown:
        try:
            text = container.annotations.get(GRANT_KEY)
            annotated = None if text is None or not container.cpuset else read_annotation(text)
        except AnnotationError as err:
            notes.append(f"{container.namespace}/{container.pod}/{container.name}: {err}")
            annotated = None
        if annotated is None and lost and GRANT_KEY not in container.annotations:
            annotated = _given_when_listed(machine, container, options)
        if annotated is None or container.cpuset is None or annotated.left_alone:
            unproven.append(container)
        else:
            group = group_of(annotated.wish._replace(policy=annotated.policy), container.namespace, options)
            claims.append(_Claim(container, annotated, container.cpuset, requested_amount(container), group))
    # No container's own: two containers run on them, and not as members of one group. Another's own: outside VMs and
    # groups a cpuset has a container's own CPUs alone; those of a fixed one may be spare CPUs of a VM, whose own ones
    # are in its annotation.
    # A predecessor that is still listed names the CPUs of its successor; what is refused names none.
    _, several = _once_and_several((claim.group or claim.container.id, claim.cpuset) for claim in claims)
    named, twice = _once_and_several(((claim.container.sandbox, claim.container.name), claim.named) for claim in claims
                                     if not isinstance(_ruling_of(machine, claim, options), Refusal))
    single = union(claim.cpuset for claim in claims if claim.annotated.policy in SINGLE and not claim.container.vm)
    members = Counter([*(grant.group for grant in ledger.grants.values()), *(claim.group for claim in claims)])
    for claim in _by_precedence(claims):
        alone = not claim.group or members[claim.group] == 1
        fixed = claim.annotated.policy is CpuPolicy.FIXED  # its CPUs are in the pool
        others_cpus = single | twice | named - claim.named if fixed else several
        grant = _grant_of(machine, ledger, claim, options, others_cpus, alone)
        if isinstance(grant, str):
            notes.append(f"{claim.container.namespace}/{claim.container.pod}/{claim.container.name} has the cpuset "
                         f"{claim.cpuset}, which is not adopted: {grant}")
            unproven.append(claim.container)
        elif _leaves_a_pool(machine, ledger, grant, options):
            ledger = ledger.with_grants(grant)
        else:
            ledger = ledger.with_grants(grant._replace(policy=CpuPolicy.NONE, group="", cpus=EMPTY, spare=EMPTY,
                                                       own_spare=False))
    return ledger, unproven


def _once_and_several(sets: Iterable[tuple[Hashable, CpuSet]]) -> tuple[CpuSet, CpuSet]:
    """The CPUs in any of these sets, and those in two of different owners. :param sets: each with its owner."""
    by_owner: dict[Hashable, CpuSet] = {}
    for owner, cpus in sets:
        by_owner[owner] = by_owner.get(owner, EMPTY) | cpus
    once = several = EMPTY
    for cpus in by_owner.values():
        once, several = once | cpus, several | once & cpus
    return once, several


def _by_precedence(claims: Iterable[_Claim]) -> list[_Claim]:
    """Claims in the order of their adoption. Where two are for one CPU, the later one is left alone, and its other
    CPUs may become another pod's. So those of running containers come first. Of one pod and name the newest comes
    first: its CPUs are those of its predecessors, of which one that could not be started is still listed. Then those
    whose annotation, cpuset and request agree; those that were resized come last."""
    newest_first = sorted(claims, key=lambda claim: (claim.created, -claim.annotated.since_ns, claim.container.id))
    names = Counter[tuple[SandboxId, str]]()
    ranks = {}
    for claim in newest_first:
        name = claim.container.sandbox, claim.container.name
        ranks[claim.container.id] = (claim.created, names[name], claim.resized, claim.annotated.since_ns,
                                     claim.container.id)
        names[name] += 1
    return sorted(newest_first, key=lambda claim: ranks[claim.container.id])


def _given_when_listed(machine: Topology, container: RequestedContainer,
                       options: AllocationOptions) -> AnnotatedGrant | None:
    """The grant of a container without our annotation: it was created while vmpin was away, and got its CPUs with the
    answer to the runtime's list. This is assumed where it asks for CPUs of its own and its cpuset has as many; None
    elsewhere. Where another plugin gave it those, no other container gets them either."""
    ruled = _ruled(machine, container, options)
    if ruled is None or ruled[1].policy not in SINGLE or container.vm or (
            container.cpuset is None or len(container.cpuset) != requested_amount(container).size):
        return None
    return AnnotatedGrant(ruled[0], ruled[1].policy, container.cpuset, since_ns=container.time_ns)


def _ruled(machine: Topology, container: RequestedContainer,
           options: AllocationOptions) -> tuple[CpuWish, PolicyRuling] | None:
    """The wish of a container's annotations, and the policy that it gets by them; None where they are refused, or have
    it left alone."""
    try:
        annotated = annotated_wish(container.pod_annotations, container.name, options.honour)
    except AnnotationError:
        return None
    ruled = ruling(machine, annotated, container.namespace, container.guaranteed, requested_amount(container), options)
    return None if isinstance(ruled, Refusal) or annotated.left_alone else (annotated.wish, ruled)


def _asks_for_cpus(machine: Topology, container: RequestedContainer, options: AllocationOptions) -> bool:
    ruled = _ruled(machine, container, options)
    return ruled is not None and brings_cpus(ruled[1].policy, ruled[1].group, options)


def _grant_of(machine: Topology, ledger: Ledger, claim: _Claim, options: AllocationOptions,
              others_cpus: CpuSet, alone: bool) -> Grant | str:
    """The grant that a claim proves. :param others_cpus: CPUs that are less likely its own than the rest of its
    cpuset, if it is a VM's or a group's. :param alone: the cpuset has no CPUs of other members of a group.
    :returns: why it proves none."""
    container, annotated, cpuset, _, _ = claim
    ruled = _ruling_of(machine, claim, options)
    if isinstance(ruled, Refusal):
        return ruled.reason
    nodes = CpuSet(machine.nodes)
    grant = plain_grant(machine, container)._replace(
        wish=annotated.wish, policy=ruled.policy, group=ruled.group, state=listed_state(container), written=cpuset,
        since_ns=annotated.since_ns, near=annotated.near & nodes, devices=annotated.devices & nodes)
    if grant.policy is CpuPolicy.NUMA:
        around = [node for node, cpus in machine.nodes.items() if cpuset <= cpus]
        return grant._replace(node=min(around) if around else numa_node(machine, ledger, grant, options))
    if not brings_cpus(grant.policy, grant.group, options):
        return grant
    if alone and claim.exact and claim.resized and claim.amount.size:
        grant = grant._replace(amount=_before_resize(len(annotated.cpus)))
    taken = union(other.held for other in ledger.grants.values())
    isolated = EMPTY if grant.wish.kind is CpuKind.ISOLATED else machine.isolated
    never = options.reserved | configured_groups(options) | isolated
    mates = union(other.cpus for other in ledger.of_group(grant.group)) if grant.group else EMPTY
    cpus = _own_part(grant, claim, taken | never, mates, others_cpus)
    if len(cpus) != grant.amount.size:
        grant = grant._replace(amount=_before_resize(len(cpus)))
    why = _contradiction(machine, grant, cpus, taken, never)
    if why:
        return why
    spare = cpuset - cpus if grant.vm and grant.policy is not CpuPolicy.GROUP else EMPTY
    own_spare = bool(annotated.own_spare and spare and spare.isdisjoint(taken) and len(spare) <= grant.vm_overhead)
    return grant._replace(cpus=cpus, spare=spare, own_spare=own_spare)


def _ruling_of(machine: Topology, claim: _Claim, options: AllocationOptions) -> PolicyRuling | Refusal:
    container, annotated = claim.container, claim.annotated
    wish = AnnotatedWish(annotated.wish._replace(policy=annotated.policy), "vmpin")
    return ruling(machine, wish, container.namespace, container.guaranteed, claim.amount, options)


def _before_resize(size: int) -> CpuAmount:
    """The amount of a container whose resize was missed: its request is then taken in as that of any known container
    (`_as_listed`)."""
    return CpuAmount(1000 * size, 1000 * size, size)


def _leaves_a_pool(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> bool:
    """False where the pool would have no CPU, online or not: the container is on the pool then, as none is given the
    last one."""
    whole = machine._replace(online=machine.all_cpus)
    return not grant.out_of_pool or bool(pool(whole, ledger.with_grants(grant), options))


def _own_part(grant: Grant, claim: _Claim, taken: CpuSet, mates: CpuSet, others_cpus: CpuSet) -> CpuSet:
    """The container's own CPUs in its cpuset; a VM's has spare CPUs besides, and a group's those of other members.
    Those that are not in `others_cpus` come first, of these the annotation's, then those of no other grant.
    :param taken: CPUs that cannot be its own. :param mates: those of them that other members of its group have got
    already. The annotation may name these, as resizes pass them on: which member has which of the group's CPUs does
    not matter."""
    if not grant.vm and grant.policy is not CpuPolicy.GROUP:
        return claim.cpuset
    named = claim.annotated.cpus & claim.cpuset - mates
    order = [*named, *(claim.cpuset - named - taken - claim.annotated.spare), *(claim.cpuset - named - taken)]
    order.sort(key=others_cpus.__contains__)
    if claim.resized:  # The resize may have been missed, and its CPUs be fewer than it requests.
        order = [cpu for cpu in order if cpu not in others_cpus] or order
    return CpuSet(list(dict.fromkeys(order))[: grant.amount.size])


def _contradiction(machine: Topology, grant: Grant, cpus: CpuSet, taken: CpuSet, never: CpuSet) -> str:
    """Why these cannot be the container's own CPUs; "" where they can. :param never: they become no container's own,
    or not by such a wish."""
    if not cpus and grant.policy is not CpuPolicy.GROUP:  # a group's others may have all that it has
        return "they are other containers'"
    if not cpus.isdisjoint(taken):
        return f"the CPUs {cpus & taken} are another container's"
    if not cpus.isdisjoint(never):
        return f"the CPUs {cpus & never} are reserved, isolated or of a group"
    if not cpus <= machine.all_cpus:
        return f"this machine has no CPUs {cpus - machine.all_cpus}"
    return ""
