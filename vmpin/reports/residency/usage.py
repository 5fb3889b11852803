"""The threads of the machine as they were seen for some seconds: plain data, from host/census to audit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vmpin.cpuset import CpuSet

#: A container's own cgroup as runtimes name it: cri-containerd-ID.scope, crio-ID, docker-ID, plain ID, and with
#: systemd's names where systemd is not there kubepods-podX.slice:cri-containerd:ID.
_CONTAINER = re.compile(r"(?:.*[-:])?([0-9a-f]{64})(?:\.scope)?")
#: The kubelet's cgroups hold pods and nothing else.
_KUBEPODS = re.compile(r"kubepods(?:[-.].*)?")


class SampledThread(NamedTuple):
    """One thread while it was looked at."""

    tid: int
    comm: str
    #: Its mask when it was last seen.
    cpus: CpuSet
    #: Nanoseconds it ran, by the CPU they are booked to.
    ran: Mapping[int, int]
    #: Whether it was there at the end.
    alive: bool = True


@dataclass(frozen=True)
class SampledProcess:
    """A process with its threads, or a kernel thread. `cgroup` is the directory of its cpuset cgroup, "" for the
    topmost one or when it cannot be told; `contained` says that it lives in a PID namespace of its own."""

    pid: int
    comm: str
    kernel: bool
    cgroup: str
    contained: bool
    tasks: tuple[SampledThread, ...]


def container_of(cgroup: str) -> str | None:
    """The container whose cgroup this is or lies in: its id, or in a pod of the kubelet's the last directory's name
    (for pods below another runtime's names); None outside of containers."""
    parts = [part for part in cgroup.split("/") if part]
    for part in reversed(parts):
        match = _CONTAINER.fullmatch(part)
        if match is not None:
            return match[1]
    return parts[-1] if any(_KUBEPODS.fullmatch(part) for part in parts) else None
