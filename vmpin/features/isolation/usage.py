"""Sampled processes and threads of the machine as values, from thread_usage to others.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vmpin.cpuset import CpuSet
from vmpin.named_tuple import NamedTuple

#: A container's own cgroup as runtimes name it: cri-containerd-ID.scope, crio-ID, docker-ID, plain ID, and with
#: systemd's names where systemd is not there kubepods-podX.slice:cri-containerd:ID. Not crio-conmon-ID.scope and
#: libpod-conmon-ID.scope: the monitor in it is a daemon of the node.
_CONTAINER = re.compile(r"(?!(?:crio|libpod)-conmon-)(?:.*[-:])?([0-9a-f]{64})(?:\.scope)?")
#: The kubelet's cgroups hold pods and nothing else; with a cgroup root (kind: kubelet-kubepods-….slice) its name is in
#: front.
_KUBEPODS = re.compile(r"(?:.*-)?kubepods(?:[-.].*)?")


class SampledThread(NamedTuple):
    """One thread during the sampled period."""

    tid: int
    comm: str
    #: Its mask at the last sample.
    cpus: CpuSet
    #: Run time in nanoseconds, by CPU.
    ran: Mapping[int, int]
    #: True if it existed at the last sample.
    alive: bool = True


@dataclass(frozen=True)
class SampledProcess:
    """A process with its threads, or a kernel thread. `cgroup` is the directory of its cpuset cgroup, "" for the
    topmost or an unknown one; `contained` is True in a PID namespace of its own."""

    pid: int
    comm: str
    kernel: bool
    cgroup: str
    contained: bool
    tasks: tuple[SampledThread, ...]


def container_of(cgroup: str) -> str | None:
    """The container of this cgroup or of an ancestor: its id, or within a pod of the kubelet the last directory's name
    (for pods with another runtime's names); None outside containers. Of containers in containers it is the outermost
    one in a pod: those within it are its own, and so are all cgroups that it makes, with whatever names."""
    parts = [part for part in cgroup.split("/") if part]
    pods = next((at for at, part in enumerate(parts) if _KUBEPODS.fullmatch(part)), None)
    for part in parts[pods or 0:]:
        if match := _CONTAINER.fullmatch(part):
            return match[1]
    return None if pods is None or parts[-1].startswith("crio-conmon-") else parts[-1]
