"""What ran on the machine between two samples, as values, from interval_sampler to pod_usage. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vmpin.named_tuple import NamedTuple


class ThreadInterval(NamedTuple):
    """A thread that ran. `ran` and `waited` (ready, with the CPU taken) are ns within the interval, `cpu` is where the
    thread was at its end. `bound`: it may run there alone, so that all of `ran` was there; else that is an
    estimate."""

    tid: int
    comm: str
    ran: int
    waited: int
    cpu: int
    bound: bool
    started: int = 0  #: Clock ticks since boot.


class ProcessInterval(NamedTuple):
    """A process of which a thread ran, or a kernel thread. `cgroup` is the path of its cpuset cgroup, "" for the
    topmost, and where no one needs it."""

    pid: int
    comm: str
    kernel: bool
    cgroup: str
    threads: tuple[ThreadInterval, ...]


@dataclass(frozen=True)
class UsageInterval:
    """`seconds` passed between the samples. `busy`: ns that each CPU was not idle, by the kernel's own count in steps
    of 10 ms. `kernel_seen`: False in another PID namespace, which hides kernel threads and other processes.
    `precise`: False where the kernel counts run times in ticks only."""

    seconds: float
    processes: tuple[ProcessInterval, ...]
    busy: Mapping[int, int] = field(default_factory=dict)
    threads: int = 0
    kernel_seen: bool = True
    precise: bool = True
