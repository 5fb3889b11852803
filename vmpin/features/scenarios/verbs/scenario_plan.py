"""`vmpin plan --scenario`: the placement of a node described in a file."""

import argparse
from pathlib import Path

from vmpin.cli.control_client import Document
from vmpin.cli.output import VERSION, print_data, table
from vmpin.domain.terminal import number_of
from vmpin.features.scenarios.node_scenario import place_scenario
from vmpin.features.scenarios.scenario_file import load_previous, load_scenario


def print_plan(args: argparse.Namespace) -> int:
    """Print the placement of a scenario. :returns: 1 where something cannot be as it has it."""
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
