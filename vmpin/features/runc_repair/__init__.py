"""Gives runc containers back the CPUs that they were given, when their cgroups have others (`runc.repair`).

runc_drift decides which containers, runc_repair_watcher_part has the runtime write their cpusets.
docs/runc-repair.md describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.feature import Feature, WatcherPart

if TYPE_CHECKING:
    from vmpin.daemon.watcher import Watcher


def _watch(watcher: Watcher) -> WatcherPart | None:
    if not watcher.view.config.of_features["runc"].repair:
        return None
    from vmpin.features.runc_repair.runc_repair_watcher_part import RuncRepair

    return RuncRepair(watcher.view, watcher.node_state.read_cgroups,
                      lambda: None if watcher.nri is None else watcher.nri.plugin, watcher.timeouts.cri_call).part()


FEATURE = Feature(name="runc_repair", sections={"runc": "runc_settings.RuncSettings"}, fixed=("runc",), watch=_watch,
                  checks="runc_repair_check.CHECKS")
