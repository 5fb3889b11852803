"""/run/vmpin/cpus.json: what a program in the guest may know of its CPUs, to place its own threads (as DPDK does).

    {"generation": 7, "containers": {"ID": {"own": "2-3", "shared": "0-1"}}}

The guest's CPU numbers; `own` is empty for a container that has none of its own. `host`, the host's CPUs behind those
that it may use, is there if the host tells. It is written in whole or not at all.
"""

from __future__ import annotations

import json
import os

from vmpin.cpuset import EMPTY, union
from vmpin.protocol.messages import Applied, VcpuMap
from vmpin_agent import file_io


class CpusFile:
    """:param path: the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._written = ""

    def update(self, map: VcpuMap, applied: Applied) -> None:
        """The file is as this says, and is not there unless the map asks for it."""
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
            return  # it is not there
