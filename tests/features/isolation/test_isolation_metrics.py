"""What is exported of isolation."""

from __future__ import annotations

from pathlib import Path

from metered import metered

from vmpin.feature import WatcherPart
from vmpin.features.isolation.isolation_metrics import foreign_families

BY_CPU, BY_SANDBOX = ("vmpin_exclusive_cpu_foreign_seconds_total",
                      "vmpin_sandbox_exclusive_cpu_foreign_seconds_total")


def test_foreign_time_is_exported_by_cpu_and_where_asked_for_by_sandbox(tmp_path: Path) -> None:
    with metered(tmp_path, metrics_per_sandbox="true") as node:
        node.fill()
        assert node.values(BY_CPU) == {(str(node.first.first),): 1.5}
        # Also of pods without a VM; of one that has ended meanwhile none.
        assert node.values(BY_SANDBOX) == {(str(node.first.first), "tests", "shop", node.id): 0.5}


def test_without_samples_it_has_no_values(tmp_path: Path) -> None:
    with metered(tmp_path) as node:
        node.parts = {"isolation": WatcherPart(metrics=lambda scrape: foreign_families(scrape, None))}
        assert f"# TYPE {BY_CPU} counter" in node.scrape()
        assert node.values(BY_CPU) == {}
        assert BY_SANDBOX not in node.scrape()
