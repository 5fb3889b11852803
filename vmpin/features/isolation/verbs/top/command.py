"""`vmpin top`: its arguments, and the choice between the live view and the batch."""

from __future__ import annotations

import argparse
import gc
import os
import sys

from vmpin.bounded import parse_real, parse_whole
from vmpin.cli.this_program import about_this_node
from vmpin.cli.verbs import Verbs, direct_flag, namespace_flag, usable_config, verb
from vmpin.errors import UsageError

_SORTS = ("foreign", "busy", "waited", "drift", "name")

_ABOUT = """\
A live view of the pods, of their threads, and of foreign threads: those that run on a pod's exclusive CPUs and belong
neither to its VM nor to the container that owns the CPU. top samples the run times of all threads itself. It asks the
watcher for its status once a refresh, at most every 2.5 seconds.
"""

_EPILOG = """\
examples:
  vmpin top                          the live view; ? lists its keys
  vmpin top shop demo/db             these pods only
  vmpin top -d 1 --sort busy         every second, the busiest first
  vmpin top --batch -c 20 >top.log   twenty blocks for a log
  vmpin top -o json -c 1 | jq .foreign_threads

columns:
  BUSY       run time of its threads, in % of one CPU (200%: two CPUs)
  FOREIGN/s  time in each second that foreign threads ran on its exclusive CPUs. A kernel thread that is bound to one
             CPU belongs to that CPU and is not foreign
  WAITED/s   time in each second that its threads were ready to run and had no CPU
  DRIFT      how many times the watcher put a thread back

A time with ~ is an estimate: the kernel counts a thread's run time and keeps its last CPU, so all time of a thread
that may run on several CPUs counts for the last one. Without ~ the thread may run on that CPU alone: that is exact.
Threads that begin and end between two samples show up only in the CPU's busy time ("unseen" on a pod's page).

keys: arrows or j k move, Space and b a page on or back, Enter threads, f foreign threads of the pod, F of all pods,
t the foreign program with the most time on the CPUs of the first pod, e explain, m map, / filter, s sort, r repin
(asks first), p pause, ? help, q back or quit. `vmpin help top` has more.

exit codes: 0 ended by q or after --count, 1 the watcher does not answer, or a file cannot be read, 2 the command
cannot be used, 130 Ctrl-C, 143 SIGTERM
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "top", "watch live which threads run on the CPUs of which pods", run, about=_ABOUT,
                  epilog=_EPILOG)
    parser.add_argument("pods", nargs="*", metavar="POD", help=about_this_node(
        "only these: POD, NAMESPACE/POD, or the first digits of a sandbox's id"))
    namespace_flag(parser)
    parser.add_argument("-d", "--delay", type=_delay, default=3.0, metavar="SECONDS",
                        help="the time between two refreshes, 0.5 to 3600 (default: 3)")
    parser.add_argument("-c", "--count", type=_count, default=0, metavar="COUNT",
                        help="end after so many refreshes (default: none)")
    parser.add_argument("-b", "--batch", action="store_true",
                        help="print plain blocks, for a log or another program, and read no keys")
    parser.add_argument("-o", "--output", choices=("table", "json"), default=None, metavar="FORMAT",
                        help="with --batch table or json: one JSON object a line (implies --batch; default: table)")
    parser.add_argument("--sort", choices=_SORTS, default="foreign", metavar="ORDER",
                        help=f"{', '.join(_SORTS)} (default: foreign)")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only pods with this text in their row")
    direct_flag(parser)


def _delay(text: str) -> float:
    if (seconds := parse_real(text, 3600, 0.5)) is not None:
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds between 0.5 and 3600")


def _count(text: str) -> int:
    if (count := parse_whole(text, 1_000_000_000, 1)) is not None:
        return count
    raise argparse.ArgumentTypeError(f"{text!r} is no number of refreshes from 1 on")


def run(args: argparse.Namespace) -> int:
    gc.enable()
    batch = args.batch or args.output is not None
    if not batch:
        _need_terminal()
    config = usable_config(args)
    from vmpin.features.isolation.verbs.top.feed import NodeReader
    reader = NodeReader(config, args.direct, args.pods, args.namespace)
    if batch:
        from vmpin.features.isolation.verbs.top.batch import run_batch
        return run_batch(reader, args.delay, args.count, args.sort, args.filter, args.output or "table")
    from vmpin.features.isolation.verbs.top.live import Answers, LiveView
    from vmpin.features.isolation.verbs.top.view_state import Page, State, View
    state = State((Page(View.PODS, sort=args.sort, filter=args.filter),))
    return LiveView(reader, args.delay, args.count, state, Answers(config, args.direct)).run()


def _need_terminal() -> None:
    """Refuse to start where keys or the screen are no terminal, as top(1) does. :raises UsageError:"""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal to show and to read keys",
                         "--batch prints plain blocks, -o json a JSON object for each refresh")
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise UsageError("top cannot move the cursor on this terminal (TERM is unset or dumb)",
                         "set TERM, as TERM=xterm, or use --batch")
