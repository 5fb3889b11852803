"""What is withdrawn of all nodes: in pages, and whether or not every reporter has ended."""

from __future__ import annotations

from typing import Any, cast

import pytest

from vmpin.config import loading
from vmpin.kube.api_request import ApiRequest
from vmpin.reporter import withdrawal
from vmpin.reporter.api_server import ApiServer
from vmpin.reporter.withdrawal import withdraw_everywhere

CONDITION = {"type": "vmpin.io/CPUsPinned", "status": "True"}


class OneServer:
    """With some pods that have a condition, and a DaemonSet whose pods never end."""

    def __init__(self, pods: int) -> None:
        self.pods = pods
        self.changed: list[str] = []

    def get(self, path: str) -> Any:
        return self.send(ApiRequest("GET", path))

    def send(self, request: ApiRequest) -> Any:
        query = dict(request.query)
        if request.method != "GET":
            self.changed.append(str(request))
            return {}
        if "/daemonsets/" in request.path:
            return {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
        if request.path != "/api/v1/pods":
            return {"items": [], "metadata": {}}
        first, most = int(query.get("continue", 0)), int(query["limit"])
        items = [{"metadata": {"namespace": "default", "name": f"p{number}", "uid": f"u{number}"},
                  "status": {"conditions": [CONDITION]}} for number in range(first, min(first + most, self.pods))]
        more = {"continue": str(first + most)} if first + most < self.pods else {}
        return {"items": items, "metadata": more}


def test_a_reporter_that_does_not_end_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As on a node that is down: the DaemonSet's deletion then lasts as long."""
    server = OneServer(2 * withdrawal.PAGE + 1)
    keys = loading.load(None, {}, {"kubernetes.daemonset": "vmpin/vmpin-reporter"}).kubernetes
    assert withdraw_everywhere(cast(ApiServer, server), keys, within=0.0) == server.pods
    assert server.changed[0] == "DELETE /apis/apps/v1/namespaces/vmpin/daemonsets/vmpin-reporter"
    assert len([each for each in server.changed if each.endswith("/status")]) == server.pods
    assert "have not all ended" in caplog.text
