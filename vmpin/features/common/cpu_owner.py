"""An owner of exclusive CPUs. Pure."""

from dataclasses import dataclass

from vmpin.cpuset import CpuSet


@dataclass(frozen=True)
class CpuOwner:
    """One entry of the status document's node.owners. `label` is its name for people."""

    sandbox: str
    container: str
    cpus: CpuSet
    vm: bool
    init: int | None = None
    cgroup: str = ""
    label: str = ""
    #: Uid of a pod that only the kubelet reported: its cgroup is named after it (pod1-2, with systemd pod1_2.slice).
    uid: str = ""
    #: Of a group: its containers' ids and their sandboxes.
    members: frozenset[str] = frozenset()

    def data(self) -> dict[str, str]:
        return {"sandbox": self.sandbox, "container": self.container, "cpus": str(self.cpus),
                "kind": "vm" if self.vm else "runc", "name": self.label}
