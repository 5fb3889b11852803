"""Containers on whose CPUs the sources disagree."""

from __future__ import annotations

import logging

import pytest
from reported import APP, ONLINE, POD, SIDE, UID, container, kubelet, pod, state_of
from ruled import ruled

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.desired_state import ContainerRecord
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import ContainerState
from vmpin.reconcile.disagreements import SourceDisagreements, disagreements


@pytest.mark.parametrize(("known", "state", "text"), [
    (container(nri="2-3", cgroup="2-3"), kubelet({(UID, "app"): "2-3"}), None),
    (container(nri="2-3", cgroup="2-3,9"), None, None),  # 9 is offline
    (container(nri="2-3", bundle="4"), None, None),  # what it began with
    (container(nri="2-3", cgroup="4"), None, "nri 2-3, cgroup 4"),
    (container(nri="2-3"), kubelet({(UID, "app"): "4-5"}), "nri 2-3, kubelet 4-5"),
    (container(nri="1-3"), kubelet({(UID, "app"): "2-3"}), None),  # mixed CPUs
    (container(nri="1-3", cgroup="2-3"), kubelet({(UID, "app"): "2-3"}), "nri 1-3, cgroup 2-3, kubelet 2-3"),
    (container(nri="1-3"), kubelet({(UID, "app"): "2-3", ("other", "db"): "1"}), "nri 1-3, kubelet 2-3"),
    (container(nri="2"), kubelet({(UID, "app"): "2-3"}), "nri 2, kubelet 2-3"),
    (container(nri="2"), kubelet({(UID, "app"): "2-3,9"}), "nri 2, kubelet 2-3,9"),
    (container(nri="2-3"), kubelet({(UID, "app"): "2-3,9"}), None),  # an entry with an offline CPU
    (container(kata="2", nri="3"), None, "kata 2, nri 3"),
    (container(state=ContainerState.STOPPED, nri="2-3", cgroup="4"), None, None),
])
def test_the_source_of_another_cpuset_is_named(known: ContainerRecord, state: CpuManagerState | None,
                                          text: str | None) -> None:
    assert disagreements(pod(known), ruled(state), None, ONLINE).get(APP) == text


def test_podresources_are_a_witness_for_exclusive_cpus_only() -> None:
    sandbox = pod(container(nri="2-3"), container("side", SIDE, nri="0-1"))
    resources = {("ns", "web", "app"): CpuSet.parse("2,4"), ("ns", "web", "side"): EMPTY}
    assert disagreements(sandbox, ruled(None), resources, ONLINE) == {APP: "nri 2-3, podresources 2,4"}
    resources = {("ns", "web", "app"): CpuSet.parse("2")}
    assert disagreements(sandbox, ruled(None), resources, ONLINE) == {}  # mixed CPUs
    assert disagreements(sandbox, ruled(kubelet({(UID, "app"): "2-3"})), resources, ONLINE) == {
        APP: "nri 2-3, kubelet 2-3, podresources 2"}


def test_only_a_disagreement_that_lasts_is_reported_and_once(caplog: pytest.LogCaptureFixture) -> None:
    agreement, odd = SourceDisagreements(), state_of(pod(container(nri="2-3", cgroup="4")))
    caplog.set_level(logging.WARNING)
    for now in (100.0, 109.9):
        agreement.compare(odd, ruled(None), ONLINE, 10, now)
        assert agreement.lasting == {}
    for now in (110.0, 120.0):
        agreement.compare(odd, ruled(None), ONLINE, 10, now)
        assert agreement.lasting == {(POD, APP): "nri 2-3, cgroup 4"}
    assert len(caplog.messages) == 1
    # Another one begins anew, and it is over when they agree.
    agreement.compare(state_of(pod(container(nri="2-3", cgroup="5"))), ruled(None), ONLINE, 10, 130.0)
    assert agreement.lasting == {}
    agreement.compare(state_of(pod(container(nri="2-3", cgroup="2-3"))), ruled(None), ONLINE, 10, 150.0)
    assert agreement.lasting == {}
    assert len(caplog.messages) == 1


def test_a_sandbox_that_stayed_as_it_was_is_compared_again_when_a_witness_says_something_else() -> None:
    agreement, state = SourceDisagreements(), state_of(pod(container(nri="2-3", cgroup="2-3")))
    agreement.compare(state, ruled(None), ONLINE, 0, 100.0)
    assert agreement.lasting == {}
    given_out = kubelet({(UID, "app"): "4-5"})
    agreement.compare(state, ruled(given_out), ONLINE, 0, 110.0)
    assert agreement.lasting == {(POD, APP): "nri 2-3, cgroup 2-3, kubelet 4-5"}
    agreement.resources = {("ns", "web", "app"): CpuSet.parse("6")}
    agreement.compare(state, ruled(given_out), ONLINE, 0, 120.0)
    assert agreement.lasting == {(POD, APP): "nri 2-3, cgroup 2-3, kubelet 4-5, podresources 6"}
    agreement.compare(state, ruled(given_out), EMPTY, 0, 130.0)  # none of all these CPUs is online
    assert agreement.lasting == {}


def test_what_a_state_file_kept_of_nri_takes_no_part_until_the_runtime_has_listed_its_containers() -> None:
    """After a restart of the watcher the cgroup is read at once, and NRI's own report comes later."""
    agreement, state = SourceDisagreements(), state_of(pod(container(nri="0-7", cgroup="0,4-7")))
    for now in (100.0, 110.0, 120.0):
        agreement.compare(state, ruled(None), ONLINE, 10, now, nri=False)
        assert agreement.lasting == {}
    agreement.compare(state, ruled(None), ONLINE, 10, 130.0)
    assert agreement.lasting == {}
    agreement.compare(state, ruled(None), ONLINE, 10, 140.0)
    assert agreement.lasting == {(POD, APP): "nri 0-7, cgroup 0,4-7"}
