"""A planned node in the form of a status document, for the map.

Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from vmpin.placement.ownership import Collision, Node, Ownership
from vmpin.status.document import node_data


def planned_node(sandboxes: Iterable[Mapping[str, Any]], node: Node, own: Ownership,
                 collisions: Iterable[Collision]) -> dict[str, Any]:
    """Return the document of a planned node, as a map takes it.
    :param sandboxes: as `vmpin plan --scenario -o json` prints them. Planned masks stand for those in the kernel; a
        role without a mask is left as it is, and not drawn."""
    owners = {(name, container): {"kind": "vm"} for name, claim in own.claims.items()
              for container, _ in claim.exclusive}
    return {"node": node_data(node, own, collisions, owners),
            "sandboxes": [{"id": sandbox["id"], "pod": None, "vmm": {}, "mask": sandbox["mask"],
                           "verdict": sandbox["verdict"],
                           "containers": [{"id": container["id"], "name": container["id"]}
                                          for container in sandbox["containers"]],
                           "threads": [*_threads(sandbox)]} for sandbox in sandboxes]}


def _threads(sandbox: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for vcpu in sandbox["vcpus"]:
        yield {"role": "vcpu", "vcpu": vcpu["id"], "actual": vcpu["cpus"] or ""}
    for thread in sandbox["iothreads"]:
        yield {"role": "iothread", "vcpu": None, "actual": thread["cpus"] or ""}
    for role in ("vhost", "emulator"):
        yield {"role": role, "vcpu": None, "actual": sandbox[role] or ""}
