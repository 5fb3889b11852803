"""The node in brief, for followers of its changes (features.cluster.followers): each VM sandbox without its threads.

Made from the same entries as the status document, sandbox by sandbox, so that the caller can do other work in between.
Sentences have pods and containers by name, as every reader cuts them to a length of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vmpin.domain.pod_names import with_names
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import find_collisions
from vmpin.reconcile.view import NodeView
from vmpin.status.collector import sandbox_entry, shown, visited
from vmpin.status.document import trespasses, with_doubts

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestData
    from vmpin.domain.model import SandboxId


class Survey:
    """The node at about one moment; each sandbox at exactly one. Filled by `take`."""

    def __init__(self) -> None:
        self.sandboxes: dict[SandboxId, dict[str, object]] = {}
        self.node: dict[str, object] = {}

    def take(self, view: NodeView, guest: Callable[[SandboxId], GuestData | None]) -> Iterator[None]:
        """Survey one sandbox a step. :param guest: the reports from guests."""
        collisions = []
        names = _names(view)
        listing = shown(view)
        yield
        for sandbox, vm, threads in visited(view, listing):
            collisions += trespasses(view.ownership, sandbox.id, threads)
            entry = sandbox_entry(view, sandbox, vm, threads, False, guest(sandbox.id))
            self.sandboxes[sandbox.id] = brief(entry, sandbox.suspended, names)
            yield
        collisions += find_collisions(view.ownership, {sandbox.id for sandbox in listing})
        names = _names(view)  # pods may have come since
        node, own = view.node, view.ownership
        collisions = with_doubts(collisions, view.unknown_owners, view.checkpoint_doubt)
        self.node = {"online": str(node.online), "shared_pool": str(own.pool), "exclusive": str(own.exclusive),
                     "housekeeping": str(node.housekeeping), "topology": _topology(node.topology),
                     "trouble": view.checkpoint.trouble,
                     "collisions": [{**collision._asdict(), "what": with_names(collision.what, names)}
                                    for collision in collisions]}


def brief(entry: Mapping[str, Any], suspended: bool, names: Mapping[str, str]) -> dict[str, object]:
    """A sandbox's entry of the status document without its threads.
    :param suspended: whether it was unpinned by hand. :param names: of pods and containers by their ids."""
    threads, drift = entry["threads"], entry["drift"]
    guest = entry["guest"]
    return {**{key: entry[key] for key in ("id", "pod", "runtime", "handler", "vmm", "mask", "verdict")},
            "reasons": [with_names(reason, names) for reason in entry["reasons"]],
            "drift": None if drift is None else {**drift, "why": with_names(drift["why"], names)},
            "suspended": suspended,
            # Not how many there are: a VMM's worker threads come and go all the time, and each would be a change.
            "misplaced": sum(not thread["ok"] for thread in threads),
            "vcpus": {str(thread["vcpu"]): thread["actual"] for thread in threads if thread["vcpu"] is not None},
            "guest": None if guest is None else {"by": guest["by"], "state": guest["state"]},
            "containers": [{"name": container["name"], "cpus": container["cpuset"],
                            "exclusive": container["exclusive"], "vcpus": container["vcpus"],
                            "guest": (container["guest"] or {}).get("text")}
                           for container in entry["containers"] if not container["pause"]]}


def _names(view: NodeView) -> dict[str, str]:
    """`namespace/pod` by sandbox id and by the pod's uid, a container's name by its id; also of pods without a VM."""
    names: dict[str, str] = {}
    for sandbox in view.sandboxes.values():
        names |= {container.id: container.name for container in sandbox.live() if container.name}
        if sandbox.pod is not None:
            names[sandbox.id] = names[sandbox.pod.uid] = f"{sandbox.pod.namespace}/{sandbox.pod.name}"
    return names


def _topology(topology: Topology) -> dict[str, object]:
    return {"cores": len(topology.cores), "threads_per_core": max((len(core) for core in topology.cores), default=0),
            "caches": [str(cpus) for cpus in topology.caches],
            "nodes": {str(node): str(cpus) for node, cpus in topology.nodes.items()},
            "distances": {str(node): {str(other): far for other, far in row.items()}
                          for node, row in topology.distances.items()},
            "isolated": str(topology.isolated)}
