"""Objects for the tests of the API server."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
PINNED = "vmpin.io/CPUsPinned"
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """One that no other test has."""
    return f"t{next(_numbers)}"


def pod(name: str, node: str = "", **spec: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "image": "none"}], "nodeName": node, **spec}}


def condition(uid: str, status: str, kind: str = PINNED) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": uid},
            "status": {"conditions": [{"type": kind, "status": status, "reason": "Pinned"}]}}
