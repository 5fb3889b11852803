"""`vmpin alloc set`: other CPUs for a container that runs."""

import argparse

from vmpin.cli.control_client import Document
from vmpin.cli.output import print_data, print_text
from vmpin.cli.verbs import Verbs, completed_by, namespace_flag, output_flag, usable_config, verb
from vmpin.errors import UsageError
from vmpin.features.allocator.grants.cpu_request import WISH_KEYS
from vmpin.features.allocator.verbs.watcher_answer import answer_of

_ABOUT = """\
Change what a running container asks for, under the checks of its creation: CPUs of its own, none, others, or aligned
in another way (`vmpin help allocation`). It moves as little as an equally good set allows, and CPUs are taken from the
shared containers before they are given. Only what is named changes; it lasts until the container ends.
"""

_EXAMPLES = """\
examples:
  vmpin alloc set shop/web policy=fixed --dry-run     the plan, and nothing more
  vmpin alloc set shop/web/main policy=exclusive align=cache! smt=prefer
  vmpin alloc set -n shop web/main policy=none        back to the pool

exit codes: 0 done (or planned), 2 refused with the reason, or the command cannot be carried out
"""


def add_parser(actions: Verbs) -> None:
    parser = verb(actions, "set", "give a running container other CPUs (allocate.mode: on)", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    parser.add_argument("target", metavar="POD[/CONTAINER]", help="POD or NAMESPACE/POD, either with "
                        "/CONTAINER, or the beginning of a container's id")
    completed_by(parser.add_argument("changes", metavar="KEY=VALUE", nargs="+", help="what it asks for: "
                                     f"{', '.join(WISH_KEYS)}"), lambda: (f"{key}=" for key in WISH_KEYS))
    namespace_flag(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan, and change nothing")
    output_flag(parser, ("text", "json"))
    for option in parser._actions:
        if option.dest == "output":
            option.default = argparse.SUPPRESS  # it may stand before the action
    parser.set_defaults(watch=None)  # which stands before the action, and is of the list alone


def run(args: argparse.Namespace) -> int:
    changes: dict[str, str] = {}
    for text in args.changes:
        key, equals, value = text.partition("=")
        if not equals or key not in WISH_KEYS:
            raise UsageError(f"{text!r} is no KEY=VALUE with a key of {', '.join(WISH_KEYS)}", "e.g. policy=fixed")
        if key in changes:
            raise UsageError(f"{key} is given twice: {changes[key]!r} and {value!r}", "give each key once")
        changes[key] = value
    answer = answer_of(usable_config(args), {"op": "set", "target": args.target, "namespace": args.namespace,
                                             "changes": changes, "dry_run": args.dry_run})
    if args.output in ("json", "yaml"):
        print_data(answer, args.output)
    else:
        _print(answer, args.dry_run)
    return 0


def _print(answer: Document, dry_run: bool) -> None:
    for note in answer["notes"]:
        print_text(note)
    for update in answer["updates"]:
        print_text(f"{update['name']}: cpuset {update['cpus']}", "  ")
    if not answer["updates"]:
        print("  no cpuset changes")
    print("planned, and not done" if dry_run else "the container runtime is asked for these changes now")
