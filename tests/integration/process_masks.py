"""The masks of a process's threads, read from /proc, not with vmpin's own eyes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from need import lacking

from vmpin.cpuset import CpuSet
from vmpin.host.sysfs import Sysfs

_VCPU = re.compile(r"(?:CPU|fc_vcpu) ([0-9]+)(?:/[A-Z]+)?")


def two_cpus() -> tuple[str, str]:
    """The first two online CPUs, as words."""
    cpus = list(Sysfs().online())
    if len(cpus) < 2:
        lacking("needs two CPUs")
    return str(cpus[0]), str(cpus[1])


@dataclass(frozen=True)
class Seen:
    """A process's threads as /proc has them: masks by vCPU, and those of the others by thread id; names by id."""

    vcpus: dict[int, str]
    others: dict[int, str]
    names: dict[int, str]

    @property
    def other(self) -> set[str]:
        return set(self.others.values())

    def all(self) -> set[str]:
        return {*self.vcpus.values(), *self.others.values()}


def seen(pid: int) -> Seen:
    found = Seen({}, {}, {})
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        tid, name, cpus = int(task.name), fields["Name"].strip(), fields["Cpus_allowed_list"].strip()
        cpus = str(CpuSet.parse(cpus) & Sysfs().online())
        vcpu = _VCPU.fullmatch(name)
        found.names[tid] = name
        if vcpu is not None:
            found.vcpus[int(vcpu[1])] = cpus
        else:
            found.others[tid] = cpus
    return found


def by_tid(pid: int) -> dict[int, frozenset[int]]:
    """The very masks, by thread."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            found[int(task)] = frozenset(os.sched_getaffinity(int(task)))
    return found


def kept(pid: int, before: Mapping[int, frozenset[int]]) -> bool:
    """Whether every thread of a process has its mask of then; one that was born since has one of those."""
    now = by_tid(pid)
    return (all(now[tid] == mask for tid, mask in before.items() if tid in now)
            and set(now.values()) <= set(before.values()))


def union(cpus: Iterable[str]) -> str:
    found = CpuSet()
    for each in cpus:
        found |= CpuSet.parse(each)
    return str(found)
