"""`vmpin demo`: a real VM, the watcher and two containers, with each claim checked against /proc.

What stays out: the demo itself (vmpin/demo).
"""

import argparse
import contextlib
import signal
import sys
from types import FrameType

from vmpin.cli.common import Verbs, output_flag, verb
from vmpin.cli.output import VERSION, print_data

_ABOUT = """\
Shows on this machine what vmpin does: a real QEMU as a sandbox's VM, the real watcher, and two containers that a real
crun creates with the hook. Takes about 10 seconds, changes only what it created itself, and removes all of it
afterwards. Exit code 1 if a thread is misplaced. Needs root, two CPUs and the packages that --needs prints.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "demo", "show what vmpin does, on a real VM made for it", run, about=_ABOUT)
    parser.add_argument("--needs", action="store_true", help="print the Debian packages that are missing, one a line")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    from vmpin.demo import needs
    if args.needs:
        for package in needs.missing():
            print(package)
        return 0
    found = needs.tools()
    from vmpin.demo.stage import Stage
    from vmpin.demo.story import play
    as_json = args.output == "json"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # unwinds the stack as Ctrl-C does
    # The story is for people: with -o json it goes to standard error, and its texts follow as data at the end.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), Stage(found) as stage:
        play(stage)
    if as_json:
        print_data({"version": VERSION, "ok": True, "steps": stage.story}, "json")
    return 0


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
