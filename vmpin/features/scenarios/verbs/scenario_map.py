"""`vmpin map --scenario`: a node described in a file, as vmpin would place it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vmpin.feature import features, present
from vmpin.features.scenarios.node_scenario import place_scenario
from vmpin.features.scenarios.scenario_file import load_scenario
from vmpin.placement.ownership import Collision, Node, Ownership
from vmpin.status.document import node_data


def show_planned(args: argparse.Namespace) -> int:
    """Show the map of a scenario; where CPUs are given out, with their holders. :raises ConfigError:"""
    path = Path(args.scenario)
    scenario = load_scenario(path)
    outcome = place_scenario(scenario)
    held = next(present(part.played().held for part in scenario.of_features.values()), None)
    show = next(present(feature.show_map for feature in features()))
    show(_planned_node(outcome.data()["sandboxes"], scenario.node, outcome.own, outcome.collisions),
         scenario.node.topology, held, path.name, args.output)
    return 0


def _planned_node(sandboxes: Iterable[Mapping[str, Any]], node: Node, own: Ownership,
                 collisions: Iterable[Collision]) -> dict[str, Any]:
    """Return the document of a planned node, as a map takes it.
    :param sandboxes: as `vmpin plan --scenario -o json` prints them. Planned masks stand for those in the kernel; a
        role without a mask is left as it is, and not drawn."""
    owners = {(name, container): {"kind": "vm"} for name, claim in own.claims.items()
              for container, _ in claim.exclusive}
    return {"node": node_data(node, own, collisions, owners),
            "sandboxes": [{"id": sandbox["id"], "pod": None, "vmm": {}, "mask": sandbox["mask"],
                           "verdict": sandbox["verdict"],
                           "containers": [{"id": container["id"], "name": container["id"]}
                                          for container in sandbox["containers"]],
                           "threads": [*_threads(sandbox)]} for sandbox in sandboxes]}


def _threads(sandbox: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for vcpu in sandbox["vcpus"]:
        yield {"role": "vcpu", "vcpu": vcpu["id"], "actual": vcpu["cpus"] or ""}
    for thread in sandbox["iothreads"]:
        yield {"role": "iothread", "vcpu": None, "actual": thread["cpus"] or ""}
    for role in ("vhost", "emulator"):
        yield {"role": role, "vcpu": None, "actual": sandbox[role] or ""}
