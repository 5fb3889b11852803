"""A scenario's file, read for the verbs."""

from __future__ import annotations

import contextlib
from pathlib import Path

from vmpin.bounded import load_json
from vmpin.config import yaml_file
from vmpin.domain.model import SandboxId
from vmpin.domain.sandbox_placement import Previous
from vmpin.domain.topology import Topology
from vmpin.errors import ConfigError, SourceError
from vmpin.feature import features, present
from vmpin.features.scenarios.node_scenario import Scenario
from vmpin.features.scenarios.scenario_reader import read_previous, read_scenario
from vmpin.host.sysfs import Sysfs

MAX_PLAN = 64 << 20  #: Bytes: a plan of a full node has some 2 MB.


def load(path: Path, machine: Topology | None = None) -> Scenario:
    """Read a scenario. :param machine: stands in for an absent topology. :raises ConfigError: in one line."""
    return read_scenario(str(path), yaml_file.load(path, pipe=True), machine)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario; one without a topology is on this machine. :raises ConfigError: as `load`, or if empty."""
    machine = None
    with contextlib.suppress(SourceError):  # of no use to a scenario that has a topology
        keys = next(present(feature.scenario for feature in features()), None)
        machine = Sysfs().topology() if keys is None else keys.topology(Sysfs())
    document = yaml_file.load(path, pipe=True)
    if not document:
        raise ConfigError(f"{path}: is empty: a scenario has `sandboxes`, `pods` or `events`")
    return read_scenario(str(path), document, machine)


def load_previous(path: Path) -> dict[SandboxId, Previous]:
    """Read an earlier output of `vmpin plan -o json`. :raises ConfigError: in one line."""
    try:
        data = load_json(yaml_file.read(path, MAX_PLAN, pipe=True))
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{path}: not JSON: {err}") from err
    yaml_file.check(path, data)
    return read_previous(str(path), data)
