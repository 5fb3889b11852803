"""The events of a scenario: containers that come and go and change, on a node whose CPUs vmpin gives out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.scenario.scenario_values import ScenarioValues

#: Annotations' short names: `policy` is `cpu-policy.vmpin.io`.
WISHES = ("policy", "align", "smt", "kind", "near", "spare")
#: What a container that is created has, and what its pod has.
CONTAINER_KEYS = ("cpus", "limit", "cpuset", *WISHES)
POD_KEYS = ("vm", "vcpus", "overhead", "annotations")
_POD = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_CONTAINER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_AMOUNT = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))?|([0-9]{1,7})m")
MAX_EVENTS = 100_000


class ContainerCreated(NamedTuple):
    """A container is created. `request` and `limit` are thousandths of a CPU; no limit: None."""

    pod: str  #: namespace/name
    container: str
    request: int
    limit: int | None
    annotations: Mapping[str, str]  #: Of the pod.
    vm: bool
    vcpus: int  #: `default_vcpus` of Kata's configuration; VMs only.
    overhead: int  #: The whole CPUs in the overhead of its RuntimeClass; VMs only.
    cpuset: CpuSet | None  #: Set by another plugin before.


class ContainerRemoved(NamedTuple):
    """A container ends and is removed; with the last one of its pod, the pod ends."""

    pod: str
    container: str


class WishChanged(NamedTuple):
    """A running container is to have other CPUs (`vmpin set`), or another request and limit (a resize of the pod);
    only what is named changes."""

    pod: str
    container: str
    changes: Mapping[str, str]  #: By short name.
    amount: tuple[int, int | None] | None = None  #: Request and limit in thousandths of a CPU; no limit: None.


ScenarioEvent = ContainerCreated | ContainerRemoved | WishChanged


def read_events(values: ScenarioValues, given: object, valid: CpuSet,
                pods: Sequence[ContainerCreated] = ()) -> tuple[ScenarioEvent, ...]:
    """`events`, in order. :param valid: the CPUs of the topology. :param pods: containers created before them.
    :raises ConfigError: with the place."""
    events: list[ScenarioEvent] = []
    containers = {(each.pod, each.container) for each in pods}
    from_pods = set(containers)  # those that no event has removed yet
    vms = {each.pod: each.vm for each in pods}
    found = values.items(given, "events")
    if len(found) > MAX_EVENTS:
        raise values.wrong("events", f"are {len(found)}, at most {MAX_EVENTS} are read")
    for at, item in found:
        keys = values.mapping(item, at, tuple(_READERS))
        if len(keys) != 1:
            raise values.wrong(at, f"has {len(keys)} of the keys {', '.join(_READERS)}, and must have one")
        ((kind, body),) = keys.items()
        event = _READERS[kind](values, body, f"{at}.{kind}", valid)
        if isinstance(event, ContainerCreated):
            if (event.pod, event.container) in from_pods:
                raise values.wrong(f"{at}.create", f"container {event.container!r} of pod {event.pod!r} is created by "
                                   "`pods` already, and was not removed since")
            containers.add((event.pod, event.container))
            if vms.setdefault(event.pod, event.vm) != event.vm:
                raise values.wrong(f"{at}.create.vm", "is not the same for all containers of the pod")
        elif (event.pod, event.container) not in containers:
            raise values.wrong(f"{at}.{kind}", f"container {event.container!r} of pod {event.pod!r} was never created")
        elif isinstance(event, ContainerRemoved):
            from_pods.discard((event.pod, event.container))
        events.append(event)
    return tuple(events)


def _create(values: ScenarioValues, body: object, at: str, valid: CpuSet) -> ScenarioEvent:
    keys = values.mapping(body, at, ("pod", "container", *CONTAINER_KEYS, *POD_KEYS))
    pod, container = _name(values, keys, at)
    return read_container(values, keys, at, valid, container, read_pod(values, keys, at, pod))


def read_pod(values: ScenarioValues, keys: Mapping[str, object], at: str, pod: str) -> ContainerCreated:
    """Read what all containers of a pod have in common, as one without a name."""
    vm = keys.get("vm", False)
    if not isinstance(vm, bool):
        raise values.wrong(f"{at}.vm", f"{vm!r:.80} is neither true nor false")
    annotations = {_text(values, key, f"{at}.annotations"): _text(values, value, f"{at}.annotations.{key}")
                   for key, value in values.mapping(keys.get("annotations", {}), f"{at}.annotations", None).items()}
    return ContainerCreated(pod, "", 0, None, annotations, vm, values.count(keys.get("vcpus", 1), f"{at}.vcpus"),
                            values.count(keys.get("overhead", 0), f"{at}.overhead"), None)


def read_container(values: ScenarioValues, keys: Mapping[str, object], at: str, valid: CpuSet, container: str,
                   pod: ContainerCreated) -> ContainerCreated:
    """A container of `pod`, as read_pod has it."""
    request, limit = _amounts(values, keys, at)
    cpuset = None if keys.get("cpuset") is None else values.cpuset(keys["cpuset"], f"{at}.cpuset", valid)
    wishes = annotated(read_wishes(values, keys, at), f"container.{container}")
    return pod._replace(container=container, request=request, limit=limit, cpuset=cpuset,
                        annotations={**pod.annotations, **wishes})


def _remove(values: ScenarioValues, body: object, at: str, valid: CpuSet) -> ScenarioEvent:
    return ContainerRemoved(*_name(values, values.mapping(body, at, ("pod", "container")), at))


def _set(values: ScenarioValues, body: object, at: str, valid: CpuSet) -> ScenarioEvent:
    keys = values.mapping(body, at, ("pod", "container", "cpus", "limit", *WISHES))
    wishes = read_wishes(values, keys, at)
    if not wishes and "cpus" not in keys:
        raise values.wrong(at, f"names nothing to change (known: cpus, {', '.join(WISHES)})")
    if wishes and "cpus" in keys:
        raise values.wrong(at, f"has cpus, a resize, and {', '.join(wishes)}: those are two events")
    return WishChanged(*_name(values, keys, at), wishes, _amounts(values, keys, at) if "cpus" in keys else None)


_READERS = {"create": _create, "remove": _remove, "set": _set}


def _name(values: ScenarioValues, keys: Mapping[str, object], at: str) -> tuple[str, str]:
    return pod_name(values, keys, at), container_name(values, keys, at)


def pod_name(values: ScenarioValues, keys: Mapping[str, object], at: str) -> str:
    pod = keys.get("pod")
    if not isinstance(pod, str) or not _POD.fullmatch(pod):
        raise values.wrong(f"{at}.pod", f"{pod!r:.80} is no NAMESPACE/NAME")
    return pod


def container_name(values: ScenarioValues, keys: Mapping[str, object], at: str) -> str:
    container = keys.get("container")
    if not isinstance(container, str) or not _CONTAINER.fullmatch(container):
        raise values.wrong(f"{at}.container", f"{container!r:.80} is no name of a container")
    return container


def _amounts(values: ScenarioValues, keys: Mapping[str, object], at: str) -> tuple[int, int | None]:
    """Request and limit, which is the request unless it is there."""
    request = _amount(values, keys.get("cpus", 0), f"{at}.cpus")
    limit = request if keys.get("limit") is None else _amount(values, keys["limit"], f"{at}.limit")
    return request, limit or None


def _amount(values: ScenarioValues, value: object, at: str) -> int:
    """CPUs (2, 0.5, "500m") in thousandths."""
    match = None if isinstance(value, bool) or not isinstance(value, int | float | str) else _AMOUNT.fullmatch(
        str(value))
    if match is None:
        raise values.wrong(at, f"{value!r:.80} is no number of CPUs (2, 0.5 or 500m)")
    return int(match[3]) if match[3] else int(match[1]) * 1000 + int((match[2] or "0").ljust(3, "0"))


def read_wishes(values: ScenarioValues, keys: Mapping[str, object], at: str) -> dict[str, str]:
    """Read the WISHES that are named, as the texts of annotations: their meaning and mistakes are the allocator's."""
    return {name: _text(values, keys[name], f"{at}.{name}") for name in WISHES if name in keys}


def annotated(wishes: Mapping[str, str], whose: str) -> dict[str, str]:
    """The annotations of these wishes. :param whose: `pod` or `container.NAME`, as NRI has it."""
    return {f"cpu-{name}.vmpin.io/{whose}": text for name, text in wishes.items()}


def _text(values: ScenarioValues, value: object, at: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise values.wrong(at, f"{value!r:.80} is no text")
    return str(value)
