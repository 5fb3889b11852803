"""The allocator (docs/allocation.md): the CPUs of each container, where vmpin itself gives them out (`allocate.mode`).

grants: requests, the ledger, and the decision on each of the runtime's calls. search: the best CPUs for a request.
texts: annotations and the ledger's data. These three are pure: the same input gives the same output, whatever the
order of maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from vmpin.feature import Comparison, Document, ExplainedPods, Feature, ScenarioKeys, SocketRequest, WatcherPart

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path

    from vmpin.authorities.authority import Authority
    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher
    from vmpin.domain.topology import Topology
    from vmpin.features.common.cpu_owner import CpuOwner
    from vmpin.features.common.held_cpus import HeldCpus
    from vmpin.features.common.scenario_values import ScenarioPart, ScenarioValues
    from vmpin.host.sysfs import Sysfs


#: What it adds to the end of other verbs' help.
_HELP = {"status": """\
where vmpin gives out the CPUs (allocate.mode), --explain also takes pods without a VM: the CPUs that were given, their
cost, the next best ones
""", "map": """\
where vmpin gives out the CPUs (allocate.mode: on), also groups, the spare sets of VMs, reserved CPUs, and the largest
set that would still fit
""", "verify": """\
where vmpin gives out the CPUs (allocate.mode: on), the watcher also compares the cgroup of each container that is in
no VM with what it was given
"""}


def _mode(config: Config) -> str:
    from vmpin.features.allocator.allocate_settings import settings_of

    return settings_of(config).mode


def _ledger(config: Config) -> Path:
    from vmpin.features.allocator.allocate_settings import ledger_path

    return ledger_path(config)


def _authority(config: Config, boot_id: str) -> Authority | None:
    if _mode(config) != "on":
        return None
    from vmpin.features.allocator.ledger_file import kept_assignments, ledger_authority

    # It counts until the watcher's allocator puts its own: a pass without it would take exclusive CPUs for shared
    # ones.
    return ledger_authority(kept_assignments(_ledger(config), boot_id))


def _give_back(config: Config) -> bool:
    if not _ledger(config).exists():
        return True
    from vmpin.config.timeouts import TIMEOUTS
    from vmpin.features.allocator.cri_calls import release_ledger

    return release_ledger(config, TIMEOUTS.cri_call)


def _watch(watcher: Watcher) -> WatcherPart:
    config = watcher.view.config
    mode = _mode(config)
    released = mode != "on" and _ledger(config).exists()
    if mode == "off" and not released:
        return _OFF
    from vmpin.features.allocator.watcher_part import release_task, watcher_part

    part = _OFF if mode == "off" else watcher_part(watcher.reconciler, lambda: watcher.nri, watcher.timeouts.cri_call)
    if not released:
        return part
    return part._replace(tasks={**part.tasks, "release": release_task(config, watcher.timeouts.cri_call)})


def _refuse(request: object, sandbox: object) -> NoReturn:
    from vmpin.errors import WatcherError
    from vmpin.features.allocator.allocate_settings import OFF

    raise WatcherError("vmpin gives out no CPUs", OFF)


_OFF = WatcherPart(requests={"allocations": SocketRequest(answer=_refuse), "set": SocketRequest(answer=_refuse)})


def _held_cpus(config: Config) -> HeldCpus | None:
    report = _report(config)
    if report is None:
        return None
    from vmpin.features.allocator.ledger_holders import held_cpus

    return held_cpus(report)


def _cpu_owners(config: Config) -> Sequence[CpuOwner]:
    report = _report(config)
    if report is None:
        return ()
    from vmpin.features.allocator.ledger_holders import ledger_owners

    return ledger_owners(report)


def _report(config: Config) -> Document | None:
    if _mode(config) != "on":
        return None
    from vmpin.features.allocator.verbs.alloc import ledger_report

    return ledger_report(config)


def _verify(config: Config, args: Namespace, sandbox: str | None, namespace: str) -> Comparison | None:
    if _mode(config) != "on":
        return None
    from vmpin.features.allocator.verbs.alloc import compared

    return compared(config, sandbox, namespace)


def _explained_pods(config: Config) -> ExplainedPods | None:
    if _mode(config) == "off":
        return None
    from vmpin.features.allocator.verbs.alloc import explained_pods

    return explained_pods(config)


def _read_scenario(values: ScenarioValues, top: Mapping[str, object], topology: Topology) -> ScenarioPart:
    from vmpin.features.allocator.allocate_settings import scenario_options
    from vmpin.features.allocator.scenario_allocation import AllocationPart
    from vmpin.features.allocator.scenario_events import read_scenario

    return AllocationPart(topology, scenario_options(values, top.get("allocate"), topology.all_cpus),
                          read_scenario(values, top, topology.all_cpus))


def _topology(sysfs: Sysfs) -> Topology:
    from vmpin.features.allocator.allocator_topology import allocator_topology

    return allocator_topology(sysfs)


def _options(verb: str, parser: ArgumentParser) -> None:
    if verb in _HELP:
        parser.epilog = f"{parser.epilog}\n{_HELP[verb]}"


def _watched_annotations(config: Config) -> Callable[[str], bool] | None:
    from vmpin.features.allocator.allocate_settings import settings_of

    if not settings_of(config).live_annotations:
        return None
    from vmpin.features.allocator.texts.annotations import asks

    return asks


_SCENARIO_HELP = """\
a scenario where vmpin gives out the CPUs (`vmpin help allocation`), instead of shared_pool and sandboxes:
  allocate: {reserved: "0"}
  pods:
    - pod: shop/web
      containers: [{container: web, cpus: 2, policy: exclusive}]
  events:
    - create: {pod: shop/db, container: main, cpus: 4, policy: exclusive}
"""
_SCENARIO = ScenarioKeys(help=_SCENARIO_HELP, names=("allocate", "pods", "events"), read=_read_scenario,
                         topology=_topology)
FEATURE = Feature(name="allocator", sections={"allocate": "allocate_settings.AllocateSettings"}, fixed=("allocate",),
                  authority=_authority, files=("ledger.json",), give_back=_give_back, watch=_watch,
                  verbs={"alloc": "verbs.alloc"},
                  lists_verbs=lambda config: _mode(config) != "off", options=_options, scenario=_SCENARIO,
                  held_cpus=_held_cpus, cpu_owners=_cpu_owners, verify=_verify, explained_pods=_explained_pods,
                  watched_annotations=_watched_annotations, checks="allocation_checks.CHECKS")
