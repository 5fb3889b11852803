"""`vmpin top`: live, which threads run on the CPUs of which pods."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import TYPE_CHECKING

from vmpin.bounded import parse_real, parse_whole
from vmpin.cli.output import VERDICTS, print_lines, table
from vmpin.cli.this_program import about_this_node
from vmpin.cli.verbs import Verbs, direct_flag, namespace_flag, output_flag, usable_config, verb

if TYPE_CHECKING:
    from vmpin.features.isolation.top.pod_usage import NodeUsage

#: The first interval is no longer than this (seconds).
_FIRST = 1.0
_SORTS = ("foreign", "busy", "waited", "drift", "name")

_ABOUT = """\
A live view of the pods, of their threads, and of foreign threads: those that run on a pod's exclusive CPUs and belong
neither to its VM nor to the container that owns the CPU. top samples the run times of all threads itself. It asks the
watcher for its status once a refresh, at most every 2.5 seconds. It is redrawn at a terminal and appended in a pipe.
"""

_EPILOG = """\
examples:
  vmpin top                          every three seconds, until Ctrl-C
  vmpin top shop demo/db             these pods only, with their CPUs and threads
  vmpin top -d 1 --sort busy         every second, the busiest first
  vmpin top -c 20 >top.log           twenty blocks for a log
  vmpin top -o json -c 1 | jq .foreign_threads

columns:
  CPUS       5-6+0-1: CPUs 5 and 6 are exclusive to it, it shares 0 and 1
  BUSY       run time of its threads, in % of one CPU (200%: two CPUs)
  FOREIGN/s  time in each second that foreign threads ran on its exclusive CPUs. A kernel thread that is bound to one
             CPU belongs to that CPU and is not foreign
  WAITED/s   time in each second that its threads were ready to run and had no CPU
  DRIFT      how many times the watcher put a thread back
  GUEST      the most urgent state of its containers in the guest
  IN PLACE   threads that have the mask that the rules give them
  PLACE      of a thread: ok, or the CPUs that the rules give it

A time with ~ is an estimate: the kernel counts a thread's run time and keeps its last CPU, so all time of a thread
that may run on several CPUs counts for the last one. Without ~ the thread may run on that CPU alone: that is exact.
Threads that begin and end between two samples show up only in the CPU's busy time ("unseen").

exit codes: 0 after --count, 1 the watcher does not answer, or a file cannot be read, 2 the command cannot be used,
130 Ctrl-C
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "top", "watch live which threads run on the CPUs of which pods", run, about=_ABOUT,
                  epilog=_EPILOG)
    parser.add_argument("pods", nargs="*", metavar="POD", help=about_this_node(
        "only these, with their threads: POD, NAMESPACE/POD, or the first digits of a sandbox's id"))
    namespace_flag(parser, only=True)
    parser.add_argument("-d", "--delay", dest="watch", type=_delay, default=3.0, metavar="SECONDS",
                        help="the time between two refreshes, 0.5 to 3600 (default: 3)")
    parser.add_argument("-c", "--count", type=_count, default=0, metavar="COUNT",
                        help="end after so many refreshes (default: none)")
    output_flag(parser, ("text", "json"))
    parser.add_argument("--sort", choices=_SORTS, default="foreign", metavar="ORDER",
                        help=f"{', '.join(_SORTS)} (default: foreign)")
    direct_flag(parser)
    parser.set_defaults(reader=None)


def _delay(text: str) -> float:
    if (seconds := parse_real(text, 3600, 0.5)) is not None:
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds between 0.5 and 3600")


def _count(text: str) -> int:
    if (count := parse_whole(text, 1_000_000_000, 1)) is not None:
        return count
    raise argparse.ArgumentTypeError(f"{text!r} is no number of refreshes from 1 on")


def run(args: argparse.Namespace) -> int:
    """Print one interval: since the call before, or a short one of its own."""
    from vmpin.features.isolation.top.pod_usage import usage_data
    from vmpin.features.isolation.verbs.top_reader import NodeReader
    from vmpin.status.collector import when

    if args.reader is None:
        args.reader = NodeReader(usable_config(args), args.direct, args.pods, args.namespace)
        args.reader.first()
        time.sleep(min(args.watch, _FIRST))
    usage: NodeUsage = args.reader.read()
    trouble = args.reader.trouble
    if args.output == "json":
        print(json.dumps({**usage_data(usage, when(time.time()), args.sort), "trouble": trouble}))
    else:
        show(usage, args.sort, bool(args.pods), trouble, args.namespace)
    return 0


def show(usage: NodeUsage, order: str, threads: bool, trouble: str, namespace: str = "") -> None:
    """Print the pods, in one of the orders. :param threads: their CPUs and threads, too. :param trouble: with the
    watcher, "" for none. :param namespace: of all pods; "" for any."""
    from vmpin.features.isolation.top import usage_text as texts
    from vmpin.features.isolation.top.pod_usage import sorted_pods

    print_lines([*[f"WATCHER: {trouble}"] * bool(trouble), *texts.state_lines(usage), *texts.foreign_lines(usage)])
    rows = sorted_pods(usage.pods, order)
    if sys.stdout.isatty():  # which has no room for more
        rows = rows[:shutil.get_terminal_size().lines]
    if not rows:
        whose = f" of namespace {namespace!r}" if namespace else ""
        print_lines([f"no VM sandbox{whose} runs on this node, and no container{whose} has exclusive CPUs"])
    else:
        table(texts.PODS, [texts.pod_row(row, usage) for row in rows], VERDICTS, spare=texts.SPARE,
              also="`vmpin top -o json`")
    for row in rows if threads else ():
        print()
        print_lines(texts.pod_lines(row, usage))
        if ran := row.threads():
            table(texts.THREADS, [texts.thread_row(thread, usage) for thread in ran], keys=("THREAD",))
