"""Reads the allocator's keys of a scenario: its settings, the pods that are there, and the events after them."""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocate_settings import AllocateSettings
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.scenario_allocation import AllocationScenario
from vmpin.features.allocator.scenario_events import read_events
from vmpin.features.allocator.scenario_pods import read_pods
from vmpin.scenario.scenario_values import ScenarioValues


def read(values: ScenarioValues, top: Mapping[str, object], topology: Topology) -> AllocationScenario:
    """Read what is given out on a scenario's node. :param top: the scenario's keys. :raises ConfigError: with the
    place."""
    for key in ("sandboxes", "shared_pool"):
        if "pods" in top and top.get(key) is not None:
            raise values.wrong(key, "cannot stand beside `pods`: there another program has given the CPUs out, here "
                               "`allocate` does")
    pods = read_pods(values, top.get("pods"), topology.all_cpus)
    return AllocationScenario(topology, read_options(values, top.get("allocate"), topology.all_cpus),
                              (*pods, *read_events(values, top.get("events"), topology.all_cpus, pods)))


def read_options(values: ScenarioValues, given: object, valid: CpuSet) -> AllocationOptions:
    """`allocate`, with the keys of the configuration. :param valid: the CPUs of the topology.
    :raises ConfigError: with the place."""
    keys = values.mapping({} if given is None else given, "allocate", AllocateSettings._fields)
    parsed = {}
    for key, setting in AllocateSettings._field_defaults.items():
        value = keys.get(key, setting.default)
        try:
            parsed[key] = setting.parse(value)
        except (ValueError, CpuSetError) as err:
            raise values.wrong(f"allocate.{key}", f"{value!r:.80}: {err}") from err
    options = AllocateSettings(**parsed).options
    values.cpuset(str(options.reserved), "allocate.reserved", valid)
    for name, rule in options.groups.items():
        values.cpuset(str(rule.cpus), f"allocate.groups: {name}", valid)
    return options
