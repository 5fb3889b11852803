"""The foreign program that had the most time on a pod's exclusive CPUs, and what keeps it off them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import number_of, printable
from vmpin.features.isolation.isolation_books import ForeignProgram
from vmpin.features.isolation.isolation_report import advice
from vmpin.features.isolation.top.pod_usage import ForeignThread, NodeUsage
from vmpin.features.isolation.verbs.top.sheet import rate, title_of

#: Threads of it that are listed.
_MOST = 10


def foremost_program(usage: NodeUsage, pod: str) -> Iterator[str]:
    """Lines of text. :param pod: as DescribedPod.id, "" for all pods."""
    if not usage.seconds:
        yield "Nothing was measured yet: press t again after the first interval."
        return
    programs: dict[tuple[int, str], list[ForeignThread]] = {}
    for thread in {(thread.tid, thread.cpu): thread for thread in usage.foreign_threads_of(pod or None)}.values():
        programs.setdefault((thread.pid, thread.home), []).append(thread)
    if not programs:
        yield "No foreign thread ran on its exclusive CPUs in the last interval." if usage.description.owned else \
            "No CPU is exclusive to a pod: all threads share the CPUs."
        return
    threads = max(programs.values(), key=lambda threads: sum(thread.ran for thread in threads))
    first, cpus = threads[0], CpuSet(thread.cpu for thread in threads)
    spent = rate(sum(thread.ran for thread in threads), usage.seconds, all(thread.exact for thread in threads))
    owners = ", ".join(dict.fromkeys(title_of(usage, thread.owner) for thread in threads))
    yield printable(f"{first.process} (process {first.pid}) of {first.home}")
    yield printable(f"had {spent} in each second on CPU{'s' * (len(cpus) > 1)} {cpus} of {owners}:")
    for thread in threads[:_MOST]:
        yield printable(f"  {rate(thread.ran, usage.seconds, thread.exact)} on CPU {thread.cpu}: "
                        f"thread {thread.tid} ({thread.name})")
    if len(threads) > _MOST:
        yield f"  and {number_of(len(threads) - _MOST, 'thread', 'more')}"
    if not all(thread.exact for thread in threads):
        yield "~ is an estimate: the thread may run on other CPUs, too."
    yield ""
    yield printable(f"What to do: {advice(ForeignProgram(first.kind, first.name, first.home), str(cpus))}.")
    if len(programs) > 1:
        yield ""
        yield f"{number_of(len(programs) - 1, 'program', 'more foreign')} ran there: f lists their threads."
