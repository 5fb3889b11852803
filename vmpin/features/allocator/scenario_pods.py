"""A scenario's pods: what is on the node before its events, each container as an event that creates it."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.features.allocator.scenario_events import (
    CONTAINER_KEYS,
    MAX_EVENTS,
    POD_KEYS,
    WISHES,
    ContainerCreated,
    annotated,
    container_name,
    pod_name,
    read_container,
    read_pod,
    read_wishes,
)
from vmpin.scenario.scenario_values import ScenarioValues

#: Keys of `sandboxes`, whose CPUs another program gives out, and what stands here in their place.
_OF_SANDBOXES = {"id": "container: NAME", "exclusive": "policy: exclusive", "state": "nothing: its containers run"}


def read_pods(values: ScenarioValues, given: object, valid: CpuSet) -> tuple[ContainerCreated, ...]:
    """`pods`: the creation of each container, in order. :param valid: the CPUs of the topology.
    :raises ConfigError: with the place."""
    created: dict[tuple[str, str], ContainerCreated] = {}
    pods: set[str] = set()
    for at, item in values.items(given, "pods"):
        keys = values.mapping(item, at, ("pod", *POD_KEYS, *WISHES, "containers"))
        name = pod_name(values, keys, at)
        if name in pods:
            raise values.wrong(f"{at}.pod", f"{name!r:.80} is there twice")
        pods.add(name)
        pod = read_pod(values, keys, at, name)
        pod = pod._replace(annotations={**pod.annotations, **annotated(read_wishes(values, keys, at), "pod")})
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
    found = values.mapping(entry, at, None)
    for key in found:
        if key in POD_KEYS:
            raise values.wrong(f"{at}.{key}", "is the pod's: give it beside `containers`")
        if key in _OF_SANDBOXES:
            raise values.wrong(f"{at}.{key}", f"is a key of `sandboxes`; in `pods` give {_OF_SANDBOXES[str(key)]}")
    keys = values.mapping(found, at, ("container", *CONTAINER_KEYS))
    return read_container(values, keys, at, valid, container_name(values, keys, at), pod)
