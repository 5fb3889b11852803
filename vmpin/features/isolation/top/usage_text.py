"""The usage of a node as rows of tables and sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from vmpin.cpuset import CpuSet
from vmpin.domain.drift import NO_EVIDENCE
from vmpin.domain.terminal import number_of, short_id
from vmpin.features.isolation.isolation_books import ForeignProgram
from vmpin.features.isolation.isolation_report import advice
from vmpin.features.isolation.top.node_description import DescribedPod
from vmpin.features.isolation.top.pod_usage import CpuUse, ForeignThread, NodeUsage, PodUsage, ThreadUsage

PODS = ("POD", "CPUS", "BUSY", "FOREIGN/s", "WAITED/s", "DRIFT", "VERDICT", "GUEST", "IN PLACE", "KIND")
#: Those of PODS that may be left out, the least important first.
SPARE = ("KIND", "IN PLACE", "GUEST")
THREADS = ("THREAD", "ROLE", "NAME", "CPU", "MASK", "BUSY", "WAITED/s", "PLACE")
#: Foreign threads that are listed; the JSON document has all.
_MOST = 5


def percent(spent: int, seconds: float) -> str:
    """The part of one CPU that `spent` (ns) is: `187%`."""
    share = spent / seconds / 1e7
    return "<1%" if 0 < share < 0.5 else f"{share:.0f}%"


def rate(spent: int, seconds: float, exact: bool = True) -> str:
    """Milliseconds in each second: `31 ms`, with `~` before an estimate."""
    milliseconds = spent / seconds / 1e6
    text = "<1 ms" if 0 < milliseconds < 0.5 else f"{milliseconds:.0f} ms"
    return text if exact or not spent else f"~{text}"


def cpus_text(pod: DescribedPod) -> str:
    """`5-6+0-1`: 5 and 6 are its own, 0 and 1 shared; without CPUs of its own `+0-1`."""
    return f"{pod.exclusive}{f'+{pod.shared}' if pod.shared else ''}" or "-"


def state_lines(usage: NodeUsage) -> Iterator[str]:
    """The foreign time of all pods, and everything that is not as it should be."""
    description = usage.description
    owners = sum(pod.foreign > 0 for pod in usage.pods)
    foreign = (f"foreign {rate(usage.foreign, usage.seconds, not usage.estimated)} a second on CPUs of "
               f"{number_of(owners, 'pod')}" if owners else
               "no foreign thread ran" if description.owned else "no CPU is exclusive")
    disordered = sum(not row.pod.calm for row in usage.pods)
    yield "; ".join([f"{usage.seconds:.1f} s", number_of(len(usage.pods), "pod"),
                     f"busy {percent(sum(row.busy for row in usage.pods), usage.seconds)}", foreign,
                     *[f"{number_of(disordered, 'pod')} not in order"] * bool(disordered),
                     *["other PID namespace: kernel threads are hidden"] * (not usage.kernel_seen),
                     *["run times in ticks only"] * (not usage.precise)])
    yield from (f"COLLISION on {collision}" for collision in description.collisions)


def pod_row(row: PodUsage, usage: NodeUsage) -> list[str]:
    """A pod's cells, in the order of PODS."""
    pod, seconds = row.pod, usage.seconds
    ok, threads = pod.in_place
    return [pod.title, cpus_text(pod), percent(row.busy, seconds),
            rate(row.foreign, seconds, row.exact) if pod.exclusive else "-",
            rate(row.waited, seconds) if usage.precise else "?", str(pod.drift) if pod.verdict else "-",
            pod.verdict or "-", pod.guest or "-", f"{ok}/{threads}" if pod.verdict else "-",
            {"vm": "VM"}.get(pod.kind, pod.kind)]


def foreign_lines(usage: NodeUsage) -> Iterator[str]:
    """The foreign threads that ran longest, and what keeps off the program that had the most time."""
    threads = usage.foreign_threads
    yield from (f"FOREIGN {_foreign(thread, usage)}" for thread in threads[:_MOST])
    if len(threads) > _MOST:
        yield f"and {len(threads) - _MOST} more: -o json lists them"
    yield from foremost_program(usage)


def _foreign(thread: ForeignThread, usage: NodeUsage) -> str:
    """`~31 ms on CPU 5 of demo/shop by demo/noisy: process 4700 (stress), thread 4711 (burn)`"""
    which = f", thread {thread.tid} ({thread.name})" if thread.pid != thread.tid else ""
    owner = usage.description.titles.get(thread.owner) or short_id(thread.owner)
    return (f"{rate(thread.ran, usage.seconds, thread.exact)} on CPU {thread.cpu} of {owner} by {thread.home}: "
            f"process {thread.pid} ({thread.process}){which}")


def foremost_program(usage: NodeUsage) -> Iterator[str]:
    """The foreign program that had the most time, all its threads together, and what keeps it off these CPUs."""
    programs: dict[tuple[int, str], list[ForeignThread]] = {}
    for thread in {(thread.tid, thread.cpu): thread for thread in usage.foreign_threads}.values():
        programs.setdefault((thread.pid, thread.home), []).append(thread)
    if not programs:
        return
    threads = max(programs.values(), key=lambda threads: sum(thread.ran for thread in threads))
    first, cpus = threads[0], CpuSet(thread.cpu for thread in threads)
    spent = rate(sum(thread.ran for thread in threads), usage.seconds, all(thread.exact for thread in threads))
    yield (f"most: {first.process} (process {first.pid}) of {first.home} had {spent} in each second on "
           f"CPU{'s' * (len(cpus) > 1)} {cpus}")
    yield f"what to do: {advice(ForeignProgram(first.kind, first.name, first.home), str(cpus))}"


def pod_lines(row: PodUsage, usage: NodeUsage) -> Iterator[str]:
    """A pod in full: its state, and the use of its exclusive CPUs."""
    pod = row.pod
    ok, threads = pod.in_place
    state = f"{pod.verdict}, {ok}/{threads} in place" if pod.verdict else "no VM"
    yield f"{pod.title}: {state}; CPUs {cpus_text(pod)}{f'; guest {pod.guest}' if pod.guest else ''}"
    yield from (f"  ! {reason}" for reason in pod.reasons)
    if pod.drift:
        how = " (`vmpin status POD --explain` has the command that finds the program)" * (pod.why == NO_EVIDENCE)
        yield f"  put back {number_of(pod.drift, 'time')}, last: {pod.why}{how}"
    for use in usage.cpus_of(pod):
        yield f"  {_use(use, usage.seconds)}"
        yield from (f"    {note}" for note in usage.description.notes.get(use.cpu, ()))


def _use(use: CpuUse, seconds: float) -> str:
    busy = "" if use.busy is None else f"busy {percent(use.busy, seconds)}, "
    unseen = "" if use.busy is None else f", unseen {rate(use.unseen, seconds, False)}"
    return (f"CPU {use.cpu}: {busy}its own {percent(use.own, seconds)}, foreign "
            f"{rate(use.foreign, seconds, use.exact)}, kernel {rate(use.kernel, seconds)}{unseen}")


def thread_row(thread: ThreadUsage, usage: NodeUsage) -> list[str]:
    """A thread's cells, in the order of THREADS."""
    place = "ok" if thread.ok and thread.mask else f"not on {thread.wanted}" if not thread.ok else "-"
    return [str(thread.tid), thread.role or "-", thread.name, "-" if thread.cpu is None else str(thread.cpu),
            thread.mask or "-", percent(thread.busy, usage.seconds),
            rate(thread.waited, usage.seconds) if usage.precise else "?", place]
