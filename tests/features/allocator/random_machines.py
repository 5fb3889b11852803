"""Machines of up to 14 CPUs, their free CPUs, and requests: what the allocator's properties are searched in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuQuery, SmtUse


class Case(NamedTuple):
    topology: Topology
    free: CpuSet
    query: CpuQuery


def _parts(draw: st.DrawFn, pieces: Sequence[CpuSet], most: int) -> list[CpuSet]:
    """The pieces in up to so many groups: runs of neighbours, or in turn."""
    number = draw(st.integers(1, most))
    if draw(st.booleans()):
        return [group for at in range(number) if (group := union(pieces[at::number]))]
    cuts = sorted(draw(st.lists(st.integers(0, len(pieces)), min_size=number - 1, max_size=number - 1)))
    return [group for first, end in zip([0, *cuts], [*cuts, len(pieces)], strict=True)
            if (group := union(pieces[first:end]))]


def _cores(draw: st.DrawFn, count: int) -> list[CpuSet]:
    """SMT siblings side by side, far apart, or cores of any width."""
    sort = draw(st.sampled_from(["one", "beside", "beside", "far", "mixed"]))
    if sort == "far":
        far = -(-count // 2)
        return [CpuSet(range(core, count, far)) for core in range(far)]
    if sort != "mixed":
        width = draw(st.sampled_from([2, 2, 3, 4])) if sort == "beside" else 1
        return [CpuSet(range(cpu, min(cpu + width, count))) for cpu in range(0, count, width)]
    order = draw(st.permutations(range(count)))
    cores, at = [], 0
    while at < count:
        width = draw(st.integers(1, 3))
        cores.append(CpuSet(order[at:at + width]))
        at += width
    return cores


def _caches(draw: st.DrawFn, cores: Sequence[CpuSet], nodes: Sequence[CpuSet]) -> list[CpuSet]:
    """Within the nodes, over them, across them, or not shown; or shown in part."""
    sort = draw(st.sampled_from(["none", "nodes", "within", "within", "over", "across", "part"]))
    if sort == "none":
        return []
    if sort == "nodes":
        return list(nodes)
    if sort == "over":
        return _parts(draw, nodes, 2)
    if sort == "across":
        return _parts(draw, cores, 3)
    found = [cache for node in nodes
             for cache in _parts(draw, [core & node for core in cores if core & node], 3)]
    return found[1:] if sort == "part" else found


def _distances(draw: st.DrawFn, nodes: int) -> Mapping[int, Mapping[int, int]]:
    if draw(st.booleans()):
        return {}
    if draw(st.booleans()):  # pairs that are near each other, as the parts of a socket
        return {a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 32 for b in range(nodes)} for a in range(nodes)}
    value = st.sampled_from([12, 20, 21, 32])
    shown = [node for node in range(nodes) if draw(st.integers(0, 9))]
    return {a: {b: 10 if a == b else draw(value) for b in range(nodes)} for a in shown}


@st.composite
def machines(draw: st.DrawFn, most: int = 14) -> Topology:
    count = draw(st.integers(1, most))
    cores = _cores(draw, count)
    nodes = _parts(draw, cores if draw(st.integers(0, 9)) else [CpuSet((cpu,)) for cpu in range(count)], 4)
    caches = _caches(draw, cores, nodes)
    distances = _distances(draw, len(nodes))
    sockets = _parts(draw, nodes, 2) if draw(st.booleans()) else []
    shown = dict(enumerate(nodes))
    if draw(st.integers(0, 9)) == 0:
        shown.pop(draw(st.sampled_from(sorted(shown))))
    off = draw(st.sets(st.integers(0, count - 1), max_size=count - 1)) if draw(st.integers(0, 3)) == 0 else set()
    return Topology.build(CpuSet(range(count)) - CpuSet(off), cores, caches, shown, distances=distances,
                          sockets=sockets)


@st.composite
def cases(draw: st.DrawFn, most: int = 14) -> Case:
    topology = draw(machines(most))
    online = list(topology.online)
    state = draw(st.lists(st.sampled_from("ffffff" + draw(st.sampled_from(["", "uuu", "uuuuuukk", "k"]))),
                          min_size=len(online), max_size=len(online)))
    free = CpuSet(cpu for cpu, is_ in zip(online, state, strict=True) if is_ == "f")
    keep = CpuSet(cpu for cpu, is_ in zip(online, state, strict=True) if is_ == "k")
    near = frozenset(draw(st.sets(st.integers(0, 4), max_size=2)) if draw(st.booleans()) else ())
    query = CpuQuery(draw(st.integers(max(1, len(keep)), max(1, len(free) + len(keep)))),
                     draw(st.sampled_from(list(Alignment))), draw(st.integers(0, 3)) == 0,
                     draw(st.sampled_from(list(SmtUse))), draw(st.integers(0, 2)) == 0, near, keep or EMPTY)
    return Case(topology, free, query)
