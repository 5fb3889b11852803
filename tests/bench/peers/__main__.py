"""`python -m peers`: see the package. Exit code 0 when all parts were measured, also on a busy machine and without a
peer; 1 when a part failed, 2 for a wrong option, 130 when interrupted."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from _pytest.outcomes import OutcomeException
from measure import CannotMeasure, progress

from peers import conditions, creation, events, grants, histories, machines, masks, plugins, quality, report
from peers.figures import Comparison, Measure, Part

#: Machines of random shape in the file of requests.
_MACHINES = 300
Outcome = tuple[Sequence[Measure], Sequence[str]]


@dataclass
class Run:
    """What the parts share."""

    args: argparse.Namespace

    def rounds(self, count: int) -> int:
        return max(2, count // 20) if self.args.quick else count

    def machines(self) -> list[machines.Machine]:
        """Of a file of grants all; else fewer in a quick run."""
        return histories.made(_MACHINES if self.args.grants or not self.args.quick else 12)

    def binaries(self) -> dict[str, Path]:
        """The NRI plugins of others that are there, by name."""
        given = {name: vars(self.args)[name.replace("-", "_")] for name in plugins.BINARIES}
        wrong = [f"--{name} {path}" for name, path in given.items() if path and not path.is_file()]
        if wrong:
            raise CannotMeasure(f"no such file: {', '.join(wrong)}")
        return {name: path.absolute() for name, path in given.items() if path}

    def peer_grants(self) -> list[grants.PeerGrants]:
        known = self.machines()
        try:
            return [grants.parse(path.read_bytes(), known) for path in self.args.grants]
        except (OSError, ValueError) as err:
            raise CannotMeasure(f"grants: {err}") from err

    def no_grants(self) -> list[str]:
        return [] if self.args.grants else ["the peers' allocators: give their grants by --grants FILE"]


def _masks(run: Run) -> Outcome:
    return masks.masks(run.args.command.absolute(), run.args.tools.absolute(), run.rounds(40))


def _quality(run: Run) -> Outcome:
    return quality.quality(run.machines(), run.peer_grants(), run.rounds(1000)), run.no_grants()


def _decisions(run: Run) -> Outcome:
    return quality.decisions(run.machines(), run.peer_grants()), run.no_grants()


def _events(run: Run) -> Outcome:
    return events.events(run.args.command.absolute(), run.binaries(), run.rounds(5), 2 if run.args.quick else 30)


def _creation(run: Run) -> Outcome:
    sizes, rounds = ((5,), 1) if run.args.quick else ((5, 40, 100), 5)
    return creation.creation(run.args.command.absolute(), run.binaries(), sizes, rounds)


PARTS: dict[str, tuple[str, Callable[[Run], Outcome]]] = {
    "masks": ("Masks of a VM", _masks),
    "quality": ("Quality of grants, each allocator with its own history", _quality),
    "decisions": ("Time of a decision", _decisions),
    "events": ("Plugins at a runtime without containers: start, rest, lifecycles", _events),
    "creation": ("Containers of a real containerd", _creation),
}


def _measured(run: Run, name: str) -> tuple[Part, bool]:
    """The part, and whether it could be measured."""
    title, measure = PARTS[name]
    progress(f"measuring {name}")
    with conditions.Meter() as meter:
        try:
            measures, skipped = measure(run)
            ok = True
        except (CannotMeasure, OSError, OutcomeException, AssertionError) as err:  # pytest's: the tests' helpers skip
            measures, skipped, ok = [], [f"{name}: not measured: {err}"], False
    for sentence in skipped:
        progress(f"left out: {sentence}")
    return replace(Part(name, title, measures, skipped), conditions=meter.conditions), ok


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers", description=(
        "Measure vmpin beside other programs on this machine. A missing one is left out, with a sentence; on a busy "
        "machine there are figures and no verdicts."))
    parser.add_argument("--only", action="append", choices=PARTS, default=[], metavar="PART",
                        help=f"this part alone; may be repeated ({', '.join(PARTS)})")
    parser.add_argument("-o", "--output", choices=("table", "json", "markdown"), default="table",
                        help="what is printed; markdown: the table of docs/comparison.md (table)")
    parser.add_argument("--file", type=Path, metavar="FILE", help="where the JSON is written as well")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it works")
    parser.add_argument("--grants", action="append", type=Path, default=[], metavar="FILE",
                        help="a peer's grants, as docs/testing.md has it; may be repeated")
    parser.add_argument("--requests", type=Path, metavar="FILE",
                        help="write the machines and requests that the grants are for, and measure nothing")
    for name in plugins.BINARIES:
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=f"the program of {name}, built by you")
    parser.add_argument("--tools", type=Path, default=Path("build/peers"), metavar="DIRECTORY",
                        help="where libvirt and qemu-affinity are installed (build/peers)")
    parser.add_argument("--command", type=Path, default=Path(sys.executable).with_name("vmpin"), metavar="VMPIN",
                        help="the vmpin command to measure (the one beside this Python)")
    return parser.parse_args()


def _terminated(number: int, frame: types.FrameType | None) -> None:
    raise KeyboardInterrupt  # so that the processes are ended


def main() -> int:
    args = _arguments()
    if args.requests:
        args.requests.write_text(json.dumps(machines.document(histories.made(_MACHINES))) + "\n")
        return 0
    signal.signal(signal.SIGTERM, _terminated)
    run = Run(args)
    try:
        parts = [_measured(run, name) for name in PARTS if not args.only or name in args.only]
    except KeyboardInterrupt:
        return 130
    comparison = Comparison(conditions.machine(), conditions.BUSY, [part for part, _ in parts])
    text = json.dumps(comparison.document(), indent=2)
    if args.file:
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(text + "\n")
    print({"json": lambda: text, "markdown": lambda: report.markdown(comparison),
           "table": lambda: report.table(comparison)}[args.output]())
    return 0 if all(ok for _, ok in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
