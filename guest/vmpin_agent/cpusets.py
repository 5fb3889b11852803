"""Writes the cpuset of a container's cgroup, in the order that the kernel accepts, and restores it.

On version 2 a child cgroup has the intersection of its list with its parent's, so only the container's is written. On
version 1 a cgroup's CPUs must be its parent's and must hold its children's (kernel/cgroup/cpuset.c: validate_change):
first what grows is written from the top down, then what shrinks from the bottom up."""

import errno
import os
from typing import Iterable, List, NamedTuple, Optional, Tuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin_agent import file_io
from vmpin_agent.guest_cgroups import ContainerCgroup, GuestCgroups, Hierarchy, cpuset_file, inode
from vmpin_agent.originals import Original, Originals


class CpusetWrite(NamedTuple):
    """One write to a file of a cgroup; `text` is a list of CPUs or of memory nodes."""

    path: str
    file: str
    text: str


def effective(hierarchy: Hierarchy, path: str) -> Optional[CpuSet]:
    """The CPUs that a cgroup allows its threads; None without the cpuset controller."""
    if not hierarchy.cpuset:
        return None
    if not hierarchy.v2:
        cpus = file_io.cpus(f"{path}/{cpuset_file(path, 'effective_cpus')}")
        return configured(path) if cpus is None else cpus
    while len(path) >= len(hierarchy.root):  # without the file it is an ancestor's
        cpus = file_io.cpus(f"{path}/cpuset.cpus.effective")
        if cpus is not None:
            return cpus
        path = os.path.dirname(path)
    return None


def configured(path: str) -> Optional[CpuSet]:
    """The CPUs that were written into a cgroup's file; None if it has none."""
    return file_io.cpus(f"{path}/{cpuset_file(path, 'cpus')}")


def above(place: ContainerCgroup) -> List[str]:
    """The ancestors of a container's cgroup without the root, uppermost first."""
    parts = place.shown.split("/")[1:-1]
    return [place.hierarchy.root + "/" + "/".join(parts[: at + 1]) for at in range(len(parts))]


def closed(place: ContainerCgroup) -> List[str]:
    """On version 2, the ancestors that do not enable cpuset for their children, uppermost first."""
    if not place.hierarchy.v2 or not place.hierarchy.cpuset or os.path.exists(f"{place.path}/cpuset.cpus"):
        return []
    return [path for path in (place.hierarchy.root, *above(place))
            if "cpuset" not in (file_io.read(f"{path}/cgroup.subtree_control") or "").split()]


def enable(paths: Iterable[str]) -> str:
    """Enable cpuset for their children. :returns: the error, such as of a cgroup with processes of its own."""
    for path in paths:
        trouble = run(CpusetWrite(path, "cgroup.subtree_control", "+cpuset"))
        if trouble:
            return trouble
    return ""


def plan(place: ContainerCgroup, below: List[str], cid: str, wanted: CpuSet, originals: Originals
         ) -> Optional[List[CpusetWrite]]:
    """The writes that give the container these CPUs; notes the originals. None: it has no cpuset. :param below: the
    cgroups below the container's, uppermost first."""
    current = configured(place.path) if place.hierarchy.cpuset else None
    if current is None:
        return None
    if place.hierarchy.v2:
        kept = _note(originals, place.path, cid, current, None)
        return [] if current == wanted else [_write(kept, originals, place.path, wanted)]
    return _plan_v1(place, below, cid, wanted, originals)


def _plan_v1(place: ContainerCgroup, below: List[str], cid: str, wanted: CpuSet,
             originals: Originals) -> List[CpusetWrite]:
    writes = []
    for path in above(place):
        writes += _memory_nodes(path)
        current = configured(path) or EMPTY
        if not wanted <= current:
            writes.append(_write(_note(originals, path, "", current, None), originals, path, current | wanted))
    writes += _memory_nodes(place.path)
    top = configured(place.path) or EMPTY
    kept = _note(originals, place.path, cid, top, None)
    states: List[Tuple[Original, str, CpuSet, CpuSet]] = [(kept, place.path, top, wanted)]
    before, targets = {place.path: top}, {place.path: wanted}
    for path in below:
        current = configured(path) or EMPTY
        parent = os.path.dirname(path)
        if not current or parent not in targets:
            continue  # it was just created or removed
        own = current if current < before[parent] else None
        kept = _note(originals, path, cid, current, own)
        if own is None and kept.own is None and not kept.ours and kept.before != originals.cgroups[parent].before:
            kept.before = originals.cgroups[parent].before  # created while its parent was narrowed
            originals.changed()
        before[path], targets[path] = current, kept.within(targets[parent])
        states.append((kept, path, current, targets[path]))
    for kept, path, current, target in states:
        if not target <= current:
            writes.append(_write(kept, originals, path, current | target))
    for kept, path, current, target in reversed(states):
        if current | target != target:
            writes.append(_write(kept, originals, path, target))
    return writes


def _memory_nodes(path: str) -> List[CpusetWrite]:
    """Gives a cgroup without memory nodes those of its nearest ancestor: version 1 admits no process to it else."""
    file, upper = cpuset_file(path, "mems"), path
    nodes = file_io.read(f"{path}/{file}")
    while nodes is not None and not nodes.strip():
        upper = os.path.dirname(upper)
        nodes = file_io.read(f"{upper}/{file}")
    return [CpusetWrite(path, file, nodes.strip())] if nodes is not None and upper != path else []


def _note(originals: Originals, path: str, cid: str, current: CpuSet, own: Optional[CpuSet]) -> Original:
    original, current_inode = originals.cgroups.get(path), inode(path) or 0
    if original is None or original.inode != current_inode:
        original = originals.cgroups[path] = Original(cid, current, own, current_inode)
    elif cid and original.container != cid:
        original.container = cid  # so far noted only as an ancestor of a container's
    elif current not in original.ours and current != original.before and own != original.own:
        original.before, original.own = current, own  # its owner has written it since
    else:
        return original
    originals.changed()
    return original


def prune(originals: Originals) -> None:
    """Forget the cgroups that are gone."""
    for path, kept in list(originals.cgroups.items()):
        if inode(path) != kept.inode:
            del originals.cgroups[path]
            originals.changed()


def _write(kept: Original, originals: Originals, path: str, cpus: CpuSet) -> CpusetWrite:
    if kept.will_be(cpus):
        originals.changed()
    return CpusetWrite(path, cpuset_file(path, "cpus"), str(cpus))


def run(write: CpusetWrite) -> str:
    """Carry out a write. :returns: the error, "" if it is done or the cgroup is gone."""
    try:
        file_io.write(f"{write.path}/{write.file}", write.text)
    except OSError as err:
        if err.errno in (errno.ENOENT, errno.ENODEV):
            return ""
        return f"{write.path}/{write.file} refused {write.text!r}: {err.strerror}"
    return ""


def restore(cgroups: GuestCgroups, originals: Originals, kept: List[str]) -> None:
    """Restore the cpusets of these cgroups, and forget them."""
    upper_first = sorted((path for path in kept if inode(path) == originals.cgroups[path].inode),
                         key=lambda path: path.count("/"))
    v1 = [path for path in upper_first if not any(hierarchy.v2 for hierarchy in cgroups.hierarchies
                                                   if path.startswith(f"{hierarchy.root}/"))]
    before = {path: originals.cgroups[path].before for path in upper_first}
    for path in v1:
        current = configured(path) or EMPTY
        over = configured(os.path.dirname(path))
        if over is not None:
            before[path] &= over  # CPUs that have gone offline since are in no cpuset
        if not before[path] <= current:
            file_io.log(run(CpusetWrite(path, cpuset_file(path, "cpus"), str(current | before[path]))))
    for path in reversed(upper_first):
        current = configured(path) or EMPTY
        if current != before[path] and (before[path] or path not in v1):
            file_io.log(run(CpusetWrite(path, cpuset_file(path, "cpus"), str(before[path]))))
    for path in kept:
        del originals.cgroups[path]
        originals.changed()
