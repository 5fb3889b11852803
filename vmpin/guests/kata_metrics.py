"""What a Kata agent's metrics show of a container's CPUs. Pure.

They are Prometheus's text (kata-containers src/agent/src/metrics.rs): the lines of the guest's /proc/stat by place
among the CPUs that are online, in a unit that differs between versions, and /proc/loadavg. A place that once was there
stays when its CPU goes offline. They tell nothing of any one container: only where there is no other may something be
concluded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_CPU_TIME = 'kata_guest_cpu_time{cpu="'
#: What processes did, and what nobody did; with the rest, all of a CPU's time. ("guest" is in "user" already.)
_USER, _IDLE = ("user", "nice"), ("idle", "iowait")
_ITEMS = frozenset((*_USER, *_IDLE, "system", "irq", "softirq", "steal"))

#: Seconds between two readings, at least: a second's load is not to be taken for a minute's.
APART = 5.0


@dataclass(frozen=True)
class Reading:
    """`taken` by the host's clock (s). `cpus` are the times of each place by item, `load` the average of a minute,
    `running` how many threads wanted to run at that moment, the agent's own among them."""

    taken: float
    cpus: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    load: float = 0.0
    running: float = 0.0


def reading(text: str, taken: float) -> Reading:
    """Out of the agent's answer. What is no such line is left out; of at most 1024 CPUs.

    >>> reading('kata_guest_cpu_time{cpu="0",item="user"} 120\\nkata_guest_load{item="load1"} 2.5', 0.0)
    Reading(taken=0.0, cpus={0: {'user': 120.0}}, load=2.5, running=0.0)
    """
    cpus: dict[int, dict[str, float]] = {}
    load = running = 0.0
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == 'kata_guest_load{item="load1"}':
            load = _number(value) or 0.0
        elif name == 'kata_guest_tasks{item="cur"}':
            running = _number(value) or 0.0
        elif name.startswith(_CPU_TIME):
            cpu, _, rest = name[len(_CPU_TIME):].partition('",item="')
            item, number = rest.removesuffix('"}'), _number(value)
            if cpu.isascii() and cpu.isdigit() and len(cpu) <= 4 and int(cpu) < 1024 and item in _ITEMS \
                    and number is not None:
                cpus.setdefault(int(cpu), {})[item] = number
    return Reading(taken, cpus, load, running)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < 1e18 else None


def shows(before: Reading, after: Reading, places: Collection[int]) -> bool | None:
    """Whether the only container that works keeps to these CPUs; None where that cannot be told.

    Yes, when more threads wanted to run than these CPUs can, and the others stood idle all the same: Linux lets no CPU
    stand idle beside a full one, unless it must. (So does a guest whose kernel was told to isolate CPUs. And the guest
    may lie.) One busy thread proves nothing: it is on some CPU in any case. No, when much of the work was done on the
    other CPUs; a little is the guest's own.
    """
    if after.taken - before.taken < APART or before.cpus.keys() != after.cpus.keys():
        return None
    spent = {cpu: {item: value - before.cpus[cpu].get(item, 0.0) for item, value in times.items()}
             for cpu, times in after.cpus.items()}
    whole = {cpu: sum(times.values()) for cpu, times in spent.items()}
    others = whole.keys() - set(places)
    if not others or not whole.keys() >= set(places):
        return None
    if min(value for times in spent.values() for value in times.values()) < 0:
        return None  # counted anew
    if min(whole.values()) <= 0.8 * max(whole.values()):
        return None  # one of them was not online all the time
    idle = {cpu: _part(times, _IDLE) / whole[cpu] for cpu, times in spent.items()}
    work = {cpu: _part(times, _USER) / whole[cpu] for cpu, times in spent.items()}
    outside = sum(work[cpu] for cpu in others)
    if outside > 0.25 and outside > 0.25 * sum(work.values()):
        return False
    # The agent that reads it is running, too.
    more = min(before.running, after.running) >= len(places) + 2 and after.load >= len(places) + 0.9
    full = max(idle[cpu] for cpu in places) < 0.05 and min(idle[cpu] for cpu in others) > 0.9
    return True if more and full else None


def _part(times: Mapping[str, float], items: Collection[str]) -> float:
    return sum(times.get(item, 0.0) for item in items)
