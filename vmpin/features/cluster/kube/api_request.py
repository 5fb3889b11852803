"""A request to the API server as a value, the bounds of its answer, and when one that was refused is tried again.

The answer may come from no API server: from a proxy, a wrong address, a server that was taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vmpin.bounded import load_json
from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.kube.identifiers import MANAGER, valid_name
from vmpin.named_tuple import NamedTuple

#: Values in one answer: a page of 500 objects with 8,000 values each. A pod has some 300.
MAX_VALUES = 4 << 20
#: Bytes of an answer that refuses: a Status of some hundred bytes.
MAX_REFUSAL = 1 << 20
#: The first pause, doubled each time, and the longest (seconds).
FIRST, LONGEST = 2.0, 300.0
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


def node_path(node: str) -> str:
    return f"/api/v1/nodes/{checked(node)}"


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{checked(namespace)}/pods/{checked(name)}"


def checked(name: str) -> str:
    """Return the name of an object. :raises ValueError: for what is no name, as it could lead to another path."""
    if not valid_name(name):
        raise ValueError(f"{name[:80]!r} is no name of an object")
    return name


def parse_answer(raw: bytes) -> dict[str, Any]:
    """The object in an answer, or in a line of a watch. :raises ValueError: it is no object, or beyond the bounds."""
    answer = load_json(raw, MAX_VALUES)
    if not isinstance(answer, dict):
        raise ValueError("it is no object")
    return answer


def parse_page(page: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str, str]:
    """A page of a list: its objects, the token for the next page ("" after the last), and the list's version.
    :raises ValueError: it is no such page."""
    items, meta = page.get("items"), page.get("metadata")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items) or not isinstance(meta, dict):
        raise ValueError("it is no list of objects")
    token, version = meta.get("continue") or "", meta.get("resourceVersion")
    if not isinstance(token, str) or not isinstance(version, str):
        raise ValueError("it is a list without a version")
    return items, token, version


def items_of_pages(path: str, read: Callable[[tuple[tuple[str, str], ...]], Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list, page by page. :param read: returns a page; is called with the token's parameter.
    :raises ClusterError: an answer is no list."""
    token = ""
    while True:
        page = read((("continue", token),) if token else ())
        try:
            yield from page["items"]
            token = page["metadata"].get("continue") or ""
        except (KeyError, TypeError, AttributeError) as err:
            raise ClusterError(f"GET {path}: the answer is no list") from err
        if not token:
            return


def refusal(body: bytes | None) -> str:
    """The message of a refusal (a Status); "" without one. :param body: None where it is longer than MAX_REFUSAL."""
    try:
        message = parse_answer(body or b"").get("message")
    except ValueError:
        return ""
    return message if isinstance(message, str) else ""


class Refusals:
    """The refusals of one kind of request (forbidden, or its resource is missing), one after the other, in `count`.
    The first pause is short: an API server that has just been started forbids everything until it has read its
    roles."""

    def __init__(self) -> None:
        self.count = 0

    def pause(self) -> float:
        """Count a refusal. :returns: seconds until the next try."""
        self.count += 1
        return min(FIRST * 2.0 ** min(self.count - 1, 10), LONGEST)

    @property
    def lasting(self) -> bool:
        return FIRST * 2.0 ** min(self.count, 10) > LONGEST
