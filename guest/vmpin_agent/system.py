"""The guest's own processes: all that is in no container's cgroup and no kernel thread. They go on the spare vCPUs."""

from __future__ import annotations

from typing import List, Set

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.guestproto import APPLIED, MAX_OUTSIDE, PENDING, Outcome
from vmpin_agent import threads
from vmpin_agent.masks import Group, Masks, outside
from vmpin_agent.memory import Memory


def pin(proc: str, memory: Memory, masks: Masks, wanted: CpuSet, online: CpuSet, inside: Set[int]) -> Outcome:
    """Pin them by mask. :param inside: the processes of containers."""
    memory.system_mask(wanted)
    kernel: Set[int] = set()

    def pids() -> List[int]:
        found = []
        for pid in threads.processes(proc):
            if pid in inside or pid in kernel:
                continue
            stat = threads.stat(f"{proc}/{pid}/stat")
            if stat is not None and stat.kernel:
                kernel.add(pid)  # for this pass: the number may be another's in the next
            elif stat is not None:
                found.append(pid)
        return found

    def tids() -> List[int]:
        return [tid for pid in pids() for tid in threads.of_process(proc, pid)]

    group = Group("", tids, wanted, online)
    masks.pin_all([group])
    of = pids()
    every = [tid for pid in of for tid in threads.of_process(proc, pid)]
    out = outside(every, wanted)
    got = union(threads.mask(tid) or EMPTY for tid in every)
    state = PENDING if out else APPLIED
    return Outcome(state, None, wanted, got, len(of), len(every), tuple(out[:MAX_OUTSIDE]), group.trouble)
