"""What the other tests with a real containerd stand on: its pods, those that are VMs, and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cri import CriError
from enclosure import Enclosure
from need import need_tool
from process_masks import seen, two_cpus
from real_containerd import VM, Containerd, suites
from runtime_bundle import cgroups
from waiting import wait

#: Tests of the tests.
pytestmark = [pytest.mark.root, pytest.mark.release]


@pytest.fixture(params=suites())
def containerd(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    with Containerd(request.param) as made:
        yield made


def test_is_the_version_that_was_asked_for(containerd: Containerd) -> None:
    """Between 1.7 and 2.x NRI changed its events and its defaults."""
    assert containerd.version.startswith({"trixie": "1.7.", "sid": "2."}[containerd.suite])
    assert containerd.nri_socket.is_socket()


def test_runc_containers_have_their_cpus_by_cgroup(containerd: Containerd) -> None:
    first, second = two_cpus()
    pod = containerd.pod("web")
    main, side = pod.container("main", cpus=second), pod.create("side", cpus=first)
    assert main.cgroup_cpus() == second
    assert os.sched_getaffinity(main.pid) == {int(second)}
    assert not side.cgroup.exists()  # created is not more than noted down
    side.start()
    assert side.cgroup_cpus() == first
    main.update(cpus=first)
    assert main.cgroup_cpus() == first
    assert os.sched_getaffinity(main.pid) == {int(first)}
    with pytest.raises(CriError):
        main.update(cpus="4000")
    assert main.cgroup_cpus() == first
    pid = main.pid
    main.remove()
    assert not Path(f"/proc/{pid}").exists()
    assert not main.cgroup.exists()
    pod.remove()
    assert containerd.cri.pods() == []


def test_a_vm_pod_is_a_qemu_and_its_containers_have_no_cgroup_of_theirs(containerd: Containerd) -> None:
    first, second = two_cpus()
    both = seen(os.getpid()).other.pop()
    pod = containerd.pod("vm", VM, vcpus=3)
    assert f"sandbox-{pod.id}".encode() in Path(f"/proc/{pod.pid}/cmdline").read_bytes()
    assert set(seen(pod.pid).vcpus) == {0, 1, 2}
    main = pod.container("main", cpus=second)
    assert not main.cgroup.exists()
    assert seen(main.pid).all() == {both}
    main.update(cpus=first)
    assert seen(main.pid).all() == {both}
    with pytest.raises(CriError, match="not online"):
        main.update(cpus="4000")
    pid = pod.pid
    pod.remove()
    assert not Path(f"/proc/{pid}").exists()


def test_pods_outlive_their_containerd(containerd: Containerd) -> None:
    first, second = two_cpus()
    pod, vm = containerd.pod("web"), containerd.pod("vm", VM)
    main, app = pod.container("main", cpus=first), vm.container("app", cpus=first)
    pids = [pod.pid, main.pid, vm.pid, app.pid]
    containerd.kill()
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    containerd.start()
    assert sorted(containerd.cri.pods()) == sorted([pod.id, vm.id])
    assert [pod.pid, main.pid, vm.pid, app.pid] == pids
    main.update(cpus=second)
    assert main.cgroup_cpus() == second
    app.update(cpus=second)
    for each in pod, vm:
        each.remove()


def test_a_vmm_that_dies_is_seen_to_die() -> None:
    with Containerd() as containerd:
        vm = containerd.pod("vm", VM)
        os.kill(vm.pid, 9)
        wait(lambda: containerd.cri.pod_pid(vm.id) == 0, "containerd does not notice")
        vm.remove()


def test_nothing_is_left_of_it() -> None:
    with Containerd() as containerd:
        containerd.pod("web").container("main")
        containerd.pod("vm", VM, vcpus=2).container("main")
        assert _processes_with(str(containerd.top))
    assert _processes_with(str(containerd.top)) == []
    assert not containerd.top.exists()
    assert str(containerd.top) not in Path("/proc/self/mounts").read_text()
    assert cgroups(containerd.cgroup) == []


def test_an_enclosure_shows_its_processes_and_no_others() -> None:
    with Enclosure() as enclosure:
        sleeper = enclosure.popen([need_tool("busybox"), "sleep", "600"])
        with enclosure.inside():
            paths = subprocess.run([*enclosure.enter, "sh", "-c", "echo /proc/[0-9]*"], capture_output=True, text=True,
                                  check=True).stdout.split()
        first, inner, _shell = [int(path.removeprefix("/proc/")) for path in paths]
        assert first == 1
        assert enclosure.outer(inner) == sleeper.pid
        assert (enclosure.proc / f"{inner}/cmdline").read_bytes().endswith(b"sleep\x00600\0")
    assert sleeper.returncode == -9
    assert subprocess.run(["true"], check=True)  # what is started now is out here again


def _processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[1-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if word in line]
