"""The reporter's process: which threads it has."""

from __future__ import annotations

import pytest

from vmpin.config import loading
from vmpin.features.cluster.reporter.service import Reporter


@pytest.mark.parametrize(("live", "threads"), [
    ("true", {"vmpin-follow", "vmpin-pods", "vmpin-handover"}), ("false", {"vmpin-follow", "vmpin-pods"})])
def test_annotations_that_ask_for_cpus_are_kept_only_if_they_are_followed(live: str, threads: set[str]) -> None:
    reporter = Reporter(loading.load(None, {}, {"kubernetes.node": "node-a", "allocate.live_annotations": live}))
    # No public way in: without an API server nothing of a reporter runs that would show it.
    assert reporter._threads.keys() == threads
    assert (reporter._watch._is_watched is not None) == (live == "true")
