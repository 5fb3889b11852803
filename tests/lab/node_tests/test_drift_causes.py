"""Why threads drift, where the kernel itself is to blame: CPUs that go and come, cgroups that are written and left."""

from __future__ import annotations

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, until
from lab.node_tests.test_changes import CpusetCgroup, cgroup, offline, places, vm, wait_for
from lab.variant import Kernel, Variant

__all__ = ["cgroup", "vm"]


@pytest.fixture(autouse=True)
def _slow(vmpin: Vmpin) -> None:
    """Nothing is inspected unless a file is written or a client asks for it."""
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=600, watch__births=False)


def causes(vm: NestedVm, vmpin: Vmpin) -> set[str]:
    drift = vmpin.status(vm)["drift"]
    return set() if drift is None else set(drift["repairs"])


@pytest.mark.release
def test_a_cpu_that_was_away_between_two_looks_is_the_cause(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                                                           watcher: Watcher) -> None:
    """A busy guest, whose vCPU has to go elsewhere and is forgotten there."""
    busy = nested_vm(vcpus=1, vhost_net=1, guest=Guest.BUSY)
    kata.write(busy, {"pinned": "5"})
    with watcher:
        wait_for(busy, ["5"], "5")
        assert causes(busy, vmpin) == set()
        with offline(5):
            # Without a CPU that is online it is not moved yet: it sleeps just then.
            until(lambda: places(busy) not in (["5"], [""]), "the vCPU to go elsewhere")
        vmpin("repin")
        wait_for(busy, ["5"], "5")
        assert causes(busy, vmpin) == {"hotplug"}
        assert "CPUs 5 went off or came back" in vmpin.status(busy)["drift"]["why"]


@pytest.mark.release
def test_a_write_to_the_cgroup_is_the_cause_where_the_kernel_forgets(vm: NestedVm, cgroup: CpusetCgroup, vmpin: Vmpin,
                                                                    watcher: Watcher, variant: Variant) -> None:
    with watcher:
        wait_for(vm, ["0-1", "3"], "0-1")
        vmpin("repin")  # by its answer the files are watched
        cgroup.set("1-2")
        cgroup.set("0-7")
        wait_for(vm, ["0-1", "3"], "0-1")
        # A newer kernel may have put all back before it was looked at.
        assert causes(vm, vmpin) in ([{"cpuset"}] if variant.kernel is Kernel.V6_1 else [{"cpuset"}, set()])


@pytest.mark.release
def test_a_move_into_another_cgroup_is_the_cause_where_the_kernel_forgets(
        vm: NestedVm, cgroup: CpusetCgroup, vmpin: Vmpin, watcher: Watcher, variant: Variant) -> None:
    with watcher:
        wait_for(vm, ["0-1", "3"], "0-1")
        vmpin("repin")
        cgroup.__exit__()
        vmpin("repin")
        wait_for(vm, ["0-1", "3"], "0-1")
        assert causes(vm, vmpin) == ({"cpuset"} if variant.kernel is Kernel.V6_1 else set())
        cgroup.__enter__()  # for its end
