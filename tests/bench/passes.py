"""What the reconciler does again and again: a pass in which nothing changed, and one container's new cpuset."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from bench_node import Bundle, Node, cpus
from measure import CannotMeasure, Figure, in_turn, median, timed_ms
from vms import THREADS, Machine

from vmpin.pinning.apply import Outcome
from vmpin.reconcile.intake import take_hook
from vmpin.reconcile.reconciler import Reconciler
from vmpin.runtime.oci import parse_hook


def settled(made: Node, machines: Sequence[Machine]) -> Reconciler:
    reconciler = Reconciler(made.config())
    reconciler.resync(full=True)
    # Names of new threads are read again in the pass after, and new processes in the first three.
    for _ in range(4):
        reconciler.resync()
    if len(reconciler.node_state.inventory.vms) != len(machines):
        raise CannotMeasure(f"{len(reconciler.node_state.inventory.vms)} of {len(machines)} VMs were found")
    return reconciler


def unchanged(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """A pass that finds nothing to do, in turn with the system calls that it cannot do without."""
    made.forget()
    reconciler = settled(made, machines)

    def one_pass() -> float:
        report = reconciler.resync(act=True)
        if report.results or report.vms != len(machines):
            raise CannotMeasure(f"a pass over {report.vms} VMs changed {len(report.results)} masks")
        return report.seconds * 1000

    pids = [machine.pid for machine in machines]

    def bare() -> None:
        for pid in pids:
            for tid in os.listdir(f"/proc/{pid}/task"):
                os.sched_getaffinity(int(tid))

    values, floors = in_turn(rounds, one_pass, lambda: timed_ms(bare))
    return Figure("pass_200x16", median(values), "ms", median(floors), 3, "ratio",
                  {"sandboxes": len(machines), "rounds": rounds})


def update(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """A container gets a CPU for itself, and loses it: from the message as received until its VM's threads are pinned.

    The slower direction counts. Its container is reported by hooks alone, the other sandboxes by Kata's files.
    """
    made.forget()
    pool, other = cpus()
    machine, bundle = machines[0], Bundle(made, machines[0])
    reconciler = settled(made, machines)
    tids = machine.tids()
    masks = {str(other): frozenset((other,)), f"{pool},{other}": frozenset((pool, other))}

    def once(cpu_list: str) -> float:
        bundle.write(cpu_list)
        raw = bundle.message()
        begin = time.perf_counter()
        report = reconciler.reconcile(take_hook(reconciler.node_state, parse_hook(raw)) or ())
        spent = time.perf_counter() - begin
        done = [result for result in report.results if result.operation.thread.pid == machine.pid]
        if (len(done) != THREADS or any(result.outcome is not Outcome.DONE for result in done)
                or machine.masks() != {masks[cpu_list]}):
            raise CannotMeasure(f"the update to {cpu_list} set {len(done)} of {THREADS} masks: {machine.masks()}")
        if reconciler.node_state.unsaved:
            reconciler.node_state.save()  # the watcher does that later, in one go
        return spent * 1000

    def bare() -> float:
        """There and back, so that each call changes a mask and nothing is left changed."""
        now = next(iter(machine.masks()))
        back = next(mask for mask in masks.values() if mask != now)
        return (timed_ms(lambda: set_masks(tids, back)) + timed_ms(lambda: set_masks(tids, now))) / 2

    for cpu_list in masks:
        once(cpu_list)  # the first time the original masks are kept on disk
    values: dict[str, list[float]] = {cpu_list: [] for cpu_list in masks}
    floors: list[float] = []
    for _ in range(rounds):
        for cpu_list, times in values.items():
            times.append(once(cpu_list))
            floors.append(bare())
    exclusive, shared = (median(times) for times in values.values())
    return Figure("update_16", max(exclusive, shared), "ms", median(floors), 1, "value",
                  {"sandboxes": len(machines), "rounds": rounds, "to_exclusive": round(exclusive, 4),
                   "to_shared": round(shared, 4)})


def set_masks(tids: Sequence[int], mask: frozenset[int]) -> None:
    for tid in tids:
        os.sched_setaffinity(tid, mask)
        os.sched_getaffinity(tid)
