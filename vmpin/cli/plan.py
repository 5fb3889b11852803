"""`vmpin plan`: the changes that vmpin would make, on this node or on one described in a file. Changes nothing."""

import argparse
from pathlib import Path

from vmpin.cli.control_client import Document, ask, known_names, quiet_log
from vmpin.cli.output import VERSION, print_data, print_lines, print_text, table
from vmpin.cli.verbs import Verbs, direct_flag, output_flag, usable_config, verb, watch_flag
from vmpin.config.settings import Config
from vmpin.domain.pod_names import by_sandbox, threads_of, title_of
from vmpin.domain.terminal import number_of
from vmpin.errors import UsageError
from vmpin.feature import features, present

_ABOUT = """\
Without --scenario, print the system calls that would place every thread now, by sandbox, and their number; none if
all threads are in place. With --scenario, print the placement of a node that a YAML file describes, by the same rules;
this needs no root. Nothing is changed.
"""

_EXAMPLES = """\
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
      vcpus: 3              # or [{id: 0, core: 0, node: 0, memory: [1]}, …]: the guest's core and NUMA node, and
                            # the host's nodes that the memory of that node is bound to
      iothreads: 1
      vhost: 2
      nic_node: 1           # the NUMA node of its NIC, for policy {vhost: near}
      containers:
        - {id: main, cpuset: "2-3", exclusive: true}  # or those that are its own: exclusive: "2-3"
        - {id: sidecar, cpuset: "0-1,8-9"}

examples:
  vmpin plan
  vmpin plan --watch        # what is not in place, again every two seconds
  vmpin plan --scenario node.yaml -o json > before.json
  vmpin plan --scenario changed.yaml --previous before.json
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "plan", "print the changes to make, here or on a node described in a file", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    parser.add_argument("--scenario", metavar="FILE", help="place the node described in this YAML file")
    parser.add_argument("--previous", metavar="FILE", help="with --scenario: an earlier output of -o json, to move as "
                        "few vCPUs as possible against it")
    direct_flag(parser)
    watch_flag(parser)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    if args.scenario is not None:
        return _scenario(args)
    if args.previous is not None:
        raise UsageError("--previous goes with --scenario only", "give both")
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


def _scenario(args: argparse.Namespace) -> int:
    from vmpin.cli.scenario_file import load_previous, load_scenario
    from vmpin.scenario.node_scenario import place_scenario
    previous = None if args.previous is None else load_previous(Path(args.previous))
    scenario = load_scenario(Path(args.scenario))
    document: Document = {"version": VERSION, **place_scenario(scenario, previous).data()}
    parts = [part.played() for part in scenario.of_features.values()]
    for part in parts:
        document |= part.members
    if args.output == "json":
        print_data(document, "json")
    else:
        for part in parts:
            for line in part.lines:
                print(line)
        if not parts or scenario.sandboxes:
            _print(document)
    return 1 if any(part.refused for part in parts) else 0


def _print(document: Document) -> None:
    for sandbox in document["sandboxes"]:
        print(f"sandbox {sandbox['id']}: {sandbox['verdict']}, mask {sandbox['mask'] or 'none'}")
        for reason in sandbox["reasons"]:
            print(f"  {reason}")
        rows: list[list[object]] = [
            [f"  vcpu {vcpu['id']}", _cpus(vcpu["cpus"]), f"backs {vcpu['container']}" if vcpu["container"] else ""]
            for vcpu in sandbox["vcpus"]]
        rows += [[f"  iothread {thread['index']}", _cpus(thread["cpus"]), ""] for thread in sandbox["iothreads"]]
        rows += [[f"  {role}", _cpus(sandbox[role]), ""] for role in ("vhost", "emulator")]
        rows += [[f"  container {container['id']}", "", f"vCPUs {container['vcpus'] or 'none'} in the guest"]
                 for container in sandbox["containers"]]
        table(["  THREAD", "CPUS", ""], rows)
        print()
    for collision in document["collisions"]:
        print(f"COLLISION on CPU {collision['cpu']}: {collision['what']}")
    print(f"{number_of(document['moves'], 'vCPU')} moved")


def _cpus(text: str | None) -> str:
    return "unchanged" if text is None else text
