"""The guest's own processes, that is all but containers' and kernel threads: they are pinned to the spare vCPUs."""

from typing import List, Set

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.protocol.messages import APPLIED, MAX_OUTSIDE, PENDING, ContainerOutcome
from vmpin_agent import guest_threads
from vmpin_agent.originals import Originals
from vmpin_agent.thread_masks import ThreadGroup, ThreadMasks, outside


class SystemProcesses:
    """Lists them during one pass. :param inside: the pids of containers' processes."""

    def __init__(self, proc: str, inside: Set[int]) -> None:
        self._proc = proc
        self._inside = inside
        #: Pids of kernel threads, for one pass only: a pid may be reused in the next.
        self._kernel: Set[int] = set()

    def processes(self) -> List[int]:
        pids = []
        for pid in guest_threads.processes(self._proc):
            if pid in self._inside or pid in self._kernel:
                continue
            stat = guest_threads.stat(f"{self._proc}/{pid}/stat")
            if stat is not None and stat.kernel:
                self._kernel.add(pid)
            elif stat is not None:
                pids.append(pid)
        return pids

    def threads(self) -> List[int]:
        return [tid for pid in self.processes() for tid in guest_threads.of_process(self._proc, pid)]


def pin(own: SystemProcesses, originals: Originals, masks: ThreadMasks, wanted: CpuSet,
        online: CpuSet) -> ContainerOutcome:
    """Set the masks of all their threads. :returns: the outcome, as for a container."""
    originals.add(originals.system, wanted)
    group = ThreadGroup("", own.threads, wanted, online)
    masks.pin_all([group])
    every = own.threads()
    out = outside(every, wanted)
    got = union(guest_threads.mask(tid) or EMPTY for tid in every)
    return ContainerOutcome(PENDING if out else APPLIED, None, wanted, got, len(own.processes()), len(every),
                            tuple(out[:MAX_OUTSIDE]), group.trouble)
