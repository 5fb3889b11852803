"""`vmpin plan`: the changes that vmpin would make on this node. Changes nothing."""

import argparse

from vmpin.cli.control_client import Document, ask, known_names, quiet_log
from vmpin.cli.output import print_data, print_lines, print_text
from vmpin.cli.verbs import Verbs, direct_flag, output_flag, usable_config, verb, watch_flag
from vmpin.config.settings import Config
from vmpin.domain.pod_names import by_sandbox, threads_of, title_of
from vmpin.feature import features, present

_ABOUT = """\
Print the system calls that would place every thread now, by sandbox, and their number; none if all threads are in
place. Nothing is changed.
"""

_EXAMPLES = """\
examples:
  vmpin plan
  vmpin plan --watch        # what is not in place, again every two seconds
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "plan", "print the changes that would place every thread", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    direct_flag(parser)
    watch_flag(parser)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    config = usable_config(args)
    plan = (None if args.direct else ask(config, {"op": "plan"}, has_direct=True)) or _plan_alone(config)
    if args.output == "json":
        print_data(plan, "json")
        return 0
    names = known_names(config, args.direct) if plan["operations"] or plan["unmanaged"] else {}
    operations = plan["operations"]
    print_lines(by_sandbox(((operation["sandbox"], operation["what"]) for operation in operations), names))
    for sandbox in plan["unmanaged"]:
        title = title_of(sandbox, names)
        print_text(f"{title} is unmanaged: its threads keep their masks (vmpin status "
                   f"{title.removeprefix('sandbox ')} --explain)")
    for text in plan["of_features"]:
        print_text(text)
    if operations or not plan["of_features"]:
        print(f"to set: {threads_of(operations)}" if operations else "nothing to do: every thread is in place")
    return 0


def _plan_alone(config: Config) -> Document:
    """The plan without a watcher."""
    from vmpin.reconcile import one_pass
    from vmpin.status import collector
    quiet_log(config)
    view, report = one_pass.inspect(config)
    others = present(feature.planned for feature in features())
    return collector.planned(view, report, [text for plan in others for text in plan(view)])
