"""`vmpin status`: the sandboxes, and the current masks of their threads."""

import argparse
import sys

from vmpin.cli.control_client import ask_raw, only, read_status, status_document
from vmpin.cli.output import print_data
from vmpin.cli.this_program import about_this_node
from vmpin.cli.verb_options import (
    Verbs,
    direct_flag,
    namespace_flag,
    output_flag,
    sandbox_argument,
    usable_config,
    verb,
    watch_flag,
)
from vmpin.feature import inspect_vms

_EXAMPLES = """\
examples:
  vmpin status                   a line for each VM, and what is not as it should be
  vmpin status -o wide           with ids, every container and every thread
  vmpin status shop              one sandbox, by its pod: also demo/shop, or -n demo shop
  vmpin status 5f2c -o yaml      by the first digits of its id; everything
  vmpin status --watch           every two seconds; -w 10: every ten
  vmpin status --inspect -o json  also what root finds out about each VM's devices (docs/network.md)

IN PLACE counts the threads whose mask is the decided one. In -o wide, WANTED is the mask that the rules give a thread,
ACTUAL the mask read from the kernel just now. Verdicts: pinned (each
exclusive CPU has its vCPU), floating (no exclusive CPUs), waiting (a cpuset cgroup that the kubelet has not rewritten
yet keeps threads elsewhere, or vCPU threads cannot be identified yet), degraded (less than the policy asks for, with
the reason), unmanaged (no CPUs for it are known: left as it is), off.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "status", "show the sandboxes and where their threads may run", run,
                  epilog=_EXAMPLES)
    sandbox_argument(parser, "only this one")
    namespace_flag(parser)
    output_flag(parser, ("table", "wide", "json", "yaml"))
    direct_flag(parser)
    parser.add_argument("--inspect", action="store_true", help=about_this_node(
        "also inspect the devices of each VM, as -o wide does (as root: docs/network.md)"))
    watch_flag(parser)


def run(args: argparse.Namespace) -> int:
    config = usable_config(args)
    if args.output == "json" and args.sandbox is None and not args.inspect and not sys.stdout.isatty():
        # The watcher's answer is the document: it is passed on without parsing thousands of threads.
        raw = None if args.direct else ask_raw(config, {"op": "status"}, has_direct=True)
        if raw is None:
            print_data(read_status(config), "json")
        else:
            sys.stdout.buffer.write(raw)
        return 0
    from vmpin.cli.status_text import print_one, print_status
    from vmpin.domain.pod_names import names_of
    found = status_document(config, None, wide=args.output != "table" or args.sandbox is not None, direct=args.direct)
    names = names_of(found)
    if args.sandbox is not None:
        found["sandboxes"] = [only(found, args.sandbox, args.namespace)]
    if args.inspect or args.output == "wide":
        inspect_vms(config, found["sandboxes"])
    if args.output in ("json", "yaml"):
        print_data(found, args.output)
    elif args.sandbox is not None and args.output != "wide":
        print_one(found, names)
    else:
        print_status(found, args.output == "wide", names)
    return 0
