"""What the doctor says of this node: its kernel, its cgroups, its CPUs, and a VM that has what it should."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.machines import Kata, Vmpin, Watcher, until
from lab.variant import Kernel, Topology, Variant


def findings(vmpin: Vmpin, *checks: str, code: int = 0) -> dict[str, Any]:
    return {finding["check"]: finding for finding in vmpin.json("doctor", *checks, code=code)["findings"]}


@pytest.mark.release
def test_the_doctor_knows_the_node_and_the_watcher(variant: Variant, nested_vm: StartsVms, vmpin: Vmpin, kata: Kata,
                                                   watcher: Watcher, online: list[int], tmp_path: Path) -> None:
    vm = nested_vm(vcpus=2, vhost_net=1)
    vm.wait_idle()
    own = str(online[-1])
    vmpin.configure(node__shared_pool=str(online[0]), watch__resync_seconds=1)
    kata.write(vm, {"main": own})
    with watcher:
        until(lambda: vmpin.status(vm)["verdict"] == "pinned", lambda: str(vmpin.status(vm)))
        until(lambda: findings(vmpin, "proc-connector")["proc-connector"]["level"] == "ok", "births to be reported")
        found = findings(vmpin, "privileges", "namespaces", "kernel", "cpus", "cgroups", "proc-connector", "watcher",
                         "config", "resync", "run-directory", "state-file", "vcpu-threads", "sandboxes", "collisions")
        levels = {name: finding["level"] for name, finding in found.items()}
        old = variant.kernel == Kernel.V6_1
        assert levels.pop("kernel") == ("warn" if old else "ok")
        offline = variant.topology is Topology.NOSMT and variant.cgroup != "v2"
        assert levels.pop("cpus") == ("warn" if offline else "ok")
        assert set(levels.values()) == {"ok"}, [finding for finding in found.values() if finding["level"] != "ok"]
        assert f"cgroups are {variant.cgroup}" in found["cgroups"]["what"]
        vhost = "kernel threads beside" if old else "vmpin finds both"
        assert any(vhost in line for line in found["kernel"]["evidence"])
        vmpin("gather", "--out", str(tmp_path / "r.tar.gz"))
        with tarfile.open(tmp_path / "r.tar.gz") as archive:
            names = [name.partition("/")[2] for name in archive.getnames()]
            top = archive.getnames()[0].partition("/")[0]
            processes = archive.extractfile(f"{top}/vms/{vm.sandbox}/processes.txt")
            assert processes is not None
            text = processes.read().decode()
        assert "vmpin/status.json" in names
        assert all(f"thread {tid} (" in text for tid in (*vm.vcpus(), *vm.vhost_tids()))
