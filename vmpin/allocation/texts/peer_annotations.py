"""What the annotations of peers ask for, in vmpin's terms: Crane, nri-plugins and CMK (`allocate.honour`).

Their keys and values as those projects read them: gocrane/api topology/v1alpha1, nri-plugins cmd/plugins, CMK's
docs/operator.md. What stays out: keys without a counterpart, which change nothing (docs/migrate.md lists them).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from vmpin.allocation.allocation_options import HonouredKeys
from vmpin.allocation.cpu_request import Alignment, CpuKind, CpuPolicy, CpuWish, SmtUse
from vmpin.allocation.texts.wish_values import AnnotationError, effective, group_name
from vmpin.cpuset import MAX_CPU, CpuSet

_CRANE = "topology.crane.io"
_CRANE_POLICIES = {"none": CpuPolicy.NONE, "exclusive": CpuPolicy.EXCLUSIVE, "numa": CpuPolicy.NUMA,
                   "immovable": CpuPolicy.FIXED}
_NRI_PLUGINS = "resource-policy.nri.io"
_CMK = "cmk.intel.com/mutate"


class PeerWish(NamedTuple):
    wish: CpuWish
    left_alone: bool = False


def _crane(annotations: Mapping[str, str], _container: str) -> PeerWish | None:
    """Crane's keys are those of the whole pod. Its scheduler's result is a list of zones, of which the nodes count:
    the CPUs come from there where they are free."""
    keys = {short: (f"{_CRANE}/{short}", annotations[f"{_CRANE}/{short}"].strip())
            for short in ("cpu-policy", "topology-awareness", "topology-result", "exclude-reserved-cpus")
            if f"{_CRANE}/{short}" in annotations}
    if not keys:
        return None
    wish = CpuWish()
    if "cpu-policy" in keys:
        key, value = keys["cpu-policy"]
        if value not in _CRANE_POLICIES:
            raise AnnotationError(key, value, f"it is none of {', '.join(_CRANE_POLICIES)}")
        wish = wish._replace(policy=_CRANE_POLICIES[value])
    if "topology-awareness" in keys and _bool(*keys["topology-awareness"]):
        wish = wish._replace(align=Alignment.NODE)
    if "exclude-reserved-cpus" in keys:
        wish = wish._replace(exclude_reserved=_bool(*keys["exclude-reserved-cpus"]))
    if "topology-result" in keys and (nodes := _crane_nodes(*keys["topology-result"])):
        wish = wish._replace(near=f"nodes:{nodes}")
    return PeerWish(wish)


def _crane_nodes(key: str, value: str) -> CpuSet:
    """The NUMA nodes of its zones: [{"name": "node0", "type": "Node", "resources": {…}}, …]."""
    try:
        zones = json.loads(value)
        names = [zone["name"] for zone in zones if zone.get("type", "Node") == "Node"]
        numbers = [int(name.removeprefix("node")) for name in names if name.removeprefix("node").isdecimal()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise AnnotationError(key, value, "it is no JSON list of zones with a name and a type") from None
    if len(numbers) < len(names) or any(number > MAX_CPU for number in numbers):
        raise AnnotationError(key, value, "a zone of type Node is named as its NUMA node: node0")
    return CpuSet(numbers)


def _nri_plugins(annotations: Mapping[str, str], container: str) -> PeerWish | None:
    def given(short: str) -> tuple[str, str] | None:
        return next(effective(annotations, f"{short}.{_NRI_PLUGINS}", container), None)

    def on(short: str) -> bool:
        found = given(short)
        return found is not None and _bool(*found)

    wish = CpuWish()
    if (balloon := given("balloon.balloons")) is not None:
        wish = wish._replace(policy=CpuPolicy.GROUP, group=group_name(*balloon, balloon[1]))
    if on("prefer-shared-cpus"):
        wish = wish._replace(policy=CpuPolicy.NONE, group="")
    if on("prefer-reserved-cpus"):
        wish = wish._replace(policy=CpuPolicy.INFRA, group="")
    if on("require-isolated-cpus") or on("prefer-isolated-cpus"):
        wish = wish._replace(policy=CpuPolicy.EXCLUSIVE, group="", kind=CpuKind.ISOLATED)
    if on("hide-hyperthreads"):
        wish = wish._replace(smt=SmtUse.SPREAD)
    if on("cpu.preserve"):
        return PeerWish(wish, left_alone=True)
    return None if wish == CpuWish() else PeerWish(wish)


def _cmk(annotations: Mapping[str, str], _container: str) -> PeerWish | None:
    """CMK's webhook changes pods with this key, and those that CMK knows by their extended resource. Its exclusive
    CPUs are whole cores."""
    if _CMK not in annotations or not _bool(_CMK, annotations[_CMK].strip()):
        return None
    return PeerWish(CpuWish(policy=CpuPolicy.EXCLUSIVE, smt=SmtUse.REQUIRE))


def _bool(key: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise AnnotationError(key, value, "it is neither true nor false")
    return value.lower() == "true"


#: The first that has keys on a pod counts.
PEERS: Mapping[HonouredKeys, Callable[[Mapping[str, str], str], PeerWish | None]] = {
    HonouredKeys.CRANE: _crane, HonouredKeys.NRI_PLUGINS: _nri_plugins, HonouredKeys.CMK: _cmk}
