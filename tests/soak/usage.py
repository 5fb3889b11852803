"""What a watcher uses, as the kernel counts it, and what it counts itself, as it is scraped."""

from __future__ import annotations

import http.client
import os
import socket
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Life:
    """What one watcher process has at a rest. `memory` is in bytes."""

    pid: int
    descriptors: int
    threads: int
    tasks: int
    memory: int
    #: The sandboxes with a VM.
    guests: int
    #: Those of them whose guests have an agent.
    agents: int


def life(pid: int, tasks: int, guests: int, agents: int) -> Life:
    return Life(pid, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), tasks, _memory(pid),
                guests, agents)


def _memory(pid: int) -> int:
    """Resident, without what is shared with other processes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def scrape(path: Path) -> defaultdict[str, float]:
    """Samples by name, summed over their labels, and with each label's value: `name{value}`."""
    with closing(_Unix(path)) as client:
        client.request("GET", "/metrics")
        text = client.getresponse().read().decode()
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] += sample.value
            for value in sample.labels.values():
                found[f"{sample.name}{{{value}}}"] += sample.value
    return found
