"""What is withdrawn of all nodes: in pages, and whatever is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from vmpin.config import loading
from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.kube.api_request import ApiRequest
from vmpin.features.cluster.reporter import withdrawal
from vmpin.features.cluster.reporter.api_server import ApiServer
from vmpin.features.cluster.reporter.withdrawal import SHOWN, IncompleteWithdrawal, withdraw

CONDITION = {"type": "vmpin.io/CPUsPinned", "status": "True"}


class OneServer:
    """With some pods that have a condition."""

    def __init__(self, pods: int, refuses: str = " ") -> None:
        self.pods, self.refuses = pods, refuses
        self.changed: list[str] = []

    def get(self, path: str) -> Any:
        return self.send(ApiRequest("GET", path))

    def send(self, request: ApiRequest) -> Any:
        query = dict(request.query)
        if request.method != "GET":
            if self.refuses in request.path:
                raise ClusterError(f"{request}: forbidden", 403)
            self.changed.append(str(request))
            return {}
        if request.path != "/api/v1/pods":
            return {"items": [], "metadata": {}}
        first, most = int(query.get("continue", 0)), int(query["limit"])
        items = [{"metadata": {"namespace": "default", "name": f"p{number}", "uid": f"u{number}"},
                  "status": {"conditions": [CONDITION]}} for number in range(first, min(first + most, self.pods))]
        more = {"continue": str(first + most)} if first + most < self.pods else {}
        return {"items": items, "metadata": more}


def test_pods_are_listed_in_pages() -> None:
    server = OneServer(2 * withdrawal.PAGE + 1)
    keys = loading.load(None, {}, {}).of_features["kubernetes"]
    assert withdraw(cast(ApiServer, server), keys) == server.pods
    assert len([each for each in server.changed if each.endswith("/status")]) == server.pods


def test_what_is_refused_is_named_and_holds_up_nothing_else() -> None:
    server = OneServer(SHOWN + 20, refuses="/p1")  # p1, and p10 to p19
    keys = loading.load(None, {}, {}).of_features["kubernetes"]
    with pytest.raises(IncompleteWithdrawal) as caught:
        withdraw(cast(ApiServer, server), keys)
    assert len(server.changed) == SHOWN + 20 - 11
    assert len(caught.value.failures) == 11
    text = str(caught.value)
    assert text.startswith("not withdrawn: PATCH /api/v1/namespaces/default/pods/p1/status: forbidden; ")
    assert text.endswith(f"; and {11 - SHOWN} more")
