"""`vmpin allocations`: which container was given which CPUs."""

import argparse
from datetime import UTC, datetime

from vmpin.cli.control_client import ask
from vmpin.cli.output import print_data, print_text, table
from vmpin.cli.verbs import Verbs, output_flag, usable_config, verb, watch_flag
from vmpin.errors import WatcherError

_ABOUT = """\
The CPUs that vmpin itself gives out (allocate.mode): which container has which, since when, and by which annotation;
what is free, by NUMA node; and which requests were refused, with the reason. The running watcher answers.
"""

_EXAMPLES = """\
examples:
  vmpin allocations                containers with CPUs of their own, and what is free
  vmpin allocations -o wide        also those on the pool, with the cpusets that the runtime has for them
  vmpin allocations -o json | jq -r '.refused[].reason'

states: reserved (given, and not started yet), running, lapsed (the container has stopped; its pod keeps the CPUs until
it ends, and its next container uses them first)
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "allocations", "show which container was given which CPUs, and what was refused", run,
                  about=_ABOUT, epilog=_EXAMPLES)
    watch_flag(parser)
    output_flag(parser, ("table", "wide", "json", "yaml"))


def run(args: argparse.Namespace) -> int:
    from vmpin.features.allocator.allocation_report import grant_columns, grant_rows, refusals, summary
    config = usable_config(args)
    found = ask(config, {"op": "allocations"})
    if found is None:
        raise WatcherError(f"{config.paths.control_socket}: no watcher runs, and it alone gives out CPUs",
                           "start it: systemctl start vmpin, or `vmpin watch`")
    if args.output in ("json", "yaml"):
        print_data(found, args.output)
        return 0
    wide = args.output == "wide"
    for line in summary(found):
        print_text(line)
    now = _now()
    rows = grant_rows(found, now, wide)
    if rows:
        print()
        table(grant_columns(wide), rows, {"running": "green", "reserved": "cyan", "lapsed": "yellow"},
              spare=() if wide else ("WHY", "SINCE"), also="`vmpin allocations -o wide`", keys=("POD", "CONTAINER"))
    else:
        print("no container has CPUs of its own")
    for line in refusals(found, now):
        print_text(line)
    return 0


def _now() -> datetime:
    return datetime.now(UTC)
