"""Measures vmpin's speed on this machine: `python tests/bench/run.py [--only NAME] [--quick] [-o FILE]`.

Prints a table and writes {"benchmarks": [...]}; a figure beyond its limit is printed and is no failure: other
machines, and other work on this one, are slower. Fails only when something could not be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import allocating
import creating
import crowding
import drifting
import growth
import guest_agent
import hostile
import inputs
import interrupts
import lifecycles
import newborns
import nodes
import nri
import passes
import processes
import reporting
import scrapes
import starting
import topping
from bench_node import Node, node, write_kata
from measure import CannotMeasure, Figure, progress
from vms import Machine, qemus, stand_ins


@dataclass
class Bench:
    """What the benchmarks share: the node, and 200 stand-ins, started when the first one needs them."""

    made: Node
    quick: bool
    build: Path
    machines: list[Machine] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def many(self) -> list[Machine]:
        if not self.machines:
            self.machines = self._stack.enter_context(stand_ins(20 if self.quick else 200, self.build))
            # The first sandbox is one that only hooks and its own command line report, as with Kata's runtime-rs.
            write_kata(self.made, self.machines[1:])
        return self.machines

    def close(self) -> None:
        self._stack.close()
        self.machines = []

    def rounds(self, count: int) -> int:
        return max(5, count // 20) if self.quick else count


def _rest(bench: Bench) -> list[Figure]:
    seconds, resync = (2.0, 1.0) if bench.quick else (30.0, 10.0)
    return processes.at_rest(bench.made, bench.many(), seconds, resync)


def _top(bench: Bench) -> list[Figure]:
    refreshes, delay = (3, 0.5) if bench.quick else (10, topping.DELAY)
    return [topping.top(bench.made, bench.many(), refreshes, delay)]


def _cold(bench: Bench) -> list[Figure]:
    bench.close()
    with qemus(8 if bench.quick else 300) as machines:
        return [processes.cold_start(bench.made, machines, 3 if bench.quick else 15)]


def _growth(bench: Bench) -> list[Figure]:
    bench.close()
    bench.made.forget_kata()
    sizes, rounds, seconds, resync = ((5, 10, 20), 1, 2.0, 1.0) if bench.quick else (growth.SIZES, 3, 20.0, 10.0)
    return growth.growth(bench.made, bench.build, sizes, rounds, seconds, resync)


def _update_cost(bench: Bench) -> list[Figure]:
    bench.close()
    return [nri.update_cost(bench.made, 2 if bench.quick else 30)]


def _lifecycle_runc(bench: Bench, allocating: bool) -> list[Figure]:
    bench.close()
    return [lifecycles.runc(bench.made, allocating, 1 if bench.quick else 50)]


def _containers(bench: Bench) -> list[Figure]:
    bench.close()
    return [lifecycles.at_rest(bench.made, *((2.0, 1.0) if bench.quick else (60.0, 10.0)))]


def _in_a_vm(bench: Bench, measured: Callable[[Node, Machine, int], Figure], rounds: int) -> list[Figure]:
    bench.close()
    with stand_ins(1, bench.build) as (machine,):
        return [measured(bench.made, machine, 1 if bench.quick else rounds)]


def _starting(bench: Bench) -> list[Figure]:
    bench.close()
    bench.made.forget_kata()
    return [starting.to_watching(bench.made, 2 if bench.quick else 20)]


def _first_exclusive(bench: Bench) -> list[Figure]:
    bench.close()
    return [crowding.first_exclusive(*(2, 1) if bench.quick else (10, 10))]


def _guest_apply(bench: Bench) -> list[Figure]:
    bench.close()
    return [guest_agent.apply(bench.made, 5 if bench.quick else 50, bench.rounds(100), bench.build)]


def _guest_rest(bench: Bench) -> list[Figure]:
    bench.close()
    count, seconds = (5, 2.0) if bench.quick else (50, 30.0)
    return guest_agent.at_rest(bench.made, count, seconds, bench.build)


def _reporting(bench: Bench) -> list[Figure]:
    bench.close()
    pods, seconds, rounds = (5, 1.0, 2) if bench.quick else (110, 30.0, 20)
    return reporting.reporting(bench.made, bench.build, pods, seconds, rounds)


def _all_nodes(bench: Bench) -> list[Figure]:
    bench.close()
    return nodes.all_nodes(bench.made, 5 if bench.quick else 200, 1 if bench.quick else 5)


#: By the names of the figures they give. From the real QEMUs on, the stand-ins are gone.
BENCHMARKS: dict[tuple[str, ...], Callable[[Bench], list[Figure]]] = {
    ("hook",): lambda bench: [processes.hook(bench.made, bench.many(), bench.rounds(200))],
    ("pass_200x16",): lambda bench: [passes.unchanged(bench.made, bench.many(), bench.rounds(320))],
    ("update_16",): lambda bench: [passes.update(bench.made, bench.many(), bench.rounds(200))],
    ("scrape_200x16",): lambda bench: [scrapes.scrape(bench.made, bench.many(), bench.rounds(200))],
    ("sampling_200x16",): lambda bench: [drifting.sampling(bench.made, bench.many(), bench.rounds(20))],
    ("repair_200x16",): lambda bench: [drifting.repair(bench.made, bench.many(), bench.rounds(20))],
    ("idle_rss", "idle_cpu"): _rest,
    ("top_200x16",): _top,
    ("status_json",): lambda bench: [processes.status(bench.made, bench.many(), bench.rounds(40))],
    ("tab_pods",): lambda bench: [processes.tab(bench.made, bench.many(), bench.rounds(40))],
    ("nri_to_pinned",): lambda bench: [nri.to_pinned(bench.made, bench.many(), bench.rounds(100))],
    ("nri_create_to_pinned",): lambda bench: [nri.create_to_pinned(bench.made, bench.many(), bench.rounds(100))],
    ("nri_vcpu_to_pinned",): lambda bench: [
        nri.vcpu_to_pinned(bench.made, bench.many(), bench.build, bench.rounds(100))],
    ("nri_sync_500",): lambda bench: [nri.sync(bench.made, bench.many(), 3 if bench.quick else 15)],
    ("birth_to_placed", "birth_p99"): lambda bench: newborns.to_placed(
        bench.made, bench.many(), bench.build, 1 if bench.quick else 4),
    ("fork_storm",): lambda bench: [newborns.storm(bench.made, bench.many(), bench.build, 1 if bench.quick else 5)],
    ("exec_storm_hostile",): lambda bench: [hostile.exec_storm(
        bench.made, bench.many(), bench.build, 1 if bench.quick else 5, 1 if bench.quick else 3)],
    ("name_storm_hostile",): lambda bench: [hostile.name_storm(
        bench.made, bench.many(), bench.build, 1 if bench.quick else 5, 1 if bench.quick else 3)],
    ("growth_rss", "growth_idle", "growth_status", "growth_start", "growth_pass"): _growth,
    ("discover_300",): _cold,
    ("nri_update_cost",): _update_cost,
    ("idle_containers",): _containers,
    ("lifecycle_runc",): lambda bench: _lifecycle_runc(bench, allocating=False),
    ("lifecycle_allocating",): lambda bench: _lifecycle_runc(bench, allocating=True),
    ("lifecycle_vm",): lambda bench: _in_a_vm(bench, lifecycles.vm, 15),
    ("hook_to_masks",): lambda bench: _in_a_vm(bench, lifecycles.hook_to_masks, 50),
    ("start_to_watching",): _starting,
    ("reconcile_command",): lambda bench: _in_a_vm(bench, starting.reconcile, 50),
    ("first_exclusive_100",): _first_exclusive,
    ("guest_apply",): _guest_apply,
    ("guest_idle_rss", "guest_idle_wakes"): _guest_rest,
    ("report_rss", "report_idle_cpu", "change_to_condition"): _reporting,
    ("all_nodes_200", "all_nodes_rss"): _all_nodes,
    ("allocate_96",): lambda bench: [allocating.allocate("allocate_96", bench.rounds(400))],
    ("allocate_512",): lambda bench: [allocating.allocate("allocate_512", bench.rounds(400))],
    ("allocate_scattered",): lambda bench: [allocating.allocate("allocate_scattered", bench.rounds(400))],
    ("nri_create_cost",): lambda bench: [creating.cost(bench.rounds(200))],
    ("hostile_frame",): lambda bench: [inputs.frame(bench.rounds(200))],
    ("hostile_checkpoint",): lambda bench: [inputs.checkpoint(bench.rounds(200))],
    ("hostile_persist",): lambda bench: [inputs.persist(bench.rounds(200))],
    ("irqs_256x2000",): lambda bench: [interrupts.reading(bench.rounds(100))],
    ("flooding_guest",): lambda bench: [inputs.flooding(2 if bench.quick else 60)],
    ("pyz_size",): lambda bench: [guest_agent.size()],
}
NAMES = [name for names in BENCHMARKS for name in names]


def line(figure: Figure) -> str:
    limit = {"value": f"at most {figure.limit:g} {figure.unit}", "ratio": f"at most {figure.limit:g} times the floor",
             "difference": f"at most {figure.limit:g} {figure.unit} beyond the floor"}[figure.limit_on]
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
    return (f"{figure.name:18} {figure.value:9.3f} {figure.floor:9.3f} {ratio:>7}  {figure.unit:11} "
            f"{'ok' if figure.ok else 'BEYOND':7} {limit}")


def measure(bench: Bench, only: list[str]) -> tuple[list[Figure], int]:
    """The figures, and how many benchmarks gave none."""
    figures: list[Figure] = []
    failed = 0
    for names, run in BENCHMARKS.items():
        if only and not set(only) & set(names):
            continue
        progress(f"measuring {', '.join(names)}")
        try:
            figures += run(bench)
        except (CannotMeasure, OSError) as err:
            progress(f"{', '.join(names)}: not measured: {err}")
            failed += 1
    return [figure for figure in figures if not only or figure.name in only], failed


def _terminated(number: int, frame: types.FrameType | None) -> None:
    raise KeyboardInterrupt  # so that the machines are ended


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure vmpin's speed on this machine.")
    parser.add_argument("--only", action="append", choices=NAMES, default=[], metavar="NAME",
                        help=f"measure this one alone; may be repeated ({', '.join(NAMES)})")
    parser.add_argument("--quick", action="store_true", help="few machines and rounds: to see that it works")
    parser.add_argument("--command", type=Path, default=Path(sys.executable).with_name("vmpin"), metavar="VMPIN",
                        help="the vmpin command to measure (the one beside this Python)")
    parser.add_argument("-o", dest="out", type=Path, default=Path("build/bench.json"), metavar="FILE",
                        help="where the figures are written (build/bench.json)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        processes.check_root()
        with node(args.command.absolute()) as made, contextlib.closing(
                Bench(made, args.quick, args.out.parent.absolute())) as bench:
            figures, failed = measure(bench, args.only)
    except CannotMeasure as err:
        progress(str(err))
        return 1
    except KeyboardInterrupt:
        return 130
    args.out.write_text(json.dumps({"python": sys.version, "benchmarks": [figure.data() for figure in figures]},
                                   indent=2) + "\n")
    print(f"Python {sys.version}")  # builds of one version differ by an eighth
    print(f"{'':18} {'value':>9} {'floor':>9} {'ratio':>7}")
    for figure in figures:
        print(line(figure))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
