"""The file of the readiness probe: there while the node and its pods are reached, and not before."""

from __future__ import annotations

from pathlib import Path

from vmpin.features.cluster.reporter.api_server import ApiLink


def test_the_file_is_there_while_everything_is_reached(tmp_path: Path) -> None:
    ready, changes = tmp_path / "ready", []
    ready.touch()  # of an earlier process of this pod
    link = ApiLink(ready, lambda: changes.append(link.trouble))
    assert not ready.exists()
    link.reached("node")
    assert not ready.exists()
    link.reached("pods")
    assert ready.exists()
    link.failed("pods", "HTTP status 401")
    link.failed("pods", "HTTP status 401")
    assert not ready.exists()
    link.reached("node")
    assert not ready.exists()
    link.reached("pods")
    assert ready.exists()
    assert changes == ["HTTP status 401", ""], "before it is asked nothing is wrong"


def test_a_file_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    link = ApiLink(tmp_path / "missing" / "ready", lambda: None)
    link.reached("node")
    link.reached("pods")
    assert link.trouble == ""
