"""A scenario's pods and events: containers that are on a node, and that come and go and change, where vmpin gives out
the CPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vmpin.cpuset import CpuSet
from vmpin.features.allocator.grants.cpu_request import WISH_KEYS
from vmpin.features.common.scenario_values import ScenarioValues
from vmpin.named_tuple import NamedTuple

#: What a container that is created has, and what its pod has.
CONTAINER_KEYS = ("cpus", "limit", "cpuset", *WISH_KEYS)
POD_KEYS = ("vm", "vcpus", "overhead", "annotations")
#: Keys of `sandboxes`, whose CPUs another program gives out, and what stands in `pods` in their place.
_OF_SANDBOXES = {"id": "container: NAME", "exclusive": "policy: exclusive", "state": "nothing: its containers run"}
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
    """A running container is to have other CPUs (`vmpin alloc set`), or another request and limit (a resize of the
    pod); only what is named changes."""

    pod: str
    container: str
    changes: Mapping[str, str]  #: By short name.
    amount: tuple[int, int | None] | None = None  #: Request and limit in thousandths of a CPU; no limit: None.


ScenarioEvent = ContainerCreated | ContainerRemoved | WishChanged


def read_scenario(values: ScenarioValues, top: Mapping[str, object], valid: CpuSet) -> tuple[ScenarioEvent, ...]:
    """The events that create the containers of `pods`, and those of `events`. :param top: the scenario's keys.
    :param valid: the CPUs of the topology. :raises ConfigError: with the place."""
    for key in ("sandboxes", "shared_pool"):
        if "pods" in top and top.get(key) is not None:
            raise values.wrong(key, "cannot stand beside `pods`: there another program has given the CPUs out, here "
                               "`allocate` does")
    pods = read_pods(values, top.get("pods"), valid)
    return (*pods, *read_events(values, top.get("events"), valid, pods))


def read_pods(values: ScenarioValues, given: object, valid: CpuSet) -> tuple[ContainerCreated, ...]:
    """`pods`: the creation of each container, in order. :param valid: the CPUs of the topology."""
    created: dict[tuple[str, str], ContainerCreated] = {}
    pods: set[str] = set()
    for at, item in values.items(given, "pods"):
        keys = values.mapping(item, at, ("pod", *POD_KEYS, *WISH_KEYS, "containers"))
        name = _pod_name(values, keys, at)
        if name in pods:
            raise values.wrong(f"{at}.pod", f"{name!r:.80} is there twice")
        pods.add(name)
        pod = _read_pod(values, keys, at, name)
        pod = pod._replace(annotations={**pod.annotations, **_annotations(_wishes(values, keys, at), "pod")})
        containers = values.items(keys.get("containers"), f"{at}.containers")
        if not containers:
            raise values.wrong(f"{at}.containers", "names no container")
        for place, entry in containers:
            container = _container(values, entry, place, valid, pod)
            if (name, container.container) in created:
                raise values.wrong(f"{place}.container", f"{container.container!r} is there twice")
            created[name, container.container] = container
    if len(created) > MAX_EVENTS:
        raise values.wrong("pods", f"have {len(created)} containers, at most {MAX_EVENTS} are read")
    return tuple(created.values())


def _container(values: ScenarioValues, entry: object, at: str, valid: CpuSet,
               pod: ContainerCreated) -> ContainerCreated:
    keys = values.mapping(entry, at, None)
    for key in keys:
        if key in POD_KEYS:
            raise values.wrong(f"{at}.{key}", "is the pod's: give it beside `containers`")
        if key in _OF_SANDBOXES:
            raise values.wrong(f"{at}.{key}", f"is a key of `sandboxes`; in `pods` give {_OF_SANDBOXES[str(key)]}")
    keys = values.mapping(keys, at, ("container", *CONTAINER_KEYS))
    return _read_container(values, keys, at, valid, _container_name(values, keys, at), pod)


def read_events(values: ScenarioValues, given: object, valid: CpuSet,
                pods: Sequence[ContainerCreated] = ()) -> tuple[ScenarioEvent, ...]:
    """`events`, in order. :param pods: the containers created before them."""
    events: list[ScenarioEvent] = []
    containers = {(created.pod, created.container) for created in pods}
    from_pods = set(containers)  # those that no event has removed yet
    vms = {created.pod: created.vm for created in pods}
    items = values.items(given, "events")
    if len(items) > MAX_EVENTS:
        raise values.wrong("events", f"are {len(items)}, at most {MAX_EVENTS} are read")
    for at, item in items:
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
    return _read_container(values, keys, at, valid, container, _read_pod(values, keys, at, pod))


def _read_pod(values: ScenarioValues, keys: Mapping[str, object], at: str, pod: str) -> ContainerCreated:
    """Read what all containers of a pod have in common, as one without a name."""
    vm = keys.get("vm", False)
    if not isinstance(vm, bool):
        raise values.wrong(f"{at}.vm", f"{vm!r:.80} is neither true nor false")
    annotations = {_text(values, key, f"{at}.annotations"): _text(values, value, f"{at}.annotations.{key}")
                   for key, value in values.mapping(keys.get("annotations", {}), f"{at}.annotations", None).items()}
    return ContainerCreated(pod, "", 0, None, annotations, vm, values.count(keys.get("vcpus", 1), f"{at}.vcpus"),
                            values.count(keys.get("overhead", 0), f"{at}.overhead"), None)


def _read_container(values: ScenarioValues, keys: Mapping[str, object], at: str, valid: CpuSet, container: str,
                    pod: ContainerCreated) -> ContainerCreated:
    """A container of `pod`, as `_read_pod` has it."""
    request, limit = _amounts(values, keys, at)
    cpuset = None if keys.get("cpuset") is None else values.cpuset(keys["cpuset"], f"{at}.cpuset", valid)
    wishes = _annotations(_wishes(values, keys, at), f"container.{container}")
    return pod._replace(container=container, request=request, limit=limit, cpuset=cpuset,
                        annotations={**pod.annotations, **wishes})


def _remove(values: ScenarioValues, body: object, at: str, valid: CpuSet) -> ScenarioEvent:
    return ContainerRemoved(*_name(values, values.mapping(body, at, ("pod", "container")), at))


def _set(values: ScenarioValues, body: object, at: str, valid: CpuSet) -> ScenarioEvent:
    keys = values.mapping(body, at, ("pod", "container", "cpus", "limit", *WISH_KEYS))
    wishes = _wishes(values, keys, at)
    if not wishes and "cpus" not in keys:
        raise values.wrong(at, f"names nothing to change (known: cpus, {', '.join(WISH_KEYS)})")
    if wishes and "cpus" in keys:
        raise values.wrong(at, f"has cpus, a resize, and {', '.join(wishes)}: those are two events")
    return WishChanged(*_name(values, keys, at), wishes, _amounts(values, keys, at) if "cpus" in keys else None)


_READERS = {"create": _create, "remove": _remove, "set": _set}


def _name(values: ScenarioValues, keys: Mapping[str, object], at: str) -> tuple[str, str]:
    return _pod_name(values, keys, at), _container_name(values, keys, at)


def _pod_name(values: ScenarioValues, keys: Mapping[str, object], at: str) -> str:
    pod = keys.get("pod")
    if not isinstance(pod, str) or not _POD.fullmatch(pod):
        raise values.wrong(f"{at}.pod", f"{pod!r:.80} is no NAMESPACE/NAME")
    return pod


def _container_name(values: ScenarioValues, keys: Mapping[str, object], at: str) -> str:
    container = keys.get("container")
    if not isinstance(container, str) or not _CONTAINER.fullmatch(container):
        raise values.wrong(f"{at}.container", f"{container!r:.80} is no name of a container")
    return container


def _amounts(values: ScenarioValues, keys: Mapping[str, object], at: str) -> tuple[int, int | None]:
    """Request and limit; a limit that is not given is the request."""
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


def _wishes(values: ScenarioValues, keys: Mapping[str, object], at: str) -> dict[str, str]:
    """Read annotations by their short names, as texts: their meaning and mistakes are the allocator's."""
    return {name: _text(values, keys[name], f"{at}.{name}") for name in WISH_KEYS if name in keys}


def _annotations(wishes: Mapping[str, str], whose: str) -> dict[str, str]:
    """These annotations with their whole keys. :param whose: `pod` or `container.NAME`, as NRI has it."""
    return {f"cpu-{name}.vmpin.io/{whose}": text for name, text in wishes.items()}


def _text(values: ScenarioValues, value: object, at: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise values.wrong(at, f"{value!r:.80} is no text")
    return str(value)
