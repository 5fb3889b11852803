"""What the doctor concludes about the allocator."""

from __future__ import annotations

import pytest
from healthy_node import facts, verdict

from vmpin.cpuset import CpuSet
from vmpin.domain.facts import CpuFacts, Daemon, FoundSetting, KubeletConfig, NodeFacts, OtherAllocator
from vmpin.features.common.finding import Level

GIVING = {"allocate.mode": "on", "allocate.reserved": "0"}


def counted(cpu: str, **more: str) -> KubeletConfig:
    """A kubelet of the policy none that reserves an amount of CPU."""
    settings = {"systemReserved": {"cpu": cpu, "memory": "1Gi"}, "cpuManagerPolicy": "none", **more}
    return KubeletConfig(7, {key: FoundSetting(value, "/c.yaml") for key, value in settings.items()}, ("/c.yaml",))


@pytest.mark.parametrize(("found", "level", "says"), [
    (facts(), "ok", "gives out no CPUs"),
    (facts(settings=GIVING), "bad", "is static"),
    (facts(checkpoint=None, kubelet=counted("1"), settings=GIVING), "ok", "7 are not reserved"),
    (facts(checkpoint=None, kubelet=counted("500m"), settings=GIVING), "ok", "gives out 7"),
    (facts(checkpoint=None, kubelet=counted(""), settings=GIVING), "warn",
     "gives out 8 CPUs, and only 7"),
    (facts(checkpoint=None, kubelet=counted("1", reservedSystemCPUs="0"), settings=GIVING), "ok",
     "gives out 7"),
    (facts(checkpoint=None, kubelet=counted("1"), settings=GIVING, cpus=CpuFacts(
        CpuSet(range(8)), isolated=CpuSet((6, 7)))), "warn", "gives out 7 CPUs, and only 5 are for any request"),
    (facts(checkpoint=None, kubelet=counted("1"), settings={
        **GIVING, "allocate.strict_reserved": "true"}), "warn", "only 6"),
    (facts(checkpoint=None, kubelet=counted("1"), settings={
        **GIVING, "allocate.reserved": ""}), "ok", "7 are for any request"),
    (facts(checkpoint=None, kubelet=counted("1"), settings={
        **GIVING, "allocate.groups": "db=6-7@shop+ops;batch;web=1"}), "warn", "only 4 are for any request"),
    (facts(checkpoint=None, kubelet=KubeletConfig(), settings=GIVING), "unknown", "no kubelet"),
    (facts(checkpoint=None, kubelet=counted("1"), settings=GIVING, cri_sockets=()), "warn",
     "CRI socket"),
    # Canonical Kubernetes with a --containerd-base-dir, as its snap demands beside Docker, whose containerd is called.
    (facts(checkpoint=None, settings=GIVING, kubelet=counted(
        "1", containerRuntimeEndpoint="/var/snap/k8s/common/run/containerd/containerd.sock")), "warn",
     "/var/snap/k8s/common/run/containerd/containerd.sock, and vmpin calls /run/containerd/containerd.sock"),
    (facts(checkpoint=None, settings={**GIVING, "paths.cri": "/ck8s/run/containerd.sock"}, kubelet=counted(
        "1", containerRuntimeEndpoint="unix:///ck8s/run/containerd.sock")), "ok", "7 are not reserved"),
    (facts(checkpoint=None, settings=GIVING, kubelet=counted(
        "1", containerRuntimeEndpoint="unix:///var/run/containerd/containerd.sock")), "ok", "7 are not reserved"),
    (facts(checkpoint=None, settings={**GIVING, "allocate.reserved": "0-7"}), "bad", "every online CPU"),
    (facts(checkpoint=None, settings=GIVING, nri_socket=False), "bad", "NRI is off"),
    (facts(checkpoint=None, settings=GIVING, daemons=(Daemon(
        "balloons", "nri-resource-policy-balloons", 5),)), "bad", "balloons gives out CPUs as well"),
    (facts(checkpoint=None, settings=GIVING, daemons=(
        Daemon("dra-driver-cpu", "dracpu", 5), Daemon("katalyst", "katalyst-agent", 6))), "bad",
     "dracpu, katalyst-agent give out CPUs as well"),
    (facts(checkpoint=None, settings=GIVING, daemons=(Daemon("cmk", "cmk.py", 5), Daemon("ctlplane", "ctlplane", 6))),
     "bad", "cmk.py, ctlplane give out CPUs as well"),
    (facts(checkpoint=None, settings=GIVING, allocators=(OtherAllocator("balloons", "it is connected"),)), "bad",
     "balloons gives out CPUs as well"),
    (facts(checkpoint=None, settings=GIVING, allocators=(OtherAllocator("balloons", "it is connected"),), status={
        "features": {"allocator": {"suspended": "balloons may give out CPUs, too"}}}), "bad",
     "vmpin gives out no CPUs: balloons may give out CPUs, too"),
    (facts(checkpoint=None, kubelet=counted("1"), settings=GIVING, allocators=(
        OtherAllocator("CRI-O's workloads", "", CpuSet((0,))),)), "ok", "7 are not reserved"),
    (facts(checkpoint=None, settings=GIVING, allocators=(OtherAllocator("CRI-O's workloads", "", CpuSet((0, 1))),)),
     "bad", "CRI-O's workloads gives out CPUs as well"),
    (facts(checkpoint=None, settings=GIVING, status={"features": {"allocator": {
        "foreign": ["shop/db/main"]}}}), "bad", "1 container came with a cpuset"),
])
def test_it_judges(found: NodeFacts, level: str, says: str) -> None:
    judged = verdict("allocation", found)
    assert (judged.level, says in judged.what) == (level, True), judged
    assert bool(judged.remedy) == (judged.level in (Level.WARN, Level.BAD))


def test_reserved_cpus_that_are_not_online_are_named() -> None:
    judged = verdict("allocation", facts(checkpoint=None, kubelet=counted("1"),
                                         settings={**GIVING, "allocate.reserved": "0,99"}))
    assert "of the reserved CPUs 99 are not online" in judged.evidence
