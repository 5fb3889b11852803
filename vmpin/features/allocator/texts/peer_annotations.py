"""The annotations of peers in vmpin's terms: Crane, nri-plugins and CMK (`allocate.honour`).

Keys, values and precedence are those of the peers' code: crane pkg/ensurance/cm/cpumanager, crane-scheduler
pkg/plugins/noderesourcetopology, nri-plugins pkg/resmgr/cache and cmd/plugins, CMK intel/webhook.py. A value that the
peer ignores is ignored here, with a note for the log: the pod starts as it did there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vmpin.bounded import load_json, parse_wholes
from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.features.allocator.grants.allocation_options import HonouredKeys
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuKind, CpuPolicy, CpuWish, SmtUse
from vmpin.features.allocator.texts.annotation_values import AnnotatedWish, group_name, scoped, shown

_CRANE = "topology.crane.io"
_CRANE_POLICIES = {"none": CpuPolicy.NONE, "exclusive": CpuPolicy.EXCLUSIVE, "numa": CpuPolicy.NUMA,
                   "immovable": CpuPolicy.FIXED}
_NRI_PLUGINS = "resource-policy.nri.io"
#: The balloon types that the balloons policy adds by itself.
_BUILT_IN_BALLOONS = {"reserved": CpuPolicy.INFRA, "default": CpuPolicy.NONE}
_CMK = "cmk.intel.com/mutate"
_CMK_YES = ("true", "True", "1")
#: What Go's strconv.ParseBool accepts.
_BOOLS = {**dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
          **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)}
_CRANE_KEYS = ("cpu-policy", "topology-awareness", "topology-result", "exclude-reserved-cpus")
#: The keys of the whole pod.
POD_KEYS = (*(f"{_CRANE}/{short}" for short in _CRANE_KEYS), _CMK)
#: Those that count in NRI's effective form.
EFFECTIVE_KEYS = tuple(f"{short}.{_NRI_PLUGINS}" for short in (
    "balloon.balloons", "prefer-shared-cpus", "prefer-reserved-cpus", "require-isolated-cpus", "prefer-isolated-cpus",
    "hide-hyperthreads", "cpu.preserve"))


def _crane(annotations: Mapping[str, str], _container: str) -> AnnotatedWish | None:
    """Crane's keys are those of the whole pod. Its scheduler's result is a list of zones, of which the nodes count:
    the CPUs come from there where they are free. Its policy numa is without the reserved CPUs."""
    keys = {short: (f"{_CRANE}/{short}", annotations[f"{_CRANE}/{short}"])
            for short in _CRANE_KEYS if f"{_CRANE}/{short}" in annotations}
    if not keys:
        return None
    wish, notes = CpuWish(), list[str]()
    if "cpu-policy" in keys:
        key, value = keys["cpu-policy"]
        if value in _CRANE_POLICIES:
            wish = wish._replace(policy=_CRANE_POLICIES[value], exclude_reserved=value == "numa")
        else:
            notes.append(_ignored(key, value, f"Crane has {', '.join(_CRANE_POLICIES)}"))
    if "topology-awareness" in keys and _bool(*keys["topology-awareness"], notes):
        wish = wish._replace(align=Alignment.NODE)
    if keys.get("exclude-reserved-cpus", ("", ""))[1] == "true":
        wish = wish._replace(exclude_reserved=True)
    if "topology-result" in keys and (nodes := _crane_nodes(*keys["topology-result"], notes)):
        wish = wish._replace(near=f"nodes:{nodes}")
    return AnnotatedWish(wish, notes=tuple(notes))


def _crane_nodes(key: str, value: str, notes: list[str]) -> CpuSet:
    """The NUMA nodes of those zones that have CPUs: [{"name": "node0", "type": "Node", "resources": {"capacity":
    {"cpu": "2"}}}, …]."""
    try:
        names = [zone["name"] for zone in load_json(value)
                 if zone.get("type") == "Node" and ((zone.get("resources") or {}).get("capacity") or {}).get("cpu")]
        numbers = parse_wholes((name.removeprefix("node") for name in names), MAX_CPU, MAX_CPU)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        notes.append(_ignored(key, value, "it is no JSON list of zones"))
        return CpuSet()
    if numbers is None:
        notes.append(_ignored(key, value, "a zone of type Node is named as its NUMA node: node0"))
        return CpuSet()
    return CpuSet(numbers)


def _nri_plugins(annotations: Mapping[str, str], container: str) -> AnnotatedWish | None:
    """cpu.preserve comes first, then the reserved CPUs, the pool, isolated CPUs, and the balloon. A balloon that no
    group can be named as is an error, as an unknown balloon is there."""
    notes: list[str] = []

    def annotation(short: str) -> tuple[int, str, str] | None:
        return scoped(annotations, f"{short}.{_NRI_PLUGINS}", container)

    def on(short: str) -> bool:
        entry = annotation(short)
        return entry is not None and bool(_bool(*entry[1:], notes))

    # Of the two keys for isolated CPUs that for fewer containers counts, and require where both are for the same.
    isolated = min(((entry[0], order, short) for order, short in enumerate(("require-isolated-cpus",
                    "prefer-isolated-cpus")) if (entry := annotation(short)) is not None), default=None)
    wish, preferred = CpuWish(), False
    if on("prefer-reserved-cpus"):
        wish = wish._replace(policy=CpuPolicy.INFRA)
    elif on("prefer-shared-cpus"):
        wish = wish._replace(policy=CpuPolicy.NONE)
    elif isolated is not None and on(isolated[2]):
        wish = wish._replace(policy=CpuPolicy.EXCLUSIVE, kind=CpuKind.ISOLATED)
        preferred = isolated[2] == "prefer-isolated-cpus"
    elif (balloon := annotation("balloon.balloons")) is not None:
        _, key, name = balloon
        wish = (wish._replace(policy=_BUILT_IN_BALLOONS[name]) if name in _BUILT_IN_BALLOONS else
                wish._replace(policy=CpuPolicy.GROUP, group=group_name(key, name, name)))
    if on("hide-hyperthreads"):
        wish = wish._replace(smt=SmtUse.SPREAD)
    preserved = annotation("cpu.preserve")
    if preserved is not None and preserved[2] == "true":
        return AnnotatedWish(wish, left_alone=True, notes=tuple(notes))
    second = wish._replace(kind=CpuKind.ANY) if preferred else None
    return None if wish == CpuWish() and not notes else AnnotatedWish(wish, notes=tuple(notes), second=second)


def _cmk(annotations: Mapping[str, str], _container: str) -> AnnotatedWish | None:
    """CMK's webhook changes pods with this key, and those that CMK knows by their extended resource. Its exclusive
    CPUs are whole cores."""
    if annotations.get(_CMK) not in _CMK_YES:
        return None
    return AnnotatedWish(CpuWish(policy=CpuPolicy.EXCLUSIVE, smt=SmtUse.REQUIRE))


def _bool(key: str, value: str, notes: list[str]) -> bool | None:
    if value not in _BOOLS:
        notes.append(_ignored(key, value, "it is neither true nor false"))
    return _BOOLS.get(value)


def _ignored(key: str, value: str, why: str) -> str:
    return f"{shown(key)}={shown(value)}: {why}; passed over"


#: The first that has keys on a pod counts.
PEERS: Mapping[HonouredKeys, Callable[[Mapping[str, str], str], AnnotatedWish | None]] = {
    HonouredKeys.CRANE: _crane, HonouredKeys.NRI_PLUGINS: _nri_plugins, HonouredKeys.CMK: _cmk}
