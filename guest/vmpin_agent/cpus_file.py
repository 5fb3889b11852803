"""/run/vmpin/cpus.json: each container's CPUs, for programs in the guest that place their own threads (as DPDK).

    {"generation": 7, "containers": {"ID": {"own": "2-3", "shared": "0-1"}}}

These are the guest's CPU numbers; `own` is empty for a container without exclusive CPUs. `host`, the host's CPUs
behind those that it may use, is included if the host's map has them. The file is replaced atomically.
"""

import json
import os

from vmpin.cpuset import EMPTY, union
from vmpin.protocol.messages import Applied, VcpuMap
from vmpin_agent import file_io


class CpusFile:
    """The owner of the file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._written = ""

    def update(self, map: VcpuMap, applied: Applied) -> None:
        """Write the file if its content changes; remove it if the map does not ask for it."""
        if not map.export:
            self.remove()
            return
        shared = union(outcome.wanted for cid, outcome in applied.containers.items()
                       if not map.containers[cid].exclusive)
        if not shared and applied.system is not None:
            shared = applied.system.wanted
        containers = {}
        for cid, outcome in applied.containers.items():
            share = map.containers[cid]
            own, common = (outcome.wanted, shared) if share.exclusive else (EMPTY, outcome.wanted)
            containers[cid] = {"own": str(own), "shared": str(common),
                               **({"host": str(share.host)} if share.host else {})}
        text = json.dumps({"generation": map.generation, "containers": containers}, sort_keys=True) + "\n"
        if text == self._written:
            return
        try:
            file_io.replace(self._path, text, 0o644)
            self._written = text
        except OSError as err:
            file_io.log(f"{self._path}: {err.strerror}")

    def remove(self) -> None:
        self._written = ""
        try:
            os.unlink(self._path)
        except OSError:
            return  # there is no file
