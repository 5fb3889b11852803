"""CPUs that two sandboxes claim: what is reported, and that nothing is placed on another's."""

from __future__ import annotations

from collections.abc import Sequence

from decided import box, decide, node, own_cpus, shown, vcpus
from ruled import claims

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, SandboxId, ThreadRole
from vmpin.domain.policy import Policy, SpareVcpuRule, ThreadPolicy
from vmpin.placement.ownership import Collision, find_collisions, ownership


def test_foreign_exclusive_cpus_are_never_given() -> None:
    """Not by S, not by P, not by H, not by a list."""
    on = node("0-7", pool="0-5", housekeeping="4-5")
    policy = Policy(spare_vcpus=SpareVcpuRule.HOUSEKEEPING, iothreads=ThreadPolicy.SHARED,
                    vhost=ThreadPolicy.HOUSEKEEPING,
                    emulator=CpuSet.parse("1,4"))
    found = decide([box("side", "0-5")], vcpus(0, 1), on, policy, others=[[own_cpus("x", "4")], [own_cpus("y", "5")]])
    assert str(found.mask) == "0-5"
    assert shown(found) == {0: "0-3", 1: "0-3"}
    assert {role: str(cpus) for role, cpus in found.others.items()} == {
        ThreadRole.IOTHREAD: "0-3", ThreadRole.VHOST: "0-3", ThreadRole.EMULATOR: "1", ThreadRole.KVM: "1",
        ThreadRole.VIRTIOFSD: "0-3", ThreadRole.SHIM: "0-3"}


def of(*sandboxes: Sequence[Container], vms: Sequence[str] = ()) -> list[Collision]:
    on = node()
    return find_collisions(ownership({SandboxId(f"pod-{at}"): claims(containers, on)
                                for at, containers in enumerate(sandboxes)}, on), set(map(SandboxId, vms)))


def test_nothing_is_contested_on_a_node_that_agrees_with_itself() -> None:
    assert of([own_cpus("a", "4-5"), box("s", "0-1")], [own_cpus("b", "6-7"), box("s", "0-1")], [box("c", None)]) == []


def test_a_cpu_of_two_sandboxes_is_reported_with_both() -> None:
    assert of([own_cpus("a", "4-5")], [own_cpus("b", "5-6")]) == [
        Collision(5, (SandboxId("pod-0"), SandboxId("pod-1")), "exclusive to a of pod-0 and b of pod-1")]


def test_cpus_that_containers_of_one_pod_share_are_that_pods_and_no_collision() -> None:
    """Kubelet 1.36 with pod-level resources lists several containers with the same CPUs, and every one an init
    container's with those of the next."""
    assert of([own_cpus("a", "4-5"), own_cpus("b", "5")], [own_cpus("c", "6")]) == []


def test_two_sandboxes_of_one_pod_do_not_collide() -> None:
    """The kubelet makes a pod's sandbox anew, and the one before has not ended yet: both are listed with the same."""
    on = node()
    both = {SandboxId("old"): claims([own_cpus("a", "4-5")], on),
            SandboxId("new"): claims([own_cpus("b", "4-5")], on)}
    assert find_collisions(ownership(both, on, dict.fromkeys(both, "uid-1"))) == []
    assert [each.cpu for each in find_collisions(ownership(both, on, {SandboxId("old"): "uid-1"}))] == [4, 5]


def test_a_shared_cpuset_that_reaches_anothers_cpus_is_reported() -> None:
    assert of([own_cpus("a", "4-5")], [box("s", "0-4")]) == [
        Collision(4, (SandboxId("pod-0"), SandboxId("pod-1")),
                  "exclusive to a of pod-0, but in the shared cpuset of s of pod-1")]


def test_the_cpuset_of_a_vms_container_reaches_nothing_as_its_threads_are_kept_off() -> None:
    stale = box("s", "0-3")._replace(stale_cpuset=CpuSet.parse("0-4"), exclusive=False, ruled_by="kubelet")
    theirs = [own_cpus("a", "4-5")]
    (runc,) = of(theirs, [stale])
    assert (runc.cpu, runc.what) == (4, "exclusive to a of pod-0, but in the cpuset, which the kubelet has yet to "
                                        "rewrite, of s of pod-1")
    assert of(theirs, [stale], vms=["pod-1"]) == []
    assert of(theirs, [box("s", "0-4")], vms=["pod-1"]) == []
    assert [each.cpu for each in of(theirs, [own_cpus("b", "5-6")], vms=["pod-0", "pod-1"])] == [5]


def test_collisions_come_by_cpu_and_offline_cpus_do_not_collide() -> None:
    found = of([own_cpus("a", "4-6,20")], [own_cpus("b", "4-6,20")])
    assert [collision.cpu for collision in found] == [4, 5, 6]


def test_a_contested_cpu_is_pinned_for_both_and_the_rest_of_either_is_untouched() -> None:
    mine, theirs = [own_cpus("a", "4-5")], [own_cpus("b", "5-6")]
    found = decide(mine, vcpus(0, 1), node(), others=[theirs])
    assert shown(found) == {0: "4", 1: "5"}
