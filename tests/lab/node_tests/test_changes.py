"""What changes under pinned VMs: their containers' CPUs, the CPUs that are online, the cpuset cgroup around them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, mask, until
from lab.variant import Cgroup, Kernel, Variant

_CPU = Path("/sys/devices/system/cpu")


@pytest.fixture(autouse=True)
def _pool(vmpin: Vmpin) -> None:
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=1)


def places(vm: NestedVm) -> list[str]:
    tids = vm.vcpu_tids()
    return [str(mask(tids[index])) for index in sorted(tids)]


def rest(vm: NestedVm) -> set[str]:
    """The masks of all threads that are no vCPUs."""
    own = set(vm.vcpus())
    return {str(each) for tid, each in vm.masks().items() if tid not in own}


def wait_for(vm: NestedVm, vcpus: list[str], others: str) -> None:
    until(lambda: places(vm) == vcpus and rest(vm) == {others},
          lambda: f"vCPUs on {vcpus}, the rest on {others}; have {places(vm)}, {rest(vm)}")


# Containers


def test_containers_that_swap_their_cpus_swap_their_vcpus(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                                                         watcher: Watcher) -> None:
    """No thread has to move for it."""
    vm = nested_vm(vcpus=3, vhost_net=1, guest=Guest.IDLE)
    kata.write(vm, {"a": "2", "b": "3", "side": "0-1"})

    def backing() -> dict[str, str]:
        return {each["name"]: each["vcpus"] for each in vmpin.status(vm)["containers"] if not each["pause"]}

    with watcher:
        wait_for(vm, ["0-1", "2", "3"], "0-1")
        assert backing() == {"a": "1", "b": "2", "side": "0"}
        kata.write(vm, {"a": "3", "b": "2", "side": "0-1"})
        until(lambda: backing() == {"a": "2", "b": "1", "side": "0"}, "the swap")
        assert places(vm) == ["0-1", "2", "3"]
        kata.write(vm, {"a": "3", "b": "4", "side": "0-1"})
        wait_for(vm, ["0-1", "4", "3"], "0-1")


def test_sandboxes_that_swap_their_cpus_swap_their_places(nested_vm: StartsVms, kata: Kata,
                                                         watcher: Watcher) -> None:
    one = nested_vm(vcpus=2, vhost_net=1, guest=Guest.IDLE)
    two = nested_vm(vcpus=2, vhost_vsock=True, iothreads=["io1"], guest=Guest.IDLE)
    kata.write(one, {"a": "2-3"})
    kata.write(two, {"b": "6-7"})
    with watcher:
        wait_for(one, ["2", "3"], "2-3")
        wait_for(two, ["6", "7"], "6-7")
        kata.write(one, {"a": "6-7"})
        kata.write(two, {"b": "2-3"})
        wait_for(one, ["6", "7"], "6-7")
        wait_for(two, ["2", "3"], "2-3")


# CPUs


@contextlib.contextmanager
def offline(cpu: int) -> Iterator[None]:
    switch = _CPU / f"cpu{cpu}/online"
    switch.write_text("0")
    try:
        yield
    finally:
        switch.write_text("1")


def test_a_pinned_vcpu_whose_cpu_goes_offline_comes_back_with_it(nested_vm: StartsVms, kata: Kata,
                                                                watcher: Watcher) -> None:
    vm = nested_vm(vcpus=3, vhost_net=1, vhost_vsock=True, iothreads=["io1"], guest=Guest.IDLE)
    kata.write(vm, {"pinned": "2-3", "side": "0-1"})
    with watcher:
        wait_for(vm, ["0-1", "2", "3"], "0-1")
        with offline(3):
            wait_for(vm, ["0-1", "2", "0-1"], "0-1")
        wait_for(vm, ["0-1", "2", "3"], "0-1")


def test_a_sandbox_all_of_whose_cpus_go_offline_is_on_the_pool_until_they_are_back(
        nested_vm: StartsVms, kata: Kata, vmpin: Vmpin, watcher: Watcher) -> None:
    vm = nested_vm(vcpus=1, vhost_net=1, guest=Guest.IDLE)
    kata.write(vm, {"pinned": "5"})
    with watcher:
        wait_for(vm, ["5"], "5")
        with offline(5):
            wait_for(vm, ["0-1"], "0-1")
            found = vmpin.status(vm)
            assert found["verdict"] == "degraded"
            assert "none of the sandbox's CPUs is online" in " ".join(found["reasons"])
        wait_for(vm, ["5"], "5")


# cgroups


class CpusetCgroup:
    """A cpuset cgroup below the top, and back to the top with its threads when it ends."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._top = Path("/sys/fs/cgroup" if cgroup is Cgroup.V2 else "/sys/fs/cgroup/cpuset")
        self.path = self._top / "lab-vm"

    def __enter__(self) -> CpusetCgroup:
        self.path.mkdir()
        (self.path / "cpuset.mems").write_text("0-1")
        self.set("0-7")
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self.path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self._top / "cgroup.procs").write_text(pid)

        def removed() -> bool:
            with contextlib.suppress(OSError):  # a process that was killed takes a moment to leave it
                self.path.rmdir()
            return not self.path.exists()

        until(removed, "the cgroup to be empty")

    def set(self, cpus: str) -> None:
        (self.path / "cpuset.cpus").write_text(cpus)

    def take(self, vm: NestedVm) -> None:
        """With the kernel threads: vhost makes them in the cgroup of the process that they work for."""
        for pid in (vm.pid, *(tid for tid in vm.vhost_tids() if tid not in vm.tids())):
            (self.path / "cgroup.procs").write_text(str(pid))


@pytest.fixture
def cgroup(variant: Variant) -> Iterator[CpusetCgroup]:
    with CpusetCgroup(variant.cgroup) as made:
        yield made


@pytest.fixture
def vm(nested_vm: StartsVms, cgroup: CpusetCgroup, kata: Kata) -> NestedVm:
    """In the cgroup. Its own place: vCPUs on 0-1 and 3, the rest on 0-1."""
    made = nested_vm(vcpus=2, vhost_net=1, iothreads=["io1"], guest=Guest.IDLE)
    made.wait_idle()
    cgroup.take(made)
    kata.write(made, {"pinned": "3", "side": "0-1"})
    return made


def inside(vm: NestedVm) -> set[int]:
    """Its own threads and its vhost workers: those that are in the cgroup."""
    return {*vm.tids(), *vm.vhost_tids()}


def test_masks_that_a_cgroup_cut_are_made_whole_by_a_pass(vm: NestedVm, cgroup: CpusetCgroup, vmpin: Vmpin,
                                                         variant: Variant) -> None:
    """Linux 6.1 forgets them, newer ones remember what was asked for. The passes know nothing of each other."""
    vmpin.reconcile()
    wait_for(vm, ["0-1", "3"], "0-1")
    cgroup.set("1-2")
    cgroup.set("0-7")
    forgets = variant.kernel is Kernel.V6_1
    assert {str(mask(tid)) for tid in inside(vm)} == ({"0-7"} if forgets else {"0-1", "3"})
    vmpin.reconcile()
    wait_for(vm, ["0-1", "3"], "0-1")
    assert vmpin.reconcile().resync(act=False).results == ()


def test_a_cgroup_narrowed_and_widened_again_is_followed(vm: NestedVm, cgroup: CpusetCgroup, vmpin: Vmpin,
                                                        watcher: Watcher) -> None:
    with watcher:
        wait_for(vm, ["0-1", "3"], "0-1")

        # Every thread loses some CPUs and keeps others.
        cgroup.set("1,3-4")
        wait_in_cgroup(vm, ["1", "3"], "1")
        threads = threads_as_they_are(vm, vmpin)
        assert {thread["wanted"] for thread in threads if not thread["ok"]} == {"0-1"}

        # vCPU 1 loses its only one: nothing that it could be given is left.
        cgroup.set("0-2")
        wait_in_cgroup(vm, ["0-1", "0-2"], "0-1")
        (pinned,) = (thread for thread in threads_as_they_are(vm, vmpin) if thread["vcpu"] == 1)
        assert (pinned["wanted"], pinned["actual"], pinned["ok"]) == ("3", "0-2", False)
        assert vmpin.json("verify", code=1)["ok"] is False

        cgroup.set("0-7")
        wait_for(vm, ["0-1", "3"], "0-1")
        assert all(thread["ok"] for thread in vmpin.status(vm)["threads"])


def wait_in_cgroup(vm: NestedVm, vcpus: list[str], others: str) -> None:
    """Like wait_for, without kernel threads that are not in the cgroup."""
    def there() -> bool:
        own = set(vm.vcpus())
        return places(vm) == vcpus and {str(mask(tid)) for tid in inside(vm) - own} == {others}

    until(there, lambda: f"vCPUs on {vcpus}, the rest on {others}; have {places(vm)}, {vm.masks()}")


def threads_as_they_are(vm: NestedVm, vmpin: Vmpin) -> list[dict[str, object]]:
    """The threads by status, which has what the kernel has, not what was asked for, and does not call it well."""
    found = vmpin.status(vm)
    assert {thread["tid"]: thread["actual"] for thread in found["threads"]} == {
        tid: str(each) for tid, each in vm.masks().items()}
    assert found["verdict"] == "degraded"
    reasons = " ".join(found["reasons"])
    assert "fewer CPUs than decided" in reasons or "their cpuset cgroup has" in reasons
    return list(found["threads"])


def test_a_pinned_thread_moved_into_another_cgroup_is_put_back(vm: NestedVm, cgroup: CpusetCgroup,
                                                              watcher: Watcher) -> None:
    """As a runtime does with a VMM that it has just started: Linux 6.1 forgets every mask then."""
    with watcher:
        wait_for(vm, ["0-1", "3"], "0-1")
        cgroup.__exit__()
        cgroup.__enter__()
        cgroup.take(vm)
        wait_for(vm, ["0-1", "3"], "0-1")
