"""Every thread on its place by the placement rules, read back from the kernel. Two kinds of CPUs here:

0 and 1 are the shared pool, 7 is for housekeeping; what containers have of the others is exclusively theirs.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, mask
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadRole
from vmpin.domain.sandbox_placement import Placement

POOL = "0-1"
HOUSEKEEPING = "7"


@pytest.fixture(scope="module")
def vm() -> Iterator[NestedVm]:
    with NestedVm(vcpus=4, iothreads=["io1"], vhost_net=1, vhost_vsock=True, guest=Guest.IDLE) as made:
        made.wait_idle()
        yield made


@pytest.fixture(autouse=True)
def _node(vmpin: Vmpin) -> None:
    vmpin.configure(node__shared_pool=POOL, node__housekeeping=HOUSEKEEPING)


@pytest.fixture
def place(vmpin: Vmpin, kata: Kata) -> PlacementCache:
    return PlacementCache(vmpin, kata)


class PlacementCache:
    """Gives a VM containers and puts its threads where they belong."""

    def __init__(self, vmpin: Vmpin, kata: Kata) -> None:
        self.vmpin, self.kata = vmpin, kata

    def __call__(self, vm: NestedVm, containers: Mapping[str, str], **policy: str) -> Placement:
        self.vmpin.configure(**{f"policy__{key}": value for key, value in policy.items()})
        self.kata.write(vm, containers)
        reconciler = self.vmpin.reconcile()
        assert not reconciler.resync(act=False).results, "a second pass has nothing left to do"
        return reconciler.node_state.placements[SandboxId(vm.sandbox)]


def vcpus(vm: NestedVm) -> list[str]:
    """The masks by vCPU id."""
    tids = vm.vcpu_tids()
    return [str(mask(tids[index])) for index in sorted(tids)]


def by_role(vm: NestedVm) -> dict[ThreadRole, set[str]]:
    """The masks of all other threads by their role."""
    found: dict[ThreadRole, set[str]] = {}
    for tid, role in vm.roles().items():
        if role is not ThreadRole.VCPU:
            found.setdefault(role, set()).add(str(mask(tid)))
    return found


def others(vm: NestedVm) -> set[str]:
    return set().union(*by_role(vm).values())


class Case(NamedTuple):
    name: str
    containers: Mapping[str, str]
    #: By vCPU id.
    vcpus: list[str]
    mask: str
    policy: Mapping[str, str] = {}
    #: What is said where it is less than was asked.
    reason: str = ""
    #: The CPUs of every other thread; "" for the sandbox mask.
    others: str = ""


ALONE = {"a": "2-3"}
CASES = (
    Case("as many vCPUs as exclusive CPUs: one to one", {"a": "2-3", "b": "4-5"}, ["2", "3", "4", "5"], "2-5"),
    Case("spare vCPUs float on the shared part", {"a": "2-3", "b": "0-1"}, ["0-1", "0-1", "2", "3"], "0-3",
         others="0-1"),
    Case("spare vCPUs stay in the sandbox", ALONE, ["2-3", "2-3", "2", "3"], "2-3"),
    Case("spare vCPUs on the shared pool", ALONE, ["0-1", "0-1", "2", "3"], "2-3", {"spare_vcpus": "shared"}),
    Case("spare vCPUs where housekeeping is", ALONE, ["7", "7", "2", "3"], "2-3", {"spare_vcpus": "housekeeping"}),
    Case("the policy for spare vCPUs is for sandboxes without a shared part", {"a": "2-3", "b": "0-1"},
         ["0-1", "0-1", "2", "3"], "0-3", {"spare_vcpus": "housekeeping"}, others="0-1"),
    Case("an exclusive container over both NUMA nodes", {"a": "2,5", "b": "0"}, ["0", "0", "2", "5"], "0,2,5",
         others="0"),
    Case("shared containers only", {"a": "0-1", "b": "1"}, ["0-1"] * 4, "0-1"),
    Case("a container that was given no CPUs lives on the pool", {"a": "3", "b": ""}, ["0-1"] * 3 + ["3"], "0-1,3",
         others="0-1"),
    Case("no container yet: the pool", {}, ["0-1"] * 4, "0-1"),
    Case("union: every vCPU on the sandbox's CPUs", {"a": "2-3", "b": "0-1"}, ["0-3"] * 4, "0-3",
         {"vcpus": "union"}, others="0-1"),
    Case("every thread on the sandbox's CPUs where that is the policy", {"a": "2-3", "b": "0-1"},
         ["0-1", "0-1", "2", "3"], "0-3", {"iothreads": "sandbox", "vhost": "sandbox", "emulator": "sandbox"}),
    Case("fewer vCPUs than groups of containers", {"a": "2", "b": "3", "c": "4", "d": "5", "e": "6-7"}, ["2-7"] * 4,
         "2-7", {}, "4 vCPUs for 6 exclusive CPUs, fewer than the 5 groups"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_threads_are_where_the_rules_put_them(case: Case, vm: NestedVm, place: PlacementCache) -> None:
    placed = place(vm, case.containers, **case.policy)
    assert vcpus(vm) == case.vcpus
    assert others(vm) == {case.others or case.mask}
    assert case.reason in " ".join(placed.reasons)
    assert str(placed.mask) == case.mask


@pytest.mark.parametrize(("shared", "shares"), [
    ({}, {"2-5": 3, "6-7": 1}),
    ({"c": "0-1"}, {"2-5": 2, "6-7": 1, "0-1": 1}),
], ids=["exclusive containers only", "one vCPU is kept for the shared"])
def test_fewer_vcpus_than_exclusive_cpus_are_shared_out(shared: Mapping[str, str], shares: Mapping[str, int],
                                                       vm: NestedVm, place: PlacementCache) -> None:
    placed = place(vm, {"a": "2-5", "b": "6-7", **shared})
    assert Counter(vcpus(vm)) == shares
    assert placed.verdict == "degraded"
    assert "4 vCPUs for 6 exclusive CPUs" in " ".join(placed.reasons)
    if shared:
        assert vcpus(vm)[0] == "0-1"  # the boot vCPU carries the guest's own work


def test_vcpus_that_are_off_keep_what_they_have(vm: NestedVm, place: PlacementCache) -> None:
    place(vm, {"a": "2-3", "b": "0-1"})
    before = vcpus(vm)
    place(vm, {"a": "4-5", "b": "0-1"}, vcpus="off")
    assert vcpus(vm) == before
    assert others(vm) == {"0-1"}


def test_every_other_role_goes_by_its_policy(vm: NestedVm, place: PlacementCache) -> None:
    assert set(by_role(vm)) == {ThreadRole.IOTHREAD, ThreadRole.VHOST, ThreadRole.EMULATOR, ThreadRole.KVM}
    containers = {"a": "2-3", "b": "0"}
    place(vm, containers, iothreads="shared", vhost="housekeeping", emulator="1,6")
    assert by_role(vm) == {ThreadRole.IOTHREAD: {"0"}, ThreadRole.VHOST: {"7"}, ThreadRole.EMULATOR: {"1,6"},
                           ThreadRole.KVM: {"1,6"}}
    place(vm, containers, iothreads="off", vhost="sandbox", emulator="shared")
    assert by_role(vm) == {ThreadRole.IOTHREAD: {"0"}, ThreadRole.VHOST: {"0,2-3"}, ThreadRole.EMULATOR: {"0"},
                           ThreadRole.KVM: {"0"}}
    place(vm, {"a": "2-3"}, iothreads="shared", vhost="off", emulator="housekeeping")
    assert by_role(vm) == {ThreadRole.IOTHREAD: {"0-1"}, ThreadRole.VHOST: {"0,2-3"}, ThreadRole.EMULATOR: {"7"},
                           ThreadRole.KVM: {"7"}}
    assert vcpus(vm) == ["2-3", "2-3", "2", "3"]


def test_no_role_goes_onto_another_sandboxs_cpus_whatever_its_policy(vm: NestedVm, place: PlacementCache,
                                                                    nested_vm: StartsVms) -> None:
    other = nested_vm(vcpus=2, guest=Guest.IDLE)
    place.kata.write(other, {"theirs": "6-7"})
    place(vm, {"a": "2-3"}, iothreads="6", vhost="housekeeping", emulator="5-7")
    assert by_role(vm) == {ThreadRole.IOTHREAD: {"2-3"}, ThreadRole.VHOST: {"2-3"}, ThreadRole.EMULATOR: {"5"},
                           ThreadRole.KVM: {"5"}}
    assert vcpus(other) == ["6", "7"]


@pytest.mark.parametrize(("policies", "places"), [
    ({}, ("2-3", "2-3")),
    ({"virtiofsd": "shared", "shim": "housekeeping"}, ("0-1", "7")),
    ({"virtiofsd": "5", "shim": "off"}, ("5", "0-7")),
], ids=["by default", "shared, housekeeping", "a list, off"])
def test_virtiofsd_and_shim_go_by_their_policies(policies: Mapping[str, str], places: tuple[str, str], vm: NestedVm,
                                                 place: PlacementCache) -> None:
    """Processes with the command lines of both; that is how they are identified."""
    shared_dir = f"--shared-dir=/run/kata-containers/shared/sandboxes/{vm.sandbox}/shared"
    with (subprocess.Popen(["virtiofsd", "-c", "read _", shared_dir], executable="/bin/sh",
                           stdin=subprocess.PIPE) as virtiofsd,
          subprocess.Popen(["containerd-shim-kata-v2", "-c", "read _", "-namespace", "k8s.io", "-id", vm.sandbox],
                           executable="/bin/sh", stdin=subprocess.PIPE) as shim):
        place(vm, {"a": "2-3"}, **policies)
        assert (str(mask(virtiofsd.pid)), str(mask(shim.pid))) == places


def test_guest_numa_nodes_stay_together_on_host_nodes(nested_vm: StartsVms, place: PlacementCache) -> None:
    memory = [word for node in (0, 1) for word in (
        "-object", f"memory-backend-ram,id=m{node},size=32M",
        "-numa", f"node,nodeid={node},memdev=m{node},cpus={node},cpus={node + 2}")]
    vm = nested_vm(vcpus=4, extra=memory, guest=Guest.IDLE)
    vm.wait_idle()
    place(vm, {"a": "2-5"})
    assert vcpus(vm) == ["2", "4", "3", "5"]  # 0 and 2 are one node of the guest, 2 and 3 are on one of the host


def test_guest_siblings_go_onto_siblings(nested_vm: StartsVms, place: PlacementCache) -> None:
    vm = nested_vm(smp="4,sockets=1,cores=2,threads=2", guest=Guest.IDLE)
    vm.wait_idle()
    place.vmpin.configure(node__shared_pool="0")
    place(vm, {"a": "1-4"})
    placed = [CpuSet.parse(cpus) for cpus in vcpus(vm)]
    assert placed[0] | placed[1] == CpuSet.parse("2-3")
    assert placed[2] | placed[3] == CpuSet.parse("1,4")
