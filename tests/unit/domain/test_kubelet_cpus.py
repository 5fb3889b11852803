"""What the kubelet gave to whom, and what the sources do not agree on."""

from __future__ import annotations

import logging

import pytest
from ruled import ruled

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState, compare_with_pod_resources
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import Node, claims_of
from vmpin.placement.rulings import effective_containers, unreported_assignments
from vmpin.reconcile.disagreements import SourceDisagreements, disagreements
from vmpin.reconcile.runc_drift import TRIES, WITHIN, RuncDriftRepairs

POD, APP, SIDE = SandboxId("pod-a"), ContainerId("c1"), ContainerId("c2")
ONLINE = CpuSet.parse("0-7")
UID = "uid-1"


def kubelet(entries: dict[tuple[str, str], str] | None = None, policy: str = "static",
            by_id: dict[str, str] | None = None) -> CpuManagerState:
    return CpuManagerState(policy, CpuSet.parse("0-1"),
                           {key: CpuSet.parse(cpus) for key, cpus in (entries or {}).items()},
                           by_id={key: CpuSet.parse(cpus) for key, cpus in (by_id or {}).items()})


def container(name: str = "app", cid: ContainerId = APP, state: ContainerState = ContainerState.RUNNING,
              **words: str) -> ContainerRecord:
    """With the words of sources, by their names."""
    said = {Source[source.upper()]: CpusetReport(CpuSet.parse(cpus), 10) for source, cpus in words.items()}
    source = next(iter(said), Source.NRI)
    made = Container(cid, name, said[source].cpuset if said else None, None, state)
    return ContainerRecord(made, source, 10, reports=said)


def pod(*containers: ContainerRecord, uid: str = UID) -> SandboxState:
    return SandboxState(POD, "nri", Pod("ns", "web", uid), {each.container.id: each for each in containers})


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
    (kubelet(by_id={APP: "2-3"}), True, "2-3", ""),
    (kubelet(by_id={APP: "2", "foreign": "3"}), True, "2", ""),
    (kubelet(by_id={APP: "2"}), True, "2", "3"),
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


def test_cpus_of_a_v1_checkpoint_are_owned_before_the_container_is_known() -> None:
    state = kubelet(by_id={APP: "2-3", "unknown": "4-5"})
    unreported = unreported_assignments(state_of(pod(container(nri="2-3"))), ruled(state))
    assert unreported == {("unknown", ""): CpuSet.parse("4-5")}
    stopped = container(state=ContainerState.STOPPED, nri="2-3")
    assert unreported_assignments(state_of(pod(stopped)), ruled(state)) == {(APP, ""): CpuSet.parse("2-3"),
                                                     ("unknown", ""): CpuSet.parse("4-5")}


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


def test_an_entry_is_as_old_as_the_file_that_had_these_cpus_first() -> None:
    first = kubelet({(UID, "app"): "2-3", (UID, "side"): "4"}).dated(10, None)
    then = kubelet({(UID, "app"): "2-3", (UID, "side"): "5"}).dated(20, first)
    assert then.since == {(UID, "app"): 10, (UID, "side"): 20}


def test_cpus_of_a_pod_that_no_container_is_listed_with_are_the_pods() -> None:
    """As the kubelet leaves them for a moment when the pod ends (1.36, pod-level resources)."""
    state = CpuManagerState("static", CpuSet.parse("0-1"), {(UID, "app"): CpuSet.parse("2")},
                            {UID: CpuSet.parse("2-3"), "gone": CpuSet.parse("4")})
    assert unreported_assignments(state_of(pod(container(nri="2"))), ruled(state)) == {(UID, ""): CpuSet.parse("3"),
                                                                ("gone", ""): CpuSet.parse("4")}


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


def state_of(sandbox: SandboxState) -> DesiredState:
    return DesiredState({sandbox.id: sandbox})


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


@pytest.mark.parametrize(("resources", "said"), [
    (None, "PodResources does not answer"),
    ({("ns", "web", "app"): CpuSet.parse("2-3")}, "PodResources lists the same CPUs"),
    ({}, "PodResources does not list its CPUs 2-3"),
    ({("ns", "web", "app"): CpuSet.parse("3-4")},
     "PodResources lists CPUs 4, which it does not have and does not list its CPUs 2"),
])
def test_podresources_are_asked_of_a_checkpoint_that_is_gone(
        resources: dict[tuple[str, str, str], CpuSet] | None, said: str) -> None:
    assert compare_with_pod_resources(kubelet({(UID, "app"): "2-3"}), resources) == said


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
