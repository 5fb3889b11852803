"""What was there before the agent changed it, so that it can be put back: cpusets of cgroups, and masks of threads.

Kept in a file under /run as well, so that an agent that is started again does not take its own work for what a
container wished. It is written before anything is changed, and void after a boot.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Set

from vmpin.cpuset import CpuSet
from vmpin_agent import file_io
from vmpin_agent.guest_threads import ThreadKey

#: How many values are kept at most: of one thing some are about to be set, of the system's masks some were.
_OURS = 6


class Original:
    """One cgroup's cpuset or thread's mask.

    `before` is what it was; `own` the part that is narrower by its owner's own wish, None when it has none and goes
    with what is above it; `ours` is what the agent set last, so that another value is known to be the owner's, and
    what it is about to set until that is done.
    """

    __slots__ = ("before", "container", "inode", "ours", "own")

    def __init__(self, container: str, before: CpuSet, own: Optional[CpuSet], inode: int = 0) -> None:
        self.container = container
        self.before = before
        self.own = own
        self.inode = inode
        self.ours: List[CpuSet] = []

    def within(self, cpus: CpuSet) -> CpuSet:
        """What it is to have of these: never beyond its own wish, but where nothing would be left."""
        return cpus if self.own is None else (self.own & cpus) or cpus

    def will_be(self, cpus: CpuSet) -> bool:
        """Note a value that is about to be set. :returns: whether that is news."""
        if self.ours[-1:] == [cpus]:
            return False
        self.ours = [*(each for each in self.ours if each != cpus), cpus][-_OURS:]
        return True

    def done(self) -> None:
        """What was about to be set is."""
        self.ours = self.ours[-1:]

    def data(self) -> List[Any]:
        return [self.container, str(self.before), None if self.own is None else str(self.own), self.inode,
                [str(each) for each in self.ours]]


class Originals:
    """:param path: the file. :param boot: the boot's id, of which alone it is true."""

    def __init__(self, path: str, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._saved = ""
        self._changed = False
        #: By path.
        self.cgroups: Dict[str, Original] = {}
        self.threads: Dict[ThreadKey, Original] = {}
        #: The cgroups that were told to pass cpuset on, uppermost first.
        self.enabled: List[str] = []
        #: The masks that the guest's own processes were given: children of theirs begin with one in a container.
        self.system: List[CpuSet] = []
        #: What threads were left with that were to have everything again, where Linux cut that to what was online.
        self.left: List[CpuSet] = []
        self._load()

    def system_mask(self, cpus: CpuSet) -> None:
        if cpus not in self.system:
            self.system = [*self.system, cpus][-_OURS:]
            self._changed = True

    def left_with(self, cpus: CpuSet) -> None:
        if cpus not in self.left:
            self.left = [*self.left, cpus][-_OURS:]
            self._changed = True

    def containers(self) -> Set[str]:
        """Whose cpusets and masks are kept; "" are the guest's own."""
        return {kept.container for kept in (*self.cgroups.values(), *self.threads.values())}

    def changed(self) -> None:
        self._changed = True

    def save(self) -> str:
        """:returns: what is wrong, "" when it is written."""
        if not self._changed:
            return ""
        text = json.dumps({
            "boot": self._boot, "cgroups": {path: kept.data() for path, kept in self.cgroups.items()},
            "threads": [[key.tid, key.start, kept.data()] for key, kept in self.threads.items()],
            "enabled": self.enabled, "system": [str(each) for each in self.system],
            "left": [str(each) for each in self.left]}, separators=(",", ":"))
        self._changed = False
        if text == self._saved:
            return ""
        try:
            file_io.replace(self._path, text, 0o600)
        except OSError as err:
            return f"{self._path}: {err.strerror}"
        self._saved = text
        return ""

    def forget(self) -> None:
        """All but what threads were left with, which they still have."""
        self.cgroups, self.threads, self.enabled, self.system = {}, {}, [], []
        self._changed = True

    def _load(self) -> None:
        text = file_io.read(self._path)
        if text is None:
            return
        try:
            told = json.loads(text)
            if told["boot"] == self._boot:
                self.cgroups = {str(path): _kept(data) for path, data in told["cgroups"].items()}
                self.threads = {ThreadKey(int(tid), int(start)): _kept(data) for tid, start, data in told["threads"]}
                self.enabled = [str(each) for each in told["enabled"]]
                self.system = [CpuSet.parse(each) for each in told["system"]]
                self.left = [CpuSet.parse(each) for each in told["left"]]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as err:
            self.forget()
            file_io.log(f"{self._path} cannot be used: {err!r}")


def _kept(data: List[Any]) -> Original:
    """:raises CpuSetError: or TypeError, when the file was not written by this agent."""
    container, before, own, inode, ours = data
    made = Original(str(container), CpuSet.parse(before), None if own is None else CpuSet.parse(own), int(inode))
    made.ours = [CpuSet.parse(each) for each in ours]
    return made
