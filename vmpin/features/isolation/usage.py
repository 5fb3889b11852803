"""Sampled processes and threads of the machine as values, from thread_usage to others.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from vmpin.cpuset import CpuSet
from vmpin.named_tuple import NamedTuple

#: A container's own cgroup as runtimes name it: cri-containerd-ID.scope, crio-ID, docker-ID, plain ID, and with
#: systemd's names where systemd is not there kubepods-podX.slice:cri-containerd:ID.
_CONTAINER = re.compile(r"(?:.*[-:])?([0-9a-f]{64})(?:\.scope)?")
#: The kubelet's cgroups hold pods and nothing else; with a cgroup root (kind: kubelet-kubepods-….slice) its name is in
#: front.
_KUBEPODS = re.compile(r"(?:.*-)?kubepods(?:[-.].*)?")
#: The cgroup of a container's monitor, a daemon of the node: CRI-O and podman put each into one of its own.
_MONITOR = re.compile(r"(?:crio|libpod)-conmon-.*")


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
    (for pods with another runtime's names); None outside containers."""
    parts = [part for part in cgroup.split("/") if part]
    if any(map(_MONITOR.fullmatch, parts)):
        return None
    if ids := _ids(parts):
        return ids[-1]
    return parts[-1] if any(_KUBEPODS.fullmatch(part) for part in parts) else None


def is_in(cgroup: str, containers: Collection[str]) -> bool:
    """Whether a cgroup is one of these containers', or of a container that runs in one of them."""
    container = container_of(cgroup)
    return container is not None and not {container, *_ids(cgroup.split("/"))}.isdisjoint(containers)


def _ids(parts: Iterable[str]) -> list[str]:
    """The ids of containers by which the components of a cgroup's path are named, the outermost first."""
    return [match[1] for part in parts if (match := _CONTAINER.fullmatch(part))]
