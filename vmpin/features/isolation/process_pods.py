"""The pod or container of a process, by its sandbox, its container's id, or its pod's uid.

Pure, from the part `pods` of a status document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vmpin.named_tuple import NamedTuple

#: The kubelet's cgroup of a pod: podUID, kubepods-burstable-podUID.slice, the uid with _ for - under systemd.
_POD = re.compile(r"(?:^|[/-])pod([0-9a-f]{8}[-_][0-9a-f-_]{27}|[0-9a-f]{32})(?=[./:]|$)")


def pod_uid(cgroup: str) -> str:
    """The uid of the pod whose cgroup this is, or is below: the outermost one, as a container may make cgroups with
    any names. "" for none."""
    match = _POD.search(cgroup)
    return "" if match is None else match[1].replace("_", "-")


class ProcessPods(NamedTuple):
    """`namespace/pod` by sandbox id and by pod uid, `namespace/pod/container` by container id."""

    sandboxes: Mapping[str, str]
    uids: Mapping[str, str]
    containers: Mapping[str, str]
    pauses: frozenset[str]  #: Sandboxes' own containers, which only hold namespaces (pause).

    @classmethod
    def of(cls, pods: Iterable[Mapping[str, Any]]) -> ProcessPods:
        """Return the names in the part `pods` of a status document."""
        sandboxes, uids, containers, pauses = {}, {}, {}, set()
        for entry in pods:
            pod = entry["pod"]
            name = f"{pod['namespace']}/{pod['name']}" if pod else ""
            pauses.add(entry["sandbox"])
            if pod:
                sandboxes[entry["sandbox"]] = uids[pod["uid"]] = name
            for container in entry["containers"]:
                if container["pause"]:
                    pauses.add(container["id"])
                elif name and container["name"]:
                    containers[container["id"]] = f"{name}/{container['name']}"
        return cls(sandboxes, uids, containers, frozenset(pauses))

    def name(self, sandbox: str | None, container: str | None, cgroup: str) -> str:
        """The pod or container of a process, by the most specific evidence; "" for none."""
        if sandbox is not None and sandbox in self.sandboxes:
            return self.sandboxes[sandbox]
        if container is not None and (container in self.containers or container in self.sandboxes):
            return self.containers.get(container) or self.sandboxes[container]
        uid = pod_uid(cgroup)
        return self.uids.get(uid, "") if uid else ""

    def pauses_only(self, container: str | None, comm: str, threads: int) -> bool:
        """Whether a process is a pod's pause process, by the id of its container. Its name counts only if no source
        names the container, because a container's author chooses the names of its processes."""
        if container is None or threads != 1:
            return False
        return container in self.pauses or (comm == "pause" and container not in self.containers)
