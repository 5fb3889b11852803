"""Reads the threads of a process from /proc, at little cost if nothing changed."""

from collections.abc import Collection, Mapping, Sequence

from vmpin.domain.model import ThreadId, ThreadRole, VmThread
from vmpin.host.procfs import Procfs, Stat
from vmpin.vmm.virtual_machine import Process, Reading, Refresh


def read_threads(proc: Procfs, process: Process, reread: bool, forks_reported: bool = False) -> Refresh:
    """Read a process's threads and store them in `process`.
    :param reread: whether to read all threads, not only new and young ones.
    :param forks_reported: whether every fork event marks its process outdated. Then a process that is not outdated and
        has an unchanged number of threads is not listed."""
    same = not process.young and not reread
    if (same and forks_reported and process.listing is Reading.CURRENT
            and proc.thread_count(process.pid) == len(process.tasks)):
        return Refresh.UNCHANGED
    tasks = proc.tids(process.pid)
    if same and tasks == process.tasks:
        process.listing = Reading.CURRENT
        return Refresh.UNCHANGED
    if not tasks:
        process.stats.clear()
        process.threads.clear()
        process.tasks = tasks
        return Refresh.ENDED
    tids = list(map(int, tasks))
    again = (dict.fromkeys(tids) if reread or not process.stats else
             {process.pid, *process.young, *(set(tids) - process.stats.keys())})
    fresh = proc.task_stats(process.pid, again)
    if _has_been_killed(process, fresh):
        return Refresh.ENDED
    stats, young = _merged(process.stats, tids, again, fresh)
    main = stats.get(process.pid)
    if main is None or main.starttime != process.id.starttime or main.state in "ZX":
        process.threads.clear()
        return Refresh.ENDED
    changed = stats != process.stats
    process.tasks, process.stats, process.young, process.listing = tasks, stats, young, Reading.CURRENT
    if changed and process.role is not ThreadRole.EMULATOR:
        process.threads = {tid: VmThread(ThreadId(tid, stat.starttime), process.role, stat.comm, process.pid)
                           for tid, stat in stats.items()}
    return Refresh.CHANGED if changed else Refresh.UNCHANGED


def _has_been_killed(process: Process, fresh: Mapping[int, Stat]) -> bool:
    """Whether a process that was read before has ended but is not reaped yet (a zombie)."""
    before, main = process.stats.get(process.pid), fresh.get(process.pid)
    return (before is not None and main is not None and main.state in "ZX"
            and (before.comm, before.starttime) == (main.comm, main.starttime))


def _merged(before: Mapping[int, Stat], tids: Sequence[int], again: Collection[int],
            fresh: dict[int, Stat]) -> tuple[dict[int, Stat], set[int]]:
    """Merge newly read stats into earlier ones; an unchanged thread keeps its earlier stat.
    :param again: the threads that were read again. :param fresh: their stats.
    :returns: the stats of `tids`, and the threads that are new or have another name."""
    if not before:
        return fresh, set(fresh)
    stats: dict[int, Stat] = {}
    young = set()
    for tid in tids:
        if tid not in again:
            stats[tid] = before[tid]
        elif tid in fresh:
            old, stat = before.get(tid), fresh[tid]
            if old is None or (old.comm, old.starttime) != (stat.comm, stat.starttime):
                young.add(tid)
                stats[tid] = stat
            else:
                stats[tid] = old
    return stats, young
