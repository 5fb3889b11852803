"""The links of network namespaces, read by a child process (`netns_reader`), with a deadline and a limit of size.

For commands that root runs, never for the watcher: its unit has neither CAP_SYS_ADMIN nor the right to enter
namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vmpin.bounded import load_json
from vmpin.domain.model import ThreadId
from vmpin.features.network.vm_network import NamespaceLinks, NetLink
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple

#: Seconds, and bytes of its answer: a node of hundreds of pods takes two seconds and a megabyte.
DEADLINE, MOST_BYTES = 30, 16 << 20
#: Processes in one request: more than run on one node.
MOST_PROCESSES = 1000
#: -P: else `-m` would import modules from the directory in which root has called the command.
_READER = (sys.executable, "-P", "-m", "vmpin.features.network.netns_reader")
#: This program's own directory, as it may not be installed.
_PATH = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])


class NamespacesRead(NamedTuple):
    """`of` has the links of each process's namespace by pid, None where that is the node's own; `why` the reason where
    it could not be read. Without `node` nothing was read, for the reason `trouble`."""

    node: NamespaceLinks | None = None
    of: Mapping[int, NamespaceLinks | None] = {}
    why: Mapping[int, str] = {}
    trouble: str = ""


def read_namespaces(proc: Procfs, processes: Sequence[ThreadId], command: Sequence[str] | None = None,
                    deadline: float = DEADLINE, most: int = MOST_PROCESSES) -> NamespacesRead:
    """The links of the node's network namespace, and of those of some processes, by their main threads.
    :param command: the child's, in place of `netns_reader`. :param most: processes that are read."""
    request = {"proc": proc.root, "seconds": int(deadline) + 1,
               "processes": [list(process) for process in processes[:most]]}
    raw, trouble = _output(command or _READER, json.dumps(request).encode(), deadline)
    if trouble:
        return NamespacesRead(trouble=trouble)
    try:
        answer = load_json(raw)
        if "error" in answer["node"]:
            return NamespacesRead(trouble=str(answer["node"]["error"]))
        entries = {int(pid): entry for pid, entry in answer["processes"].items()}
        why = {process.tid: "no answer about it" for process in processes[:most] if process.tid not in entries}
        why |= {process.tid: "too many VMs" for process in processes[most:]}
        return NamespacesRead(
            namespace_links(answer["node"]), {pid: None if entry.get("same") else namespace_links(entry)
                                              for pid, entry in entries.items() if "error" not in entry},
            why | {pid: str(entry["error"]) for pid, entry in entries.items() if "error" in entry})
    except (ValueError, LookupError, TypeError, AttributeError):
        return NamespacesRead(trouble="the process that reads network namespaces ended without an answer")


def _output(command: Sequence[str], request: bytes, deadline: float) -> tuple[bytes, str]:
    """The child's output, or the reason why there is none. It has ended when this returns."""
    try:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                 env={**os.environ, "PYTHONPATH": _PATH})
    except OSError as err:
        return b"", f"{command[0]}: {err.strerror}"
    assert child.stdin is not None
    assert child.stdout is not None
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        child.kill()

    timer = threading.Timer(deadline, expire)
    timer.start()
    try:
        try:
            child.stdin.write(request)
            child.stdin.close()
        except BrokenPipeError:
            pass  # it has ended: there is no answer
        raw = child.stdout.read(MOST_BYTES + 1)
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
    if expired.is_set():
        return b"", f"network namespaces were not read within {deadline:.0f} s"
    return (raw, "") if len(raw) <= MOST_BYTES else (b"", "the network namespaces have too many interfaces")


def namespace_links(entry: Mapping[str, Any]) -> NamespaceLinks:
    """The links of a namespace from the answer of the child."""
    links = [NetLink(*fields) for fields in entry["links"]]
    return NamespaceLinks({link.ifindex: link for link in links},
                          {int(index): tuple(targets) for index, targets in entry["redirects"].items()},
                          node_ns=entry["node_ns"])
