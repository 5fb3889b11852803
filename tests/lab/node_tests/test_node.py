"""The node is what it was asked to be: without that, no other test here says anything."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

from lab.node_tests.machines import kvm_version
from lab.variant import Cgroup, Topology, Variant

_CPU = Path("/sys/devices/system/cpu")


def read(path: str | Path) -> str:
    return Path(path).read_text().strip()


def test_runs_the_kernel_that_was_asked_for(variant: Variant) -> None:
    assert platform.release().startswith(f"{variant.kernel}.")


def test_cpus_are_two_sockets_of_two_cores_of_two_threads(variant: Variant) -> None:
    assert read(_CPU / "present") == "0-7"
    if variant.topology is Topology.NOSMT:
        assert read(_CPU / "online") == "0,2,4"
        assert read(_CPU / "smt/active") == "0"
        return
    assert read(_CPU / "online") == "0-7"
    assert read(_CPU / "smt/active") == "1"
    for cpu in range(8):
        assert read(_CPU / f"cpu{cpu}/topology/thread_siblings_list") == f"{cpu & ~1}-{cpu | 1}"
        assert read(_CPU / f"cpu{cpu}/topology/physical_package_id") == str(cpu // 4)


def test_memory_is_two_numa_nodes(variant: Variant) -> None:
    node = Path("/sys/devices/system/node")
    assert read(node / "online") == "0-1"
    assert sorted(read(f"/sys/class/net/eth{number}/device/../numa_node") for number in (0, 1)) == ["0", "1"]
    cpus = [read(node / f"node{number}/cpulist") for number in (0, 1)]
    assert cpus == (["0,2", "4"] if variant.topology is Topology.NOSMT else ["0-3", "4-7"])


def test_cgroups_are_laid_out_as_asked_and_have_cpusets(variant: Variant) -> None:
    mounts = [line.split() for line in read("/proc/mounts").splitlines()]
    types = {where: kind for _, where, kind, *_ in mounts if where.startswith("/sys/fs/cgroup")}
    if variant.cgroup is Cgroup.V2:
        assert types == {"/sys/fs/cgroup": "cgroup2"}
        assert "cpuset" in read("/sys/fs/cgroup/cgroup.subtree_control").split()
        return
    assert types["/sys/fs/cgroup"] == "tmpfs"
    assert types["/sys/fs/cgroup/cpuset"] == "cgroup"
    assert types.get("/sys/fs/cgroup/unified") == ("cgroup2" if variant.cgroup is Cgroup.HYBRID else None)


def test_nothing_of_the_build_machines_proc_and_sys_is_in_the_root(tmp_path: Path) -> None:
    """Below the node's own, which a bind mount of the root alone leaves out."""
    subprocess.run(["mount", "--bind", "/", tmp_path], check=True)
    try:
        assert (tmp_path / "repo/pyproject.toml").exists()
        assert {name: os.listdir(tmp_path / name) for name in ("proc", "sys")} == {"proc": [], "sys": []}
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_kvm_and_vhost_are_there() -> None:
    assert kvm_version() == 12
    for device in ("vhost-net", "vhost-vsock", "net/tun"):
        assert Path("/dev", device).is_char_device()
    assert Path("/sys/kernel/debug/kvm").is_dir()


def test_the_clock_of_every_cpu_goes(online: list[int]) -> None:
    """As init has seen to: a timer that is set there ends."""
    before = os.sched_getaffinity(0)
    assert read("/proc/timer_list").count(".hres_active    : 1") == len(online)
    for cpu in online:
        os.sched_setaffinity(0, {cpu})
        time.sleep(0.01)
    os.sched_setaffinity(0, before)
