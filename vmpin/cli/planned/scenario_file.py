"""A scenario's file: read for the verbs, and drawn for `vmpin map --scenario`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from vmpin.config.scenario import Scenario, load, place_scenario
from vmpin.errors import SourceError
from vmpin.host.allocator_topology import allocator_topology
from vmpin.host.sysfs import Sysfs
from vmpin.reports.map.node_map import Picture, picture
from vmpin.reports.map.planned_node import planned_node


def load_scenario(path: str) -> Scenario:
    """A scenario; one without a topology is on this machine. :raises ConfigError: as `load`."""
    machine = None
    with contextlib.suppress(SourceError):  # of no use to a scenario that has a topology
        machine = allocator_topology(Sysfs())
    return load(Path(path), machine, needed=True)


def planned_picture(path: str) -> Picture:
    """The node of a scenario, for the map; where CPUs are given out, by the ledger. :raises ConfigError: as above."""
    read = load_scenario(path)
    found = place_scenario(read)
    ledger = None
    if read.allocation is not None:
        from vmpin.config.scenario_allocation import play
        from vmpin.reports.ledger_holders import ledger_map
        from vmpin.status.allocation_report import AllocatorView, allocation_report
        played = play(read.allocation)
        ledger = ledger_map(allocation_report(AllocatorView("on", "", played.machine, played.options, played.ledger,
                                                            played.pool)))
    return picture(planned_node(found.data()["sandboxes"], read.node, found.own, found.collisions), read.node.topology,
                   ledger, os.path.basename(path))
