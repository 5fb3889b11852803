"""The list of a node's pods ends; the file of the readiness probe is there while the node and its pods are reached."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.kube.api_request import ApiRequest
from vmpin.features.cluster.reporter.api_server import MAX_ANSWER, MAX_PAGES, ApiLink, ApiServer


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


class EndlessPages(ApiServer):
    """Each page of a list names a further one."""

    requests = 0

    def _connected(self) -> tuple[Any, Any]:
        return None, SimpleNamespace(exceptions=SimpleNamespace(SSLError=OSError, HTTPError=OSError))

    def send(self, request: ApiRequest, most: int = MAX_ANSWER) -> Any:
        self.requests += 1
        assert self.requests <= MAX_PAGES
        return {"metadata": {"resourceVersion": "1", "continue": "more"}, "items": [{"kind": "Pod"}]}


def test_a_list_without_an_end_is_refused() -> None:
    with pytest.raises(ClusterError, match="GET /api/v1/pods: more than 20 pages of 500"):
        EndlessPages().pods("node")
