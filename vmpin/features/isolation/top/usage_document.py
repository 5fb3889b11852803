"""The JSON object of `vmpin top -o json`, one for each interval. Pure."""

from __future__ import annotations

from typing import Any

from vmpin.features.isolation.top.pod_usage import CpuUse, ForeignThread, NodeUsage, PodUsage, sorted_pods

VERSION = 1


def usage_data(usage: NodeUsage, when: str, order: str, text: str = "") -> dict[str, Any]:
    """Times are seconds within the interval, of which `seconds` passed.

    :param order: of the pods. :param text: only pods that match it, and the foreign threads on their CPUs.
    """
    rows = [row for row in sorted_pods(usage.pods, order) if row.matches(text)]
    shown = {row.pod.id for row in rows}
    return {"version": VERSION, "time": when, "seconds": round(usage.seconds, 3), "threads": usage.threads,
            "kernel_seen": usage.kernel_seen, "resolution": "ns" if usage.precise else "ticks",
            "pods": [_pod(row, usage) for row in rows],
            "foreign_threads": [_foreign_thread(thread) for thread in usage.foreign_threads if thread.owner in shown],
            "collisions": list(usage.description.collisions)}


def _pod(row: PodUsage, usage: NodeUsage) -> dict[str, Any]:
    pod = row.pod
    return {"sandbox": pod.id, "namespace": pod.namespace or None, "pod": pod.name or None, "kind": pod.kind,
            "verdict": pod.verdict or None, "exclusive": str(pod.exclusive), "shared": str(pod.shared),
            "busy": _seconds(row.busy), "foreign": _seconds(row.foreign), "exact": row.exact,
            "waited": _seconds(row.waited) if usage.precise else None, "drift": pod.drift, "guest": pod.guest or None,
            "in_place": pod.in_place[0], "threads": pod.in_place[1],
            "cpus": [_cpu(use) for use in usage.cpus_of(pod)]}


def _cpu(use: CpuUse) -> dict[str, Any]:
    return {"cpu": use.cpu, "busy": None if use.busy is None else _seconds(use.busy), "own": _seconds(use.own),
            "kernel": _seconds(use.kernel), "foreign": _seconds(use.foreign),
            "unseen": None if use.busy is None else _seconds(use.unseen)}


def _foreign_thread(thread: ForeignThread) -> dict[str, Any]:
    return {"sandbox": thread.owner, "cpu": thread.cpu, "seconds": _seconds(thread.ran), "exact": thread.exact,
            "tid": thread.tid, "thread": thread.name, "pid": thread.pid, "process": thread.process, "of": thread.home}


def _seconds(spent: int) -> float:
    return round(spent / 1e9, 6)
