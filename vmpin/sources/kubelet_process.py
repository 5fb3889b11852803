"""Whether a kubelet runs on the node, by itself or in a distribution's program (k3s, MicroK8s' kubelite).

The checkpoint remains when its kubelet has ended, and then no CPUs are freed. Use this only for a finding that depends
on the checkpoint: it may read the command line of every process."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vmpin.domain.distributions import ACTIONS, KUBELETS, RANCHER, is_kubelet
from vmpin.host.daemons import flag, names_of
from vmpin.host.procfs import Procfs, split_arguments

#: For so long (s) the processes are not read again if none was a kubelet.
PAUSE = 10.0


class KubeletProcess:
    """The kubelet among the processes below `proc`, remembered while it runs."""

    def __init__(self, proc: Procfs) -> None:
        self._proc = proc
        #: Its pid and start time.
        self._known: tuple[str, int] | None = None
        #: The last answer, and when no process was a kubelet (CLOCK_MONOTONIC, seconds).
        self._last: bool | None = None
        self._searched = float("-inf")

    def runs(self, now: float | None = None) -> bool | None:
        """Whether a kubelet runs; None if that is unknown: in another pid namespace than the node's, or if a process
        in a container has a kubelet's name, which may be the node's kubelet (Talos) or anything.
        :param now: CLOCK_MONOTONIC in seconds."""
        now = time.monotonic() if now is None else now
        if self._known is not None and self._starttime(self._known[0]) == self._known[1]:
            return True
        if now - self._searched < PAUSE:
            return self._last
        self._known = None
        try:
            self._last = self._search()
        except OSError:
            self._last = None
        self._searched = float("-inf") if self._last else now
        return self._last

    def other_directory(self, directory: Path) -> str:
        """The directory of the running kubelet if its command line names another one than `directory`, by any link or
        mount; "" otherwise, and if that cannot be read. Call it after `runs`."""
        if self._known is None:
            return ""
        try:
            named = flag(self._proc.cmdline(self._known[0]), "root-dir")
            same = named[:1] != "/" or os.path.samefile(f"{self._proc.root}/{self._known[0]}/root{named}", directory)
        except OSError:
            return ""
        return "" if same else named

    def _search(self) -> bool | None:
        """Read every process, and remember the kubelet."""
        if self._proc.nested("self") is not False or not self._proc.beginning(1):
            return None
        contained = False
        for pid in self._proc.pids():
            if self._proc.nested(pid):  # its command line may not be readable for ever (is_containers)
                stat = None if contained else self._proc.stat(pid)
                contained = contained or (stat is not None and _is_named_kubelet(stat.comm)
                                          and stat.state not in "ZX" and not self._proc.foreign_uid(pid))
                continue
            argv = split_arguments(self._proc.beginning(pid))
            if not any(is_kubelet(name, argv) for name in names_of(argv)):
                continue
            starttime = self._starttime(pid)
            if starttime is not None and not self._proc.foreign_uid(pid):
                self._known = pid, starttime
                return True
        return None if contained else False

    def _starttime(self, pid: str) -> int | None:
        """The start time of a process; None if it has ended (zombies included)."""
        stat = self._proc.stat(pid)
        return None if stat is None or stat.state in "ZX" else stat.starttime


def _is_named_kubelet(comm: str) -> bool:
    """Whether a thread's name is that of a kubelet. k3s and rke2 name themselves `k3s-server`."""
    program, _, action = comm.partition("-")
    return any(name in KUBELETS for name in names_of([comm])) or (program in RANCHER and action in ACTIONS[program])
