"""`vmpin demo`: a real VM, the watcher and two containers, with each claim checked against /proc; and beside noise."""

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from vmpin.cli.output import VERSION, print_data
from vmpin.cli.verbs import Verbs, output_flag, verb
from vmpin.domain.wrapping import wrapped
from vmpin.errors import UnseenError, UsageError

_ABOUT = """\
Shows on this machine what vmpin does: a real QEMU as a sandbox's VM, the real watcher, and two containers that a real
crun creates with the hook. Takes about 10 seconds, changes only what it created itself, and removes all of it
afterwards. Exit code 1 if a thread is misplaced. Needs root, two CPUs and the packages that --needs prints.

With --noise it measures instead what pinning is worth: a container with an exclusive CPU in a VM, beside a busy
sidecar, a busy VM and a busy container of runc, on two CPUs of this machine. In each round the VMs' threads are first
unplaced, then in the cpusets that Kata confines them to, then placed by vmpin. docs/worth.md has the method and its
limits. Other programs of the machine change the result: where they took more than 4 % of the CPUs during every
measurement of a placement, there is no verdict but exit code 3, and these programs are named.
"""
_EXAMPLES = """\
examples:
  vmpin demo                            a VM is pinned, step by step
  vmpin demo --noise                    what that is worth here, in three quarters of a minute
  vmpin demo --noise --rounds 8 --svg worth.svg -o json > worth.json
"""
#: Bounds of --seconds: below them a scheduler's slices show, above them the guest's record of gaps may overflow.
_SECONDS = (0.5, 60.0)
_ROUNDS = (1, 1000)


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "demo", "show what vmpin does, on a real VM made for it", run, about=_ABOUT, epilog=_EXAMPLES)
    parser.add_argument("--needs", action="store_true",
                        help="check this place, and print the Debian packages that are missing, one a line")
    parser.add_argument("--noise", action="store_true", help="measure what pinning is worth beside busy neighbours")
    parser.add_argument("--rounds", type=int, metavar="N", help="with --noise: measure each placement N times (2)")
    parser.add_argument("--seconds", type=float, metavar="S", help="with --noise: for S seconds each time (5)")
    parser.add_argument("--quiet-sidecar", action="store_true", help="with --noise: the VM's other container is idle")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="with --noise: write the result as a picture, too")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    from vmpin.features.demo import needs
    if args.needs:
        needs.check_place()  # before anything is installed where it is of no use
        for package in needs.missing():
            print(package)
        return 0
    if not args.noise:
        for name in ("rounds", "seconds", "svg", "quiet_sidecar"):
            if getattr(args, name) not in (None, False):
                raise UsageError(f"--{name.replace('_', '-')} belongs to --noise", "`vmpin demo --noise`")
        return _show(args.output == "json")
    return _measure(args)


def _show(as_json: bool) -> int:
    from vmpin.features.demo import needs
    from vmpin.features.demo.story import Stage, play
    tools = needs.tools()
    _unwind_at_signals()
    # The story is for people: with -o json it goes to standard error, and its texts follow as data at the end.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), Stage(tools) as stage:
        play(stage)
    if as_json:
        print_data({"version": VERSION, "ok": True, "steps": stage.story}, "json")
    return 0


def _measure(args: argparse.Namespace) -> int:
    from vmpin.features.demo import needs
    from vmpin.features.demo.noise_story import NoiseStage, longest, play
    from vmpin.features.demo.worth_report import no_verdict, notes, picture, result_table
    rounds = _within("--rounds", 2 if args.rounds is None else args.rounds, _ROUNDS)
    seconds = _within("--seconds", 5.0 if args.seconds is None else args.seconds, _SECONDS)
    if args.svg is not None and (args.svg.is_dir() or not os.access(args.svg.absolute().parent, os.W_OK)):
        raise UsageError(f"--svg {args.svg}: cannot be written", "is it a directory, or in one that does not exist?")
    tools = needs.tools()
    _unwind_at_signals()
    busy = not args.quiet_sidecar
    with contextlib.redirect_stdout(sys.stderr), NoiseStage(tools, busy, longest(seconds, int(rounds))) as stage:
        worth = play(stage, seconds, int(rounds), busy)
    if args.output == "json":
        print_data(worth.document(), "json")
    if worth.disturbed:
        raise UnseenError(no_verdict(worth), "stop these programs, or run it on an idle machine")
    if args.svg is not None:
        args.svg.write_text(picture(worth), encoding="utf-8")
    if args.output == "text":
        for line in result_table(worth):
            print(line)
        for note in notes(worth):
            print("", *wrapped(note, 80), sep="\n")
    return 0


def _within(option: str, value: float, bounds: tuple[float, float]) -> float:
    least, most = bounds
    if not least <= value <= most:
        raise UsageError(f"{option} {value:g}: is not between {least:g} and {most:g}", f"e.g. {option} 5")
    return value


def _unwind_at_signals() -> None:
    """Have SIGTERM and SIGHUP unwind the stack as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
