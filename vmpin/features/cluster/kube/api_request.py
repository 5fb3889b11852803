"""A request to the API server as a value: what it changes, and how it is logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vmpin.features.cluster.kube.identifiers import MANAGER, valid_name

#: JSON is YAML, so what is applied is sent as JSON.
APPLY, JSON_PATCH, MERGE_PATCH = "application/apply-patch+yaml", "application/json-patch+json", (
    "application/merge-patch+json")
JSON = "application/json"


class ApiRequest(NamedTuple):
    """`path` begins with a slash and holds names that `valid_name` accepts; `body` is plain JSON, None without any."""

    method: str
    path: str
    body: object = None
    content_type: str = JSON
    query: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def apply(path: str, body: dict[str, object], force: bool = True) -> ApiRequest:
    """A server-side apply. :param force: False where another manager may have set such a field: then it is refused."""
    return ApiRequest("PATCH", path, body, APPLY, (("fieldManager", MANAGER), ("force", "true" if force else "false")))


def annotated(path: str, annotations: Mapping[str, str | None], uid: str = "") -> ApiRequest:
    """A patch of annotations alone, None removes one. It never creates an object.
    :param uid: the object's: another one of its name is not written to (409). "" for any."""
    meta = {**({"uid": uid} if uid else {}), "annotations": dict(annotations)}
    return ApiRequest("PATCH", path, {"metadata": meta}, MERGE_PATCH, (("fieldManager", MANAGER),))


def node_path(node: str) -> str:
    return f"/api/v1/nodes/{checked(node)}"


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{checked(namespace)}/pods/{checked(name)}"


def checked(name: str) -> str:
    """Return the name of an object. :raises ValueError: for what is no name, as it could lead to another path."""
    if not valid_name(name):
        raise ValueError(f"{name[:80]!r} is no name of an object")
    return name
