"""Containers under the rulings of the authorities: their own CPUs, the CPUs that they share, and stale cpusets.

The first ruling that lists a container, has a rule for it, or is complete decides on it (`Rulings.deciding`), the same
way for every authority:

- It gives the container CPUs: these are its own. The other CPUs of its cpuset are shared (`spare`), except CPUs that
  are exclusive to other pods. A cpuset that lacks its own CPUs, or has other pods', is stale. If a source reported the
  cpuset later than the authority decided, the container owns only those of its CPUs that the cpuset has.
- It gives the container no CPUs: the container shares its cpuset, except CPUs that are exclusive to other pods: those
  make the cpuset stale. If no CPU is left, it shares the pool.
- The authority writes cpusets itself (`Assignments.writes`): the container has its own CPUs and the authority's
  `spare` ones, whatever the sources report.
- No ruling decides: the container is as its sources report it.

CPUs are certainly exclusive to other pods only under a complete ruling. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Assignments, Owner, Rank, Ruling, Rulings, by_annotation, by_pool
from vmpin.domain.desired_state import CpusetReport, DesiredState, SandboxState
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, uid_of


def effective_containers(sandbox: SandboxState, rulings: Rulings) -> tuple[Container, ...]:
    """The live containers of a sandbox with the CPUs that the rulings give them."""
    foreign = rulings.exclusive_of_others(sandbox)
    return tuple(_effective(record.container, record.reports.get(record.source), rulings, uid_of(sandbox.pod), foreign)
                 for record in sandbox.containers.values()
                 if record.container.state is not ContainerState.STOPPED)


def inferred(containers: Iterable[Container], pool: CpuSet | None) -> tuple[Container, ...]:
    """Containers of a node without an authority that lists CPUs: annotations decide, then the pool."""
    rulings = Rulings((Ruling(Rank.DECLARED.label, Assignments(rule=by_annotation)),
                       Ruling(Rank.POOL.label, Assignments(rule=by_pool))), pool)
    return tuple(_effective(container, None, rulings, "", EMPTY) for container in containers)


def _effective(container: Container, report: CpusetReport | None, rulings: Rulings, pod_uid: str,
               foreign: CpuSet) -> Container:
    """A container under the rulings. :param report: of its cpuset. :param foreign: other pods' exclusive CPUs."""
    ruling, cpus = rulings.deciding(pod_uid, container)
    if ruling is None:
        return container
    if not cpus:
        return _sharing(container, foreign, ruling.authority)
    assignments, owner = ruling.assignments, ruling.assignments.listed(pod_uid, container)
    if assignments.writes and owner is not None:
        spare = assignments.spare.get(owner, EMPTY)
        return container._replace(exclusive=True, cpuset=cpus | spare, spare=spare, ruled_by=ruling.authority)
    since = 0 if owner is None else assignments.since.get(owner, 0)
    later = report is not None and report.time >= since
    return _owning(container, cpus, foreign, later)._replace(ruled_by=ruling.authority)


def _owning(container: Container, cpus: CpuSet, foreign: CpuSet, later: bool) -> Container:
    """A container with CPUs of its own. :param later: whether its cpuset was reported later than they were given.

    Given 2-3, with the cpuset 2: if that was reported later, the container owns 2, and its cpuset is up to date; if
    not, it owns 2-3, and its cpuset is stale."""
    cpuset = container.cpuset or EMPTY
    own, spare = cpuset & cpus, cpuset - cpus - foreign
    if own and later:
        cpus = own
    stale = cpuset if cpuset and (not cpuset >= cpus or cpuset & foreign) else None
    return container._replace(exclusive=True, cpuset=cpus | spare, spare=spare, stale_cpuset=stale)


def _sharing(container: Container, foreign: CpuSet, authority: str) -> Container:
    """A container without CPUs of its own."""
    cpuset, requested = container.cpuset, container.requested_cpuset
    shared, shared_request = cpuset and cpuset - foreign, requested and requested - foreign
    if container.pause or (shared, shared_request) == (cpuset, requested):
        return container if container.exclusive is False else container._replace(exclusive=False)
    return container._replace(exclusive=False, cpuset=shared or None, requested_cpuset=shared_request,
                              stale_cpuset=None if shared == cpuset else cpuset, ruled_by=authority)


def unreported_assignments(state: DesiredState, rulings: Rulings) -> dict[Owner, CpuSet]:
    """CPUs that a complete ruling gives to containers that no source reports as live: they are yet to be created or
    restarted, or are a runc pod's on a node without NRI. By (pod uid, container name); (pod uid, "") for a pod's CPUs
    beyond those of its listed containers, and (container id, "") for a container that is listed by its id. CPUs of
    live containers of the same pod are left out, because an init container's CPUs are passed on."""
    ruling = rulings.complete
    if ruling is None or not ruling.assignments.exclusive:
        return {}
    exclusive, by_id = ruling.assignments.exclusive, ruling.assignments.by_id
    of_containers: dict[str, CpuSet] = {}  # the CPUs of each pod's listed containers
    for (uid, name), cpus in exclusive.items():
        if uid:
            of_containers[uid] = of_containers.get(uid, EMPTY) | (cpus if name else EMPTY)
    of_live: dict[str, CpuSet] = {}  # the CPUs of each pod's live containers
    live: set[ContainerId] = set()
    for sandbox in state.sandboxes.values():
        live.update(container.id for container in (sandbox.live() if by_id else ()))
        uid = uid_of(sandbox.pod)
        for container in effective_containers(sandbox, rulings) if uid in of_containers else ():
            if container.cpuset and container.exclusive:
                of_live[uid] = of_live.get(uid, EMPTY) | container.own_cpus
    unreported = {}
    for (uid, name), cpus in exclusive.items():
        if not uid:
            unreported[name, ""] = EMPTY if name in live else cpus
        else:
            unreported[uid, name] = cpus - of_live.get(uid, EMPTY) - (EMPTY if name else of_containers[uid])
    return {owner: cpus for owner, cpus in unreported.items() if cpus}


def concerned(before: Rulings, after: Rulings, state: DesiredState) -> set[SandboxId]:
    """The sandboxes whose containers may own other CPUs after a change of rulings. Under a complete ruling these are
    all: another pod's CPUs make a cpuset stale. So they are if a pool becomes known: it takes in unmanaged VMs."""
    ranks = [[ruling.authority for ruling in rulings.by_rank] for rulings in (before, after)]
    if (ranks[0] != ranks[1] or (before.pool is None) != (after.pool is None)
            or bool(before.pool) != bool(after.pool)):
        return set(state.sandboxes)
    owners: set[Owner] = set()
    for (_, old), (_, new) in zip(before.by_rank, after.by_rank, strict=True):
        if old == new:
            continue
        if new.complete or old.complete or new.rule is not old.rule:
            return set(state.sandboxes)
        for had, has in ((old.exclusive, new.exclusive), (old.spare, new.spare)):
            owners |= {owner for owner in had.keys() | has.keys() if had.get(owner) != has.get(owner)}
    moved = (before.pool or EMPTY) ^ (after.pool or EMPTY)
    return {sandbox.id for sandbox in state.sandboxes.values()
            if (owners and _is_among(sandbox, owners)) or (moved and _follows_pool(sandbox, after, moved))}


def _is_among(sandbox: SandboxState, owners: set[Owner]) -> bool:
    """Whether the sandbox's pod or one of its containers is one of `owners`."""
    uid = uid_of(sandbox.pod)
    return any(("", record.container.id) in owners or (uid and (uid, record.container.name) in owners)
               for record in sandbox.containers.values()) or bool(uid and (uid, "") in owners)


def _follows_pool(sandbox: SandboxState, rulings: Rulings, moved: CpuSet) -> bool:
    """Whether one of the sandbox's containers may own other CPUs by the pool's rule, of which `moved` has changed: no
    stronger ruling decides on it. (The ledger's pool changes with each grant.)"""
    uid = uid_of(sandbox.pod)
    return any(not record.container.cpuset.isdisjoint(moved)
               and ((ruling := rulings.deciding(uid, record.container)[0]) is None
                    or ruling.authority == Rank.POOL.label)
               for record in sandbox.containers.values() if record.container.cpuset)
