"""The recorded node's answer to the request `isolation`."""

from __future__ import annotations

from typing import Any

from booked import figures_between
from recorded_node import DB, SHOP

from vmpin.cpuset import CpuSet
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.features.isolation.isolation_books import MINUTE, ForeignProgram, ForeignRun, OwnerBook, ProgramKind
from vmpin.features.isolation.isolation_report import document, pod_report


def isolation() -> dict[str, Any]:
    """Of two pods: one from whose CPUs a program of the node took time, and one that has ended."""
    shop = OwnerBook(SHOP, 0)
    shop.namespace, shop.pod, shop.kind = "shop", "web-7d9f8c6b5-x2zkp", "vm"
    shop.cpus = CpuSet.parse("40-43,48-51")
    shop.begin(0, 192 * 10**6)
    cpus = tuple(shop.cpus)
    for minute in range(1, 180):
        if not 60 <= minute < 70:
            taken = 21 * 10**9 if minute == 90 else 25 * 10**6
            shop.book(minute * MINUTE, Interval(MINUTE, {**dict.fromkeys(cpus, 0), 48: taken}, 0, taken // 50,
                                                taken // 50, 0))
    backup = ForeignProgram(ProgramKind.HOST, "backup-everything", "backup.service")
    kworker = ForeignProgram(ProgramKind.KERNEL, "kworker/u128:3", "")
    shop.add_runs(90 * MINUTE, [ForeignRun(backup, 48, 19 * 10**9), ForeignRun(kworker, 48, 10**9)])
    shop.add_runs(110 * MINUTE, [ForeignRun(kworker, 48, 10**7)])
    db = OwnerBook(DB, 20 * MINUTE)
    db.namespace, db.pod, db.kind, db.ended = "shop", "db-0", "runc", 120 * MINUTE
    db.cpus = CpuSet.parse("9")
    for minute in range(21, 120):
        db.book(minute * MINUTE, Interval(MINUTE, {9: 0}, 0, 0, 0, 0))

    def clock(moment: int) -> str:
        return f"2026-01-02T{moment // MINUTE // 60:02}:{moment // MINUTE % 60:02}:00Z"

    drift = {"repairs": {"tuned": 3}, "last": 1.0, "why": "tuned (pid 812) set the mask"}
    return document([pod_report(figures_between(shop, 0, 180 * MINUTE), clock, drift),
                     pod_report(figures_between(db, 0, 180 * MINUTE), clock)], clock(0), clock(180 * MINUTE))
