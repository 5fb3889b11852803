"""The allocator's report, and its text: each container's CPUs, by which annotation and since when; what is free, and
what was refused (`vmpin alloc`); and sentences about one pod (`vmpin status --explain`). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import age_at, number_of
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import (
    Alignment,
    CpuCost,
    CpuQuery,
    CpuWish,
    FoundCpus,
    Refusal,
)
from vmpin.features.allocator.grants.eligibility import allowed_cpus, query_of
from vmpin.features.allocator.grants.ledger import Grant, Ledger, age
from vmpin.features.allocator.search.best_set import best_cpus, best_part, largest, runner_up
from vmpin.features.allocator.search.cost_tables import cost_order
from vmpin.features.allocator.texts.grant_data import wish_texts
from vmpin.named_tuple import NamedTuple

#: Of the JSON document.
VERSION = 1


class AllocatorView(NamedTuple):
    """The allocator's state at one moment. `mode` is the one in force; `why` is the reason where it is not the
    configured one, else "". `pool` are the CPUs that are no container's own. `refusals` since the watcher started, by
    kind."""

    mode: str
    why: str
    machine: Topology
    options: AllocationOptions
    ledger: Ledger
    pool: CpuSet
    refusals: Mapping[str, int] = MappingProxyType({})
    pool_changes: int = 0


def allocation_report(view: AllocatorView) -> dict[str, Any]:
    """The document: CPU lists as text, times as RFC 3339 in UTC."""
    machine, ledger = view.machine, view.ledger
    free, fits = free_cpus(view), largest_sets(view)
    caches = dict.fromkeys(machine.cache_of(cpu) & machine.online for cpu in machine.online)
    return {"version": VERSION, "mode": view.mode, "why": view.why, "online": str(machine.online),
            "reserved": str(view.options.reserved), "pool": str(view.pool), "shared": str(ledger.shared),
            "groups": {name: str(rule.cpus - view.options.reserved) for name, rule in view.options.groups.items()
                       if rule.cpus - view.options.reserved},
            "free": {"cpus": str(free), "largest": fits["machine"], "largest_in_node": fits["node"],
                     "largest_in_cache": fits["cache"],
                     "nodes": {str(node): str(cpus & free) for node, cpus in machine.nodes.items()},
                     "caches": [{"cpus": str(cache), "free": str(cache & free)} for cache in caches]},
            "grants": [_grant(grant) for grant in sorted(ledger.grants.values(), key=age)],
            "refused": [{"namespace": request.namespace, "pod": request.pod, "container": request.container,
                         "reason": request.reason, "time": _time(request.time_ns)} for request in ledger.refused]}


def allocatable_cpus(view: AllocatorView) -> CpuSet:
    """The CPUs that a container may get as its own, whether or not another has them now: without reserved and isolated
    ones, and without the fixed sets of groups."""
    allowed = allowed_cpus(view.machine, CpuWish(), view.options)
    return CpuSet() if isinstance(allowed, Refusal) else allowed


def free_cpus(view: AllocatorView) -> CpuSet:
    """The CPUs that a container may still get as its own."""
    return allocatable_cpus(view) - view.ledger.held() - view.ledger.foreign_cpus()


def brief(view: AllocatorView) -> dict[str, str]:
    """Return the summary for followers of the watcher: two CPU lists, however many containers there are."""
    return {"allocatable": str(allocatable_cpus(view)), "free": str(free_cpus(view)), "why": ""}


def largest_sets(view: AllocatorView) -> dict[str, int]:
    """The size of the largest set of CPUs that would fit: anywhere, within one NUMA node, within one last-level
    cache."""
    smt, free = view.options.smt, free_cpus(view)
    queries = {"machine": CpuQuery(0, smt=smt), "node": CpuQuery(0, Alignment.NODE, True, smt),
               "cache": CpuQuery(0, Alignment.CACHE, True, smt)}
    return {within: largest(view.machine, free, query) for within, query in queries.items()}


def free_text(free: Mapping[str, Any]) -> str:
    """Describe the free CPUs, and how fragmented they are. :param free: as the report has it."""
    nodes = ", ".join(f"node {node}: {cpus or 'none'}" for node, cpus in free["nodes"].items())
    count = len(CpuSet.parse(free["cpus"]))
    these = f"{'this' if count == 1 else 'these'} {number_of(count, 'CPU')}"
    return (f"free {free['cpus'] or 'none'} ({nodes}); of {these} the largest "
            f"set that fits has {free['largest']}, within one NUMA node {free['largest_in_node']}, within one "
            f"last-level cache {free['largest_in_cache']}")


def _grant(grant: Grant) -> dict[str, Any]:
    return {"namespace": grant.namespace, "pod": grant.pod, "container": grant.name, "id": grant.container,
            "sandbox": grant.sandbox, "vm": grant.vm, "policy": str(grant.policy), "group": grant.group,
            "state": str(grant.state), "cpus": str(grant.cpus), "spare": str(grant.spare), "node": grant.node,
            "cpuset": str(grant.written), "left_alone": grant.left_alone,
            "request": grant.amount.request / 1000, "limit": grant.amount.limit / 1000 or None,
            "asked": wish_texts(grant.wish), "near": str(grant.near), "least_distance": grant.least_distance,
            "since": _time(grant.since_ns)}


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def grant_rows(report: Mapping[str, Any], now: datetime, wide: bool = False) -> list[list[object]]:
    """A row for each container: those with CPUs of their own; with `wide` also those on the pool."""
    return [[f"{grant['namespace']}/{grant['pod']}", grant["container"], grant["group"] or grant["policy"],
             grant["cpus"] or "-", *([grant["spare"] or "-", grant["cpuset"] or "-"] if wide else []),
             grant["state"], _why(grant), age_at(grant["since"], now)]
            for grant in report["grants"] if wide or grant["cpus"] or grant["spare"]]


def grant_columns(wide: bool = False) -> Sequence[str]:
    return ["POD", "CONTAINER", "POLICY", "CPUS", *(["SPARE", "CPUSET"] if wide else []), "STATE", "WHY", "SINCE"]


def _why(grant: Mapping[str, Any]) -> str:
    if grant["left_alone"]:
        return "another program's cpuset" if grant["cpuset"] else "left alone"
    return _asked_text(grant["asked"], grant.get("near", ""))


def _asked_text(asked: Mapping[str, str], near: str) -> str:
    """Describe what annotations ask for. :param near: the NUMA nodes of the devices that they name."""
    nodes = f"NUMA node{'' if near.isdigit() else 's'} {near}" if near else "no NUMA node"
    return " ".join(f"{key}={text} ({nodes})" if key == "near" and not text.startswith("nodes:") else f"{key}={text}"
                    for key, text in asked.items()) or "allocate.default"


def summary(report: Mapping[str, Any]) -> list[str]:
    """Return the lines above the table."""
    headroom = CpuSet.parse(report["pool"]) - CpuSet.parse(report["shared"]) if report["shared"] else CpuSet()
    lines = [f"allocate.mode {report['mode']}" + (f" ({report['why']})" if report["why"] else ""),
             f"pool {report['pool'] or 'none'}, reserved {report['reserved'] or 'none'}"
             + (f", headroom {headroom}" if headroom else ""),
             free_text(report["free"])]
    if report["mode"] == "observe":
        lines.append("observed: this is what would be given; no container's cpuset was changed")
    return lines


def refusals(report: Mapping[str, Any], now: datetime) -> list[str]:
    return [f"refused {age_at(request['time'], now)} ago: {request['namespace']}/{request['pod']}/"
            f"{request['container']}: {request['reason']}" for request in report["refused"]]


def misplaced(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The running containers whose cgroups leave them other CPUs than the ledger's. :param report: with the CPUs of
    cgroups (`actual`); grants without them are not compared."""
    online = CpuSet.parse(report["online"])
    keys = ("namespace", "pod", "container", "id", "sandbox", "policy", "cpuset", "actual")
    return [{key: grant[key] for key in keys} for grant in report["grants"]
            if grant["state"] == "running" and grant["cpuset"] and not grant["left_alone"]
            and grant.get("actual") is not None
            and CpuSet.parse(grant["actual"]) != CpuSet.parse(grant["cpuset"]) & online]


def explanations(view: AllocatorView, name: str) -> list[str]:
    """Sentences about the grants of a container or pod: its CPUs, by which annotation, at which cost, and the next
    best set; and its refusals.
    :param name: NAMESPACE/POD, NAMESPACE/POD/CONTAINER, or the beginning of a container's or sandbox's id."""
    grants = [grant for grant in sorted(view.ledger.grants.values(), key=age)
              if name in (f"{grant.namespace}/{grant.pod}", f"{grant.namespace}/{grant.pod}/{grant.name}")
              or grant.container.startswith(name) or grant.sandbox.startswith(name)]
    names = {name, *(f"{grant.namespace}/{grant.pod}/{grant.name}" for grant in grants),
             *(f"{grant.namespace}/{grant.pod}" for grant in grants if grant.sandbox.startswith(name))}
    return [*(sentence for grant in grants for sentence in _explained(view, grant)),
            *(f"container {request.container} of {request.namespace}/{request.pod} was refused at "
              f"{_time(request.time_ns)}: {request.reason}" for request in view.ledger.refused
              if names & {f"{request.namespace}/{request.pod}",
                          f"{request.namespace}/{request.pod}/{request.container}"})]


def _explained(view: AllocatorView, grant: Grant) -> Iterator[str]:
    name = f"container {grant.name} of {grant.namespace}/{grant.pod}"
    asked = _asked_text(wish_texts(grant.wish), str(grant.near))
    if grant.left_alone:
        has = (f"the cpuset {grant.written}, which another program gave it" if grant.written else
               "no cpuset, and vmpin sets none")
        yield f"{name} has {has}: it is left alone"
        return
    if not grant.cpus:
        yield f"{name} has no CPUs of its own ({asked}): it runs on {grant.written or view.pool}"
        return
    yield f"{name} has CPUs {grant.cpus} ({asked}), since {_time(grant.since_ns)}; {grant.state}"
    if grant.spare:
        yield f"{name}: its VM's spare vCPUs and other threads have CPUs {grant.spare}"
    free = free_cpus(view) | grant.cpus
    query = query_of(grant, len(grant.cpus), view.options, CpuSet())
    here = best_part(view.machine, free, grant.cpus, query)
    if isinstance(here, Refusal):
        return  # its CPUs are offline, or are no whole cores any more
    yield f"{name}: {_parts(here.cost)}"
    if grant.least_distance is not None:
        yield (f"{name}: not all sets of nodes could be tried: its distance is {here.cost.distance}, and none as good "
               f"in the parts before had less than {grant.least_distance}")
    yield f"{name}: {_alternative(view, query, free, here)}"


def _alternative(view: AllocatorView, query: CpuQuery, free: CpuSet, here: FoundCpus) -> str:
    """Describe the set that would be better than a container's CPUs, or else the next best. :param free: these CPUs
    and all that are free."""
    best = best_cpus(view.machine, free, query)
    better = isinstance(best, FoundCpus) and _ordered(best.cost, query) < _ordered(here.cost, query)
    if isinstance(best, FoundCpus) and (better or (best.least_distance is None and best.cpus != here.cpus)):
        return f"today CPUs {best.cpus} would be better ({_parts(best.cost)}); what runs is not moved unasked"
    if isinstance(best, FoundCpus) and best.least_distance is not None:
        return (f"no better set was found; not all sets of nodes could be tried today, and none as good in the parts "
                f"before has a distance of less than {best.least_distance}")
    other = runner_up(view.machine, free, query, here)
    if other is None:
        return "no other set is free"
    proven = "the next best set" if other.least_distance is None else "another set, perhaps not the next best one,"
    cost = "at the same cost, with higher numbers" if other.cost == here.cost else f"({_parts(other.cost)})"
    return f"{proven} is {other.cpus}{',' if other.cost == here.cost else ''} {cost}"


def _ordered(cost: CpuCost, query: CpuQuery) -> list[int]:
    return [getattr(cost, part) for part in cost_order(query.align)]


def _parts(cost: CpuCost) -> str:
    """The parts of a cost that are not 0, as text."""
    names = {"nodes": "NUMA nodes", "distance": "distance", "away": "CPUs away from the devices",
             "caches": "last-level caches", "partial_cores": "cores held in part",
             "broken_nodes": "whole nodes broken", "broken_caches": "whole caches broken",
             "broken_cores": "whole cores broken", "leftover": "CPUs left in the touched caches",
             "node_left": "CPUs left in the touched nodes"}
    return "cost: " + ", ".join(f"{names[name]} {value}" for name, value in cost._asdict().items() if value)
