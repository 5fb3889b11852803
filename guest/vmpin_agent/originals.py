"""The original cpusets of cgroups and masks of threads, from before the agent changed them, for restoring them.

They are also kept in a file under /run, so that a restarted agent does not mistake its own masks for a container's.
The file is written before anything is changed, and is void after a boot."""

import json
from typing import Any, Dict, List, Optional, Set

from vmpin.bounded import load_json
from vmpin.cpuset import CpuSet
from vmpin_agent import file_io
from vmpin_agent.guest_threads import ThreadKey

#: The most values kept for one cgroup or thread that are about to be set, and of the system's earlier masks.
_OURS = 6


class Original:
    """The original of one cgroup's cpuset or one thread's mask. `before` is the value to restore; `own` the narrower
    value that its owner chose, None if it follows what is above it; `ours` are the value that the agent set last and,
    until done, the one that it is about to set: any other value that is read back was set by the owner."""

    __slots__ = ("before", "container", "inode", "ours", "own")

    def __init__(self, container: str, before: CpuSet, own: Optional[CpuSet], inode: int = 0) -> None:
        self.container = container
        self.before = before
        self.own = own
        self.inode = inode
        self.ours: List[CpuSet] = []

    def within(self, cpus: CpuSet) -> CpuSet:
        """The part of `cpus` to set: within the owner's choice, unless nothing would be left."""
        return cpus if self.own is None else (self.own & cpus) or cpus

    def will_be(self, cpus: CpuSet) -> bool:
        """Note a value that is about to be set. :returns: whether that changes the notes."""
        if self.ours[-1:] == [cpus]:
            return False
        self.ours = [*(earlier for earlier in self.ours if earlier != cpus), cpus][-_OURS:]
        return True

    def done(self) -> None:
        """Note that the value about to be set is set."""
        self.ours = self.ours[-1:]

    def data(self) -> List[Any]:
        return [self.container, str(self.before), None if self.own is None else str(self.own), self.inode,
                [str(earlier) for earlier in self.ours]]


class Originals:
    """:param path: the file. :param boot: the id of the boot for which it is valid."""

    def __init__(self, path: str, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._saved = ""
        #: The error of the last attempt to write the file, "" without one.
        self._trouble = ""
        self._changed = False
        #: By path.
        self.cgroups: Dict[str, Original] = {}
        self.threads: Dict[ThreadKey, Original] = {}
        #: The cgroups in which the agent enabled cpuset for their children, uppermost first.
        self.enabled: List[str] = []
        #: The masks that the guest's own processes were given: their children have one when they enter a container.
        self.system: List[CpuSet] = []
        #: The masks that freed threads ended up with, where Linux cut them to the CPUs online at that time.
        self.left: List[CpuSet] = []
        self._load()

    def add(self, masks: List[CpuSet], cpus: CpuSet) -> None:
        """Add to `system` or `left`, in place of the oldest."""
        if cpus not in masks:
            masks[:] = [*masks, cpus][-_OURS:]
            self._changed = True

    def containers(self) -> Set[str]:
        """The containers of the kept cpusets and masks; "" stands for the guest's own processes."""
        return {kept.container for kept in (*self.cgroups.values(), *self.threads.values())}

    def changed(self) -> None:
        self._changed = True

    def save(self) -> str:
        """Write the file if anything has changed, or could not be written before. :returns: a new error, "" without
        one."""
        if not self._changed and not self._trouble:
            return ""
        text = json.dumps({
            "boot": self._boot, "cgroups": {path: kept.data() for path, kept in self.cgroups.items()},
            "threads": [[key.tid, key.start, kept.data()] for key, kept in self.threads.items()],
            "enabled": self.enabled, "system": [str(cpus) for cpus in self.system],
            "left": [str(cpus) for cpus in self.left]}, separators=(",", ":"))
        self._changed = False
        if text == self._saved:
            self._trouble = ""
            return ""
        try:
            file_io.replace(self._path, text, 0o600)
        except OSError as err:
            before, self._trouble = self._trouble, f"{self._path}: {err.strerror}"
            return "" if self._trouble == before else self._trouble
        self._saved, self._trouble = text, ""
        return ""

    def forget(self) -> None:
        """Drop everything but `left`: those threads still have such masks."""
        self.cgroups, self.threads, self.enabled, self.system = {}, {}, [], []
        self._changed = True

    def _load(self) -> None:
        text = file_io.read(self._path)
        if text is None:
            return
        try:
            kept = load_json(text)
            if kept["boot"] == self._boot:
                self.cgroups = {str(path): _kept(data) for path, data in kept["cgroups"].items()}
                self.threads = {ThreadKey(int(tid), int(start)): _kept(data) for tid, start, data in kept["threads"]}
                self.enabled = [str(item) for item in kept["enabled"]]
                self.system = [CpuSet.parse(item) for item in kept["system"]]
                self.left = [CpuSet.parse(item) for item in kept["left"]]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as err:
            self.forget()
            file_io.log(f"{self._path} cannot be used: {err!r}")


def _kept(data: List[Any]) -> Original:
    """Read one entry of the file. :raises CpuSetError: or TypeError, when the file was not written by this agent."""
    container, before, own, inode, ours = data
    original = Original(str(container), CpuSet.parse(before), None if own is None else CpuSet.parse(own), int(inode))
    original.ours = [CpuSet.parse(text) for text in ours]
    return original
