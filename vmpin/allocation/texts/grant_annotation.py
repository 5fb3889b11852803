"""The annotation in which a container carries its grant, so that a lost ledger can be rebuilt from the runtime's list.

A pod's author may write this annotation, too. So it gives no CPUs: it says how to read the cpuset that the runtime
lists, which no pod can write, and only for what the container could have been given at its creation (synchronizing).
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from vmpin.allocation.cpu_request import CpuPolicy, CpuWish
from vmpin.allocation.ledger import Grant
from vmpin.allocation.texts.wish_data import wish_data, wish_of
from vmpin.allocation.texts.wish_values import AnnotationError
from vmpin.cpuset import CpuSet

GRANT_KEY: Final = "grant.vmpin.io"
_VERSION = 1
_LONGEST = 4096


class AnnotatedGrant(NamedTuple):
    """What the annotation has of a grant."""

    wish: CpuWish
    policy: CpuPolicy
    cpus: CpuSet
    spare: CpuSet
    own_spare: bool
    since_ns: int
    left_alone: bool


def annotation_of(grant: Grant) -> str:
    data: dict[str, object] = {"v": _VERSION, "policy": grant.policy, "since": grant.since_ns}
    if grant.cpus:
        data["cpus"] = str(grant.cpus)
    if grant.spare:
        data["spare"] = str(grant.spare)
    data |= {key: True for key, value in (("own", grant.own_spare), ("alone", grant.left_alone)) if value}
    wish = wish_data(grant.wish)
    return json.dumps({**data, "wish": wish} if wish else data, separators=(",", ":"))


def read_annotation(text: str) -> AnnotatedGrant:
    """:raises AnnotationError: for what `annotation_of` never makes."""
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it is {len(text)} characters long")
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("v") != _VERSION:
            raise ValueError(f"it is no object with \"v\":{_VERSION}")
        known = {"v", "policy", "since", "cpus", "spare", "own", "alone", "wish"}
        if data.keys() - known:
            raise ValueError(f"it has the unknown key {min(data.keys() - known)!r:.80}")
        since = data.get("since", 0)
        if type(since) is not int or not 0 <= since < 1 << 63:
            raise ValueError("\"since\" is no time in nanoseconds")
        texts = [data.get(key, "") for key in ("cpus", "spare")]
        if not all(isinstance(one, str) for one in texts):
            raise ValueError("\"cpus\" and \"spare\" are CPU lists")
        cpus, spare = map(CpuSet.parse, texts)
        return AnnotatedGrant(wish_of(data.get("wish", {})), CpuPolicy(str(data.get("policy"))), cpus, spare,
                              data.get("own") is True, since, data.get("alone") is True)
    except (ValueError, RecursionError) as err:
        raise AnnotationError(GRANT_KEY, text, f"{err}" or "it is nested too deep") from None
