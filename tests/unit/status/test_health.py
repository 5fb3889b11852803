"""Alive and ready."""

from __future__ import annotations

from vmpin.status import health


def test_a_watcher_that_looks_at_everything_in_time_is_alive() -> None:
    assert health.alive(0.0, 10.0).up
    assert health.alive(60.0, 0.1).up  # a source that failed is waited for
    assert not health.alive(60.1, 0.1).up
    assert health.alive(300.0, 100.0).up
    assert not health.alive(300.1, 100.0).up
