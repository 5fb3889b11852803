"""The containers of a node under the kubelet's static policy: own, shared and stale CPUs."""

from __future__ import annotations

import pytest
from reported import APP, ONLINE, SIDE, UID, container, kubelet, pod, state_of
from ruled import ruled

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import ContainerState
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import Node, claims_of
from vmpin.placement.rulings import effective_containers, unreported_assignments


@pytest.mark.parametrize(("state", "exclusive", "own", "shared"), [
    (kubelet({(UID, "app"): "2-3"}), True, "2-3", ""),
    (kubelet({(UID, "app"): "2-5"}), True, "2-3", ""),      # what it has is what its runtime says
    (kubelet({(UID, "app"): "4-5"}), True, "4-5", "2-3"),   # its cgroup is yet to be rewritten: 2-3 are no pod's
    (kubelet({(UID, "app"): "2"}), True, "2", "3"),         # mixed CPUs
    (kubelet({(UID, "app"): "2", ("other", "app"): "3"}), True, "2", ""),
    (kubelet({(UID, "app"): "2", (UID, "side"): "3"}), True, "2", "3"),  # its own pod's
    (kubelet({("other", "app"): "2-3"}), False, "", None),  # another pod's: it shares the pool
    (kubelet({("other", "app"): "3-5"}), False, "", "2"),
    (kubelet({("other", "app"): "4-5"}), False, "", "2-3"),  # no pod's: reserved CPUs, given by CRI-O or a plugin
    (kubelet({(UID, "other"): "2-3"}), False, "", "2-3"),    # its own pod's
    (kubelet({(UID, "app"): "2-3"}, policy="none"), None, "2-3", ""),
    (None, None, "2-3", ""),
])
def test_a_container_owns_what_the_static_policy_lists_for_it_and_shares_what_it_has_beyond(
        state: CpuManagerState | None, exclusive: bool | None, own: str, shared: str | None) -> None:
    (found,) = effective_containers(pod(container(nri="2-3")), ruled(state))
    assert found.exclusive == exclusive
    if exclusive is False:
        assert (found.cpuset and str(found.cpuset)) == shared
    else:
        assert (str(found.own_cpus), str(found.spare)) == (own, shared)
        assert found.cpuset == found.own_cpus | found.spare


@pytest.mark.parametrize(("has", "entries", "stale"), [
    ("1,4-5", {(UID, "app"): "4-5"}, None),                          # mixed CPUs are up to date
    ("1,4-5", {(UID, "app"): "4-5", ("other", "db"): "1"}, "1,4-5"),
    ("0-1", {(UID, "app"): "4-5"}, "0-1"),
    ("2", {}, None),
    ("2-3", {("other", "db"): "3"}, "2-3"),
])
def test_only_cpus_that_it_lacks_or_that_are_another_pods_make_a_cpuset_stale(
        has: str, entries: dict[tuple[str, str], str], stale: str | None) -> None:
    (found,) = effective_containers(pod(container(nri=has)), ruled(kubelet(entries)))
    assert (found.stale_cpuset and str(found.stale_cpuset)) == stale


def test_the_owners_of_a_pods_cpus_are_its_owners_whatever_another_container_of_it_shares() -> None:
    """The CPU of an init container that has ended stays the pod's while its successor shares it."""
    state = kubelet({(UID, "init"): "4-6", (UID, "app"): "4-5"})
    unreported = unreported_assignments(state_of(pod(container(nri="4-6"))), ruled(state))
    assert unreported == {(UID, "init"): CpuSet.parse("6")}


@pytest.mark.parametrize(("sandbox", "entries", "found"), [
    (pod(container(nri="2-3")), {("new", "app"): "4"}, {("new", "app"): "4"}),
    (pod(container(nri="2-3")), {(UID, "app"): "2-3"}, {}),
    # Pulled, created or started again: its pod is known, and it does not run.
    (pod(), {(UID, "app"): "2-3"}, {(UID, "app"): "2-3"}),
    (pod(container(state=ContainerState.STOPPED, nri="2-3")), {(UID, "app"): "2-3"}, {(UID, "app"): "2-3"}),
    # An init container's CPUs are handed on.
    (pod(container("init", nri="2-3")), {(UID, "init"): "2-3", (UID, "app"): "2-4"}, {(UID, "app"): "4"}),
    # It has others, until its cgroup is rewritten.
    (pod(container(nri="2-3")), {(UID, "app"): "4"}, {}),
    # No source reports this container's pod: it may be a shared one with an old cpuset.
    (pod(container(nri="2-3"), uid=""), {("new", "app"): "2-3"}, {("new", "app"): "2-3"}),
])
def test_cpus_that_no_running_container_has_are_owned_all_the_same(
        sandbox: SandboxState, entries: dict[tuple[str, str], str], found: dict[tuple[str, str], str]) -> None:
    state = state_of(sandbox)
    assert unreported_assignments(state, ruled(kubelet(entries))) == {
        key: CpuSet.parse(cpus) for key, cpus in found.items()}
    assert unreported_assignments(state, ruled(kubelet(entries, policy="none"))) == {}
    assert unreported_assignments(state, ruled(None)) == {}


def test_a_container_that_only_the_kubelet_reports_has_its_cpus() -> None:
    (found,) = effective_containers(pod(container()), ruled(kubelet({(UID, "app"): "4"})))
    assert (found.exclusive, found.cpuset) == (True, CpuSet.parse("4"))


def test_cpus_in_the_pool_are_owned_all_the_same_when_they_are_listed() -> None:
    """The kubelet writes its default set and its entries at once; other sources follow."""
    node = Node(Topology.build(ONLINE), ONLINE, EMPTY)
    sandbox = pod(container(nri="2-3"), container("side", SIDE, nri="0-7"))
    found = claims_of(effective_containers(sandbox, ruled(kubelet({(UID, "app"): "2-3"}))), node)
    assert found.exclusive == ((APP, CpuSet.parse("2-3")),)
    assert found.shared == ((SIDE, ONLINE),)  # with CPUs of its own pod
    assert found.stale == ()


STATIC = kubelet({("other", "db"): "4-7"})


@pytest.mark.parametrize(("has", "shared", "stale"), [
    ("4-7", None, "4-7"),    # wholly on what has become another pod's: it shares the pool
    ("0-7", "0-3", "0-7"),   # not narrowed yet
    ("0-1", "0-1", None),
    ("2-3", "2-3", None),    # reserved CPUs: CRI-O's workloads, an NRI plugin, other reservations than before
])
@pytest.mark.parametrize("declared", [None, True, False])
def test_what_the_static_policy_does_not_list_owns_nothing_and_shares_its_cpuset(
        has: str, shared: str | None, stale: str | None, declared: bool | None) -> None:
    """Without other pods' exclusive CPUs, and whatever an annotation declares."""
    known = container(nri=has)
    known = known._replace(container=known.container._replace(exclusive=declared))
    (found,) = effective_containers(pod(known), ruled(STATIC))
    assert (found.exclusive, found.cpuset, found.stale_cpuset) == (
        False, shared and CpuSet.parse(shared), stale and CpuSet.parse(stale))
    assert not claims_of((found,), Node(Topology.build(ONLINE), STATIC.default)).exclusive


def test_an_update_under_way_gives_a_shared_container_no_cpu_of_another_pod() -> None:
    known = container(nri="0-7")
    known = known._replace(container=known.container._replace(requested_cpuset=CpuSet.parse("1-4")))
    (found,) = effective_containers(pod(known), ruled(STATIC))
    assert (str(found.cpuset), str(found.requested_cpuset), str(found.stale_cpuset)) == (
        "0-3", "1-3", "0-7")


def test_where_every_cpu_of_the_pool_is_given_away_the_rest_is_shared() -> None:
    """The default set is empty then (strict-cpu-reservation)."""
    state = CpuManagerState("static", EMPTY, {("other", "db"): CpuSet.parse("4-7")})
    (found,) = effective_containers(pod(container(nri="0-7")), ruled(state))
    assert (found.exclusive, str(found.cpuset)) == (False, "0-3")


@pytest.mark.parametrize(("written", "own"), [(9, "2"), (10, "2"), (11, "2-3")])
def test_of_the_entry_and_a_report_with_less_the_later_one_counts(written: int, own: str) -> None:
    """A report that a state file kept may be older than the checkpoint. What it has beside the entry is shared."""
    state = kubelet({(UID, "app"): "2-3"}).dated(written, None)
    (found,) = effective_containers(pod(container(nri="2,4")), ruled(state))
    assert (found.exclusive, str(found.own_cpus), str(found.spare)) == (True, own, "4")
    assert found.stale_cpuset == (None if own == "2" else CpuSet.parse("2,4"))


def test_cpus_of_a_pod_that_no_container_is_listed_with_are_the_pods() -> None:
    """As the kubelet leaves them for a moment when the pod ends (1.36, pod-level resources)."""
    state = CpuManagerState("static", CpuSet.parse("0-1"), {(UID, "app"): CpuSet.parse("2")},
                            {UID: CpuSet.parse("2-3"), "gone": CpuSet.parse("4")})
    assert unreported_assignments(state_of(pod(container(nri="2"))), ruled(state)) == {(UID, ""): CpuSet.parse("3"),
                                                                ("gone", ""): CpuSet.parse("4")}
