"""The annotation in which a container carries its grant, so that a lost ledger can be rebuilt from the runtime's list.

A pod's author may write this annotation, too. So it gives no CPUs: it shows how to read the cpuset that the runtime
lists, which no pod can write, and only for what the container could have been given at its creation (synchronizing).
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from vmpin.bounded import load_json
from vmpin.cpuset import CpuSet
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.ledger import Grant
from vmpin.features.allocator.texts.wish_data import wish_data, wish_of
from vmpin.features.allocator.texts.wish_values import AnnotationError

GRANT_KEY: Final = "grant.vmpin.io"
_VERSION = 1
_LONGEST = 4096
_LISTS = ("cpus", "spare", "near", "devices")


class AnnotatedGrant(NamedTuple):
    """What the annotation has of a grant."""

    wish: CpuWish
    policy: CpuPolicy
    cpus: CpuSet
    spare: CpuSet
    own_spare: bool
    since_ns: int
    left_alone: bool
    near: CpuSet
    devices: CpuSet


def annotation_of(grant: Grant) -> str:
    data: dict[str, object] = {"v": _VERSION, "policy": grant.policy, "since": grant.since_ns}
    data |= {key: str(found) for key in _LISTS if (found := getattr(grant, key))}
    data |= {key: True for key, value in (("own", grant.own_spare), ("alone", grant.left_alone)) if value}
    wish = wish_data(grant.wish)
    return json.dumps({**data, "wish": wish} if wish else data, separators=(",", ":"))


def read_annotation(text: str) -> AnnotatedGrant:
    """Read a grant from the text of its annotation. :raises AnnotationError: for what `annotation_of` never makes."""
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it is {len(text)} characters long")
        data = load_json(text)
        if not isinstance(data, dict) or data.get("v") != _VERSION:
            raise ValueError(f"it is no object with \"v\":{_VERSION}")
        keys = {"v", "policy", "since", *_LISTS, "own", "alone", "wish"}
        if data.keys() - keys:
            raise ValueError(f"it has the unknown key {min(data.keys() - keys)!r:.80}")
        since = data.get("since", 0)
        if type(since) is not int or not 0 <= since < 1 << 63:
            raise ValueError("\"since\" is no time in nanoseconds")
        texts = [data.get(key, "") for key in _LISTS]
        if not all(isinstance(one, str) for one in texts):
            raise ValueError("\"cpus\", \"spare\", \"near\" and \"devices\" are lists of numbers")
        cpus, spare, near, devices = map(CpuSet.parse, texts)
        return AnnotatedGrant(wish_of(data.get("wish", {})), CpuPolicy(str(data.get("policy"))), cpus, spare,
                              data.get("own") is True, since, data.get("alone") is True, near, devices)
    except (ValueError, RecursionError) as err:
        raise AnnotationError(GRANT_KEY, text, f"{err}" or "it is nested too deep") from None
