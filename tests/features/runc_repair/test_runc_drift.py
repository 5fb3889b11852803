"""Which runc containers are given their CPUs back."""

from __future__ import annotations

import logging

import pytest
from reported import APP, POD, UID, container, kubelet, pod, state_of
from ruled import ruled

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import SandboxId
from vmpin.features.runc_repair.runc_drift import TRIES, WITHIN, RuncDriftRepairs

LASTING = [(POD, APP)]
ANNOUNCED = {APP: CpuSet.parse("2-3")}


@pytest.mark.parametrize(("known", "given", "vms", "wanted"), [
    (container(nri="2-3", cgroup="4"), kubelet({(UID, "app"): "2-3"}), set(), "2-3"),
    (container(nri="2-3", cgroup="4"), None, set(), "2-3"),
    (container(nri="4", cgroup="4"), kubelet({(UID, "app"): "2-3"}), set(), "2-3"),
    (container(nri="2-3", cgroup="4"), None, {POD}, None),  # a VM's
    (container(nri="2-3", cgroup="2-3"), None, set(), None),
    (container(nri="2-3", kata="4"), None, set(), None),
    (container(bundle="2-3", cgroup="4"), None, set(), None),  # the runtime does not know it
    # CPUs that it shares beside those of its entry are not taken away, whichever program gave them to it.
    (container(nri="1-3", cgroup="1-3"), kubelet({(UID, "app"): "2-3"}), set(), None),
    (container(nri="2-3", cgroup="1-3"), kubelet({(UID, "app"): "2-3"}), set(), None),
    (container(nri="1,3", cgroup="1,3"), kubelet({(UID, "app"): "2"}), set(), "2-3"),  # announced: 2-3
    (container(nri="1-3", cgroup="1"), kubelet({(UID, "app"): "3"}), set(), "2-3"),
    # But for those that another pod has alone.
    (container(nri="1-4", cgroup="1-4"), kubelet({(UID, "app"): "2-3", ("other", "db"): "4"}), set(), "1-3"),
])
def test_a_runc_container_is_given_back_what_it_was_given(known: ContainerRecord, given: CpuManagerState | None,
                                                          vms: set[SandboxId], wanted: str | None) -> None:
    found = RuncDriftRepairs().due(state_of(pod(known)), ruled(given), vms, LASTING, ANNOUNCED, 0.0)
    assert found == ({} if wanted is None else {APP: CpuSet.parse(wanted)})


def test_of_a_container_that_was_only_listed_the_listed_shared_cpus_are_given_back_too() -> None:
    known = state_of(pod(container(nri="1-3", cgroup="4")))
    given = kubelet({(UID, "app"): "2-3"})
    assert RuncDriftRepairs().due(known, ruled(given), set(), LASTING, {}, 0.0) == {APP: CpuSet.parse("1-3")}
    known = state_of(pod(container(nri="4", cgroup="4")))  # moved by another writer before the list
    assert RuncDriftRepairs().due(known, ruled(given), set(), LASTING, {}, 0.0) == {APP: CpuSet.parse("2-3")}


def test_contention_over_a_cpuset_ends(caplog: pytest.LogCaptureFixture) -> None:
    repairs, odd = RuncDriftRepairs(), state_of(pod(container(nri="2-3", cgroup="4")))
    caplog.set_level(logging.WARNING)

    def tried(now: float) -> int:
        found = repairs.due(odd, ruled(None), set(), LASTING, ANNOUNCED, now)
        for container_id, cpus in found.items():
            repairs.began(container_id, cpus, "CRI", now)
        return len(found)

    assert [tried(10.0 * number) for number in range(TRIES + 3)] == [1] * TRIES + [0] * 3
    assert len(caplog.messages) == 1
    assert "another writer takes them" in caplog.text
    assert tried(WITHIN + 1) == 1


def test_a_repair_that_was_not_begun_does_not_count() -> None:
    repairs, odd = RuncDriftRepairs(), state_of(pod(container(nri="2-3", cgroup="4")))
    tries = [repairs.due(odd, ruled(None), set(), LASTING, ANNOUNCED, float(now)) for now in range(TRIES + 3)]
    assert tries == [ANNOUNCED] * (TRIES + 3)


def test_nothing_is_repaired_from_a_list_alone() -> None:
    odd = state_of(pod(container(nri="2-3", cgroup="4")))
    assert RuncDriftRepairs().due(odd, ruled(None), set(), LASTING, {}) == {}
    assert RuncDriftRepairs().due(odd, ruled(kubelet({(UID, "app"): "2-3"})), set(), LASTING, {}) == ANNOUNCED
