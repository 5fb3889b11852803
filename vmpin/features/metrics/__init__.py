"""Metrics and probes over HTTP (docs/metrics.md): what is counted, as families of Prometheus, and the server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmpin.feature import Feature, WatcherPart

if TYPE_CHECKING:
    from pathlib import Path

    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher


def _sockets(config: Config) -> Iterable[Path]:
    address = config.of_features["metrics"].address
    return () if address is None or address.path is None else (address.path,)


def _watch(watcher: Watcher) -> WatcherPart | None:
    if watcher.view.config.of_features["metrics"].address is None:
        return None
    from vmpin.features.metrics.exporter import Exporter

    return WatcherPart(listening={"metrics": Exporter(watcher).run})


FEATURE = Feature(name="metrics", sections={"metrics": "metrics_settings.MetricsSettings"}, fixed=("metrics.address",),
                  sockets=_sockets, watch=_watch)
