"""Gives runc containers back the CPUs that they were given, when their cgroups have others (`runc.repair`).

runc_drift decides which containers, runc_repair_watcher_part has the runtime write their cpusets.
docs/runc-repair.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vmpin.feature import Feature, WatcherPart

if TYPE_CHECKING:
    from vmpin.daemon.watcher import Watcher
    from vmpin.features.common.finding import Check


def _sections() -> Mapping[str, type[Any]]:
    from vmpin.features.runc_repair.runc_settings import RuncSettings

    return {"runc": RuncSettings}


def _watch(watcher: Watcher) -> WatcherPart | None:
    if not watcher.view.config.of_features["runc"].repair:
        return None
    from vmpin.features.runc_repair.runc_repair_watcher_part import RuncRepair

    return RuncRepair(watcher.view, watcher.node_state.read_cgroups,
                      lambda: None if watcher.nri is None else watcher.nri.plugin, watcher.timeouts.cri_call).part()


def _checks() -> Sequence[Check]:
    from vmpin.features.common.finding import Check
    from vmpin.features.runc_repair.runc_repair_check import runc_repair

    return [Check("runc-repair", "whether another program writes the cpusets that vmpin restores", runc_repair)]


FEATURE = Feature(name="runc_repair", sections=_sections, fixed=("runc",), watch=_watch, checks=_checks)
