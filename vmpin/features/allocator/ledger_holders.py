"""Which containers hold which CPUs by the allocator's report, for the map and `vmpin verify`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.terminal import printable
from vmpin.features.allocator.allocation_report import free_text
from vmpin.features.common.cpu_owner import CpuOwner
from vmpin.features.common.held_cpus import CpuHolder, HeldCpus

#: Names of a group's containers that a legend has.
_NAMES = 6


def held_cpus(report: Mapping[str, Any]) -> HeldCpus | None:
    """Return the CPUs that the ledger marks in a map. None with `allocate.mode` off or observe: no container has them
    then."""
    if report["mode"] != "on":
        return None
    grants, reserved = report["grants"], CpuSet.parse(report["reserved"])
    infra = sum(grant["policy"] == "infra" and grant["state"] != "lapsed" for grant in grants)
    notes = [free_text(report["free"])]
    if reserved:
        notes.append(f"reserved {reserved}: {infra} container{'s' * (infra != 1)} of policy infra on "
                     f"{'it' if len(reserved) == 1 else 'them'}")
    pool = CpuSet.parse(report["pool"])
    holders = [holder for grant in grants if not grant["group"] for holder in _holders(grant, grants, pool)]
    holders += _groups(report)
    return HeldCpus(tuple(sorted((holder for holder in holders if holder.cpus),
                                 key=lambda holder: (holder.cpus <= pool, list(holder.cpus), holder.title))),
                     frozenset(grant["id"] for grant in grants), CpuSet.parse(report["shared"]), reserved,
                     tuple(notes))


def ledger_owners(report: Mapping[str, Any]) -> tuple[CpuOwner, ...]:
    """The owners of CPUs that are out of the pool and are no exclusive container's: groups, and VMs whose spare set is
    their own."""
    pool, live = CpuSet.parse(report["pool"]), [grant for grant in report["grants"] if grant["state"] != "lapsed"]
    members: dict[str, set[str]] = {}
    for grant in live:
        members.setdefault(_group_title(grant["group"]), set()).update((grant["id"], grant["sandbox"]))
    owners = [CpuOwner("", holder.title, holder.cpus, False, label=holder.title,
                       members=frozenset(members.get(holder.title, ()))) for holder in _groups(report)]
    owners += [CpuOwner(grant["sandbox"], grant["id"], CpuSet.parse(grant["spare"]) - pool, True, label=_title(grant))
               for grant in live]
    return tuple(owner for owner in owners if owner.cpus)


def _holders(grant: Mapping[str, Any], grants: list[Mapping[str, Any]], pool: CpuSet) -> list[CpuHolder]:
    kind = "VM" if grant["vm"] else "runc"
    cpus, spare, title = CpuSet.parse(grant["cpus"]), CpuSet.parse(grant["spare"]), _title(grant)
    if grant["state"] == "lapsed":  # a live container of the pod may have some of its CPUs by now
        live = union(CpuSet.parse(other["cpus"]) for other in grants
                     if other["sandbox"] == grant["sandbox"] and other["state"] != "lapsed")
        return [CpuHolder(title, f"lapsed: its pod keeps them until it ends, {kind}", cpus - live, grant["sandbox"])]
    policy = "fixed, also in the shared pool" if grant["policy"] == "fixed" else grant["policy"]
    pooled = "also in the shared pool" if spare <= pool else "the VM's own"
    return [CpuHolder(title, f"{policy}, {kind}", cpus, grant["sandbox"]),
            CpuHolder(title, f"spare CPUs of the VM, {pooled}", spare, grant["sandbox"])]


def _groups(report: Mapping[str, Any]) -> list[CpuHolder]:
    """Each group once: its containers share its CPUs. One with a fixed set has it without any container."""
    groups: dict[str, tuple[CpuSet, list[str]]] = {
        name: (CpuSet.parse(cpus), []) for name, cpus in report.get("groups", {}).items()}
    for grant in report["grants"]:
        if grant["group"]:
            cpus, names = groups.setdefault(grant["group"], (EMPTY, []))
            groups[grant["group"]] = (cpus | CpuSet.parse(grant["cpus"]), [*names, _title(grant)])
    return [CpuHolder(_group_title(name), _members(names), cpus) for name, (cpus, names) in groups.items()]


def _members(names: list[str]) -> str:
    more = [f"{len(names) - _NAMES} more"] * (len(names) > _NAMES)
    return "of " + (", ".join([*names[:_NAMES], *more]) or "no container yet")


def _group_title(name: str) -> str:
    return f"group {printable(name)}"


def _title(grant: Mapping[str, Any]) -> str:
    return printable(f"{grant['namespace']}/{grant['pod']} {grant['container']}")
