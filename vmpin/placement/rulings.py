"""Containers as the rulings in force have them: which CPUs are their own, which they share, and which are stale.

Pure, and the same for every authority. A container that a ruling lists owns the listed CPUs; what its cpuset has
beyond them it shares. Under a complete ruling a container that is not listed owns nothing, whatever an annotation, and
only CPUs that are another pod's alone make a cpuset stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Assignments, Ruling, Rulings
from vmpin.domain.desired_state import CpusetReport, DesiredState, SandboxState
from vmpin.domain.model import Container, ContainerState, SandboxId


def declared_cpus(container: Container, pool: CpuSet | None) -> CpuSet | None:
    """The rule of the authority `declared`: the CPUs of a container that an annotation declares exclusive; empty where
    it declares it shared."""
    if container.exclusive is None or (container.exclusive and not container.cpuset):
        return None
    return container.own_cpus if container.exclusive else EMPTY


def cpus_outside(container: Container, pool: CpuSet | None) -> CpuSet | None:
    """The rule of the authority `pool`: the cpuset of a container without a CPU of the pool. Nothing follows for a
    container without CPUs, nor from an empty pool: the kubelet's default set is empty while its policy gives no CPU
    away."""
    return container.cpuset if container.cpuset and pool and container.cpuset.isdisjoint(pool) else None


DECLARED = Assignments(rule=declared_cpus)


def outside_pool(pool: CpuSet | None) -> Assignments:
    """Return the assignments of the authority `pool`. :param pool: the configured one, None without one."""
    return Assignments(pool=pool, rule=cpus_outside)


class _Others(NamedTuple):
    """What counts beside a container itself: its pod's uid, and the CPUs that are other pods' alone."""

    pod_uid: str = ""
    exclusive: CpuSet = EMPTY


def effective_containers(sandbox: SandboxState, rulings: Rulings) -> tuple[Container, ...]:
    """The live containers of a sandbox, with the CPUs and the ownership that the rulings give them. One on which no
    authority decides is as its sources reported it."""
    others = _Others("" if sandbox.pod is None else sandbox.pod.uid, rulings.exclusive_of_others(sandbox))
    return tuple(_effective(record.container, record.reports.get(record.source), rulings, others)
                 for record in sandbox.containers.values()
                 if record.container.state is not ContainerState.STOPPED)


def inferred(containers: Iterable[Container], pool: CpuSet | None) -> tuple[Container, ...]:
    """Containers of a node where no program lists CPUs: what is declared counts, else the pool."""
    rulings = Rulings((Ruling("declared", DECLARED), Ruling("pool", outside_pool(pool))), pool)
    return tuple(_effective(container, None, rulings, _Others()) for container in containers)


def _effective(container: Container, report: CpusetReport | None, rulings: Rulings, others: _Others) -> Container:
    ruling, cpus = rulings.deciding(others.pod_uid, container)
    if ruling is None:
        return container
    if not cpus:
        return _sharing(container, others, ruling)
    assignments, owner = ruling.assignments, ruling.assignments.listed(others.pod_uid, container)
    if assignments.writes and owner is not None:
        spare = assignments.spare.get(owner, EMPTY)
        return container._replace(exclusive=True, cpuset=cpus | spare, spare=spare, ruled_by=ruling.authority)
    since = 0 if owner is None else assignments.since.get(owner, 0)
    newer = report is not None and report.time >= since
    return _owning(container, cpus, others.exclusive, newer)._replace(ruled_by=ruling.authority)


def _owning(container: Container, cpus: CpuSet, others: CpuSet, newer: bool) -> Container:
    """A container with CPUs of its own. A cpuset that lacks some of them is stale, unless it is newer than they are:
    then it owns those that it has. :param others: other pods' exclusive CPUs."""
    has = container.cpuset or EMPTY
    both, spare = has & cpus, has - cpus - others
    stale = has if has and (not has >= cpus or has & others) else None
    if both and both != cpus and newer:
        cpus, stale = both, has if has & others else None
    return container._replace(exclusive=True, cpuset=cpus | spare, spare=spare, stale_cpuset=stale)


def _sharing(container: Container, others: _Others, ruling: Ruling) -> Container:
    """A container without CPUs of its own. A cpuset with other pods' exclusive CPUs is stale: it loses those. Where
    nothing is left, it shares the pool."""
    has, requested = container.cpuset, container.requested_cpuset
    shared, coming = has and has - others.exclusive, requested and requested - others.exclusive
    if container.pause or (shared, coming) == (has, requested):
        return container if container.exclusive is False else container._replace(exclusive=False)
    return container._replace(exclusive=False, cpuset=shared or None, requested_cpuset=coming,
                              stale_cpuset=None if shared == has else has, ruled_by=ruling.authority)


def unreported_assignments(state: DesiredState, rulings: Rulings) -> dict[tuple[str, str], CpuSet]:
    """CPUs that a complete ruling assigns to a container that no source reports as live, by pod uid and container's
    name: it is yet to be created or started again, or is a runc pod's where there is no NRI. The name is "" for CPUs
    of a pod as a whole that none of its containers is listed with, and for a container that is listed by its id, which
    stands in the place of the pod's uid. CPUs that a live container of the same pod owns are left out: an init
    container's are handed on."""
    ruling = rulings.complete
    if ruling is None or not ruling.assignments.exclusive:
        return {}
    assignments = ruling.assignments
    named = {owner: cpus for owner, cpus in assignments.exclusive.items() if owner[0] and owner[1]}
    listed: dict[str, CpuSet] = {uid: EMPTY for uid, name in assignments.exclusive if uid and not name}
    for (uid, _), cpus in named.items():
        listed[uid] = listed.get(uid, EMPTY) | cpus
    taken: dict[str, CpuSet] = {}
    live = {container.id for sandbox in (state.sandboxes.values() if assignments.by_id else ())
            for container in sandbox.live()}
    for sandbox in state.sandboxes.values():
        uid = sandbox.pod.uid if sandbox.pod is not None else ""
        for container in effective_containers(sandbox, rulings) if uid in listed else ():
            if container.cpuset and container.exclusive:
                taken[uid] = taken.get(uid, EMPTY) | container.own_cpus
    left = {key: cpus - taken.get(key[0], EMPTY) for key, cpus in named.items()}
    left |= {(uid, ""): cpus - taken.get(uid, EMPTY) - listed[uid]
             for (uid, name), cpus in assignments.exclusive.items() if uid and not name}
    left |= {(container, ""): cpus for container, cpus in assignments.by_id.items() if container not in live}
    return {key: cpus for key, cpus in left.items() if cpus}


def concerned(before: Rulings, after: Rulings, state: DesiredState) -> set[SandboxId]:
    """The sandboxes whose containers may own other CPUs now. Under a complete ruling that is every one: another pod's
    CPUs make a cpuset stale. A pool that becomes known takes in unmanaged VMs."""
    names = [[ruling.authority for ruling in rulings.by_rank] for rulings in (before, after)]
    if names[0] != names[1] or (before.pool is None) != (after.pool is None):
        return set(state.sandboxes)
    owners = set()
    for (_, old), (_, new) in zip(before.by_rank, after.by_rank, strict=True):
        if old == new:
            continue
        if new.complete or old.complete or new.rule is not old.rule:
            return set(state.sandboxes)
        for had, has in ((old.exclusive, new.exclusive), (old.spare, new.spare)):
            owners |= {owner for owner in had.keys() | has.keys() if had.get(owner) != has.get(owner)}
    return {sandbox.id for sandbox in state.sandboxes.values() if owners and _listed_among(sandbox, owners)}


def _listed_among(sandbox: SandboxState, owners: set[tuple[str, str]]) -> bool:
    uid = "" if sandbox.pod is None else sandbox.pod.uid
    return any(("", record.container.id) in owners or (uid and (uid, record.container.name) in owners)
               for record in sandbox.containers.values()) or bool(uid and (uid, "") in owners)
