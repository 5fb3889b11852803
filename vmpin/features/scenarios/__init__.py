"""Scenarios: a node described in YAML, placed by the rules that the watcher uses, for `vmpin plan` and `vmpin map`.
docs/placement.md describes the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.feature import Feature, features, present

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

_ABOUT = """
With --scenario, print the placement of a node that a YAML file describes, by the same rules; this needs no root.
"""

_EXAMPLES = """\
  vmpin plan --scenario node.yaml -o json > before.json
  vmpin plan --scenario changed.yaml --previous before.json
"""

_FORMAT = """\
a scenario:
  topology:                 # absent: this machine's
    online: "0-15"
    cores: ["0,8", "1,9"]   # SMT siblings
    nodes: {0: "0-3,8-11", 1: "4-7,12-15"}
  shared_pool: "0-1,8-9"    # the kubelet's default CPU set
  housekeeping: "0"
  policy: {vcpus: auto, spare_vcpus: sandbox, emulator: housekeeping}
  sandboxes:
    - id: pod-a
      vcpus: 3              # or [{id: 0, core: 0, node: 0, memory: [1]}, …]: the guest's core and NUMA node, and \
the host's nodes that the memory of that node is bound to
      iothreads: 1
      vhost: 2
      nic_node: 1           # the NUMA node of its NIC, for policy {vhost: near}
      containers:
        - {id: main, cpuset: "2-3", exclusive: true}  # or those that are its own: exclusive: "2-3"
        - {id: sidecar, cpuset: "0-1,8-9"}
"""

_OF_MAP = "  vmpin map --scenario node.yaml      as vmpin would place it: `vmpin plan --help` has the format\n"


def _options(verb: str, parser: ArgumentParser) -> None:
    text = str(parser.epilog)
    if verb == "plan":
        parser.description = f"{parser.description}{_ABOUT}"
        keys = [keys.help for keys in present(feature.scenario for feature in features())]
        parser.epilog = "\n".join((_FORMAT, f"{text}{_EXAMPLES}", *keys))
        parser.add_argument("--scenario", metavar="FILE", help="place the node described in this YAML file")
        parser.add_argument("--previous", metavar="FILE", help="with --scenario: an earlier output of -o json, to "
                            "move as few vCPUs as possible against it")
        parser.set_defaults(run_instead=(*parser.get_default("run_instead"), _plan))
    elif verb == "map":
        parser.epilog = text.replace("  vmpin map -o json", f"{_OF_MAP}  vmpin map -o json", 1)
        from vmpin.cli.this_program import about_this_node

        parser.add_argument("--scenario", metavar="FILE", help=about_this_node(
            "draw the node described in this YAML file, as vmpin would place it"))
        parser.set_defaults(run_instead=(*parser.get_default("run_instead"), _map))


def _plan(args: Namespace) -> Callable[[Namespace], int] | None:
    """Return what prints a scenario's placement; None without one. :raises UsageError: for --previous alone."""
    from vmpin.errors import UsageError

    if args.scenario is None:
        if args.previous is not None:
            raise UsageError("--previous goes with --scenario only", "give both")
        return None
    from vmpin.features.scenarios.verbs.scenario_plan import print_plan

    return print_plan


def _map(args: Namespace) -> Callable[[Namespace], int] | None:
    """Return what draws a scenario; None without one. :raises UsageError: for a namespace."""
    from vmpin.errors import UsageError

    if args.scenario is None:
        return None
    if args.namespace:
        raise UsageError("--scenario does not go with -n", "its sandboxes are in no namespace")
    from vmpin.features.scenarios.verbs.scenario_map import show_planned

    return show_planned


FEATURE = Feature(name="scenarios", options=_options, examples={"in service:\n": """\
  vmpin plan --scenario F    the same for a node described in a file
in service:
"""})
