"""Prints as JSON what vmpin makes of a crosvm below a /proc that is written here.

Started by test_fifth_vmm with a copy of the program that has crosvm in its table. :param argv[1]: an empty directory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId
from vmpin.domain.policy import Policy
from vmpin.domain.topology import Topology
from vmpin.guests.channels import find_channels
from vmpin.guests.vm_guest import guest_vcpus
from vmpin.host.procfs import Procfs
from vmpin.pinning.rival_writers import of_vm
from vmpin.placement.ownership import Node, claims_of, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.vmm.guest_machine import hardware_ids
from vmpin.vmm.inventory import VmInventory

PID, SANDBOX = 4000, SandboxId("pod-a")
ARGV = ["/usr/bin/crosvm", "run", "--cpus", "num-cores=3", "--vsock", "cid=77,device=/dev/vhost-vsock", "--socket",
        f"/run/kata/{SANDBOX}/crosvm.sock", "--cpu-affinity", "0=4", "/opt/kata/share/vmlinux"]
THREADS = {4000: "crosvm", 4001: "crosvm_vcpu0", 4002: "crosvm_vcpu1", 4003: "crosvm_vcpu2", 4004: "crosvm_vcpuX",
           4005: "vcpu_throttle", 4006: "vhost-4000"}
STAT = "{} ({}) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n"


def write_proc(root: Path) -> None:
    for tid, name in THREADS.items():
        task = root / str(PID) / "task" / str(tid)
        task.mkdir(parents=True)
        (task / "stat").write_text(STAT.format(tid, name))
    (root / str(PID) / "stat").write_text(STAT.format(PID, THREADS[PID]))
    (root / str(PID) / "cmdline").write_text("\0".join(ARGV) + "\0")


def main(root: Path) -> dict[str, object]:
    write_proc(root)
    proc = Procfs(root)
    inventory = VmInventory(proc)
    inventory.scan({})
    vm = inventory.vms[SANDBOX]
    inventory.refresh(vm)
    node = Node(Topology.build(CpuSet.parse("0-7")), CpuSet.parse("0-1"))
    containers = (Container(ContainerId("web"), "web", CpuSet.parse("4-5"), exclusive=True),)
    placement = place(PlacementRequest(SANDBOX, vm.vcpus, containers, vm.vcpu_state), node,
                      ownership({SANDBOX: claims_of(containers, node)}, node), Policy())
    hardware = hardware_ids(vm.type, vm.vmm.argv, [vcpu.id for vcpu in vm.vcpus])
    numbers = guest_vcpus(vm, hardware)
    return {
        "type": vm.type.name,
        "threads": {thread.name: thread.role for thread in vm.threads()},
        "identified": [vm.found_by, vm.vcpus_identified, vm.vcpu_threads[ThreadId(4002, 100)]],
        "qmp": len(inventory.needing_qmp()),
        "placed": {vcpu: str(cpus) for vcpu, cpus in placement.by_vcpu.items()},
        "verdict": placement.verdict,
        "channels": list(map(str, find_channels(vm, "", proc, root / "vc", root / "kata"))),
        "cid": vm.type.channels.cid(vm.vmm.argv),
        "guest": [numbers.boot, numbers.most, numbers.plugged, list(hardware.values())],
        "rivals": [rival.cause for rival in of_vm(proc, vm, ())],
        "start": vm.type.start(tuple(vm.vmm.argv))[:2],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
