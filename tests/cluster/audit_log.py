"""The API server's audit log: who asked what, how it was answered, and which rights it took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: Every request but the server's own.
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
          "rules": [{"level": "None", "users": ["system:apiserver"]}, {"level": "Metadata"}]}
_NODE, _RIGHT = "authentication.kubernetes.io/node-name", "authorized/"


class Served(NamedTuple):
    """`resource` as pods/status, "" for what is none; `node` the node that the token names; user and node are empty
    for a token that is not accepted. `rights` are the verbs that RBAC decided on, and whether they are allowed."""

    user: str
    node: str
    agent: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int
    rights: Mapping[str, bool]

    @property
    def short(self) -> str:
        return f"{self.verb} {self.resource}"


def read(path: Path) -> list[Served]:
    found: dict[str, Served] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last line's end is being written
        event = json.loads(line)
        found.setdefault(event["auditID"], _served(event))  # a watch has a line at its begin, and one at its end
    return list(found.values())


def _served(event: dict[str, Any]) -> Served:
    about, user = event.get("objectRef") or {}, event.get("user") or {}
    resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
    return Served(
        user.get("username", ""), "".join((user.get("extra") or {}).get(_NODE, ())), event.get("userAgent", ""),
        event["verb"], about.get("apiGroup", ""), resource, about.get("namespace", ""), about.get("name", ""),
        event["responseStatus"]["code"],
        {key.removeprefix(_RIGHT): value == "true" for key, value in (event.get("annotations") or {}).items()
         if key.startswith(_RIGHT)})
