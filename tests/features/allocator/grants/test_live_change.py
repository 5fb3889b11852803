"""Annotations that were changed while their containers run: what they do, what they cannot do, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import (
    AllocationMode,
    AllocationOptions,
    DefaultPolicy,
    GroupRule,
    HonouredKeys,
)
from vmpin.features.allocator.grants.decisions import due_updates, on_create, on_start
from vmpin.features.allocator.grants.ledger import Answer, Grant, Ledger
from vmpin.features.allocator.grants.live_change import (
    changed_containers,
    follow_annotations,
    set_policy,
)
from vmpin.features.allocator.grants.pool_cpus import applied
from vmpin.features.allocator.grants.synchronizing import on_synchronize
from vmpin.features.allocator.live_annotations import PAUSE, next_change
from vmpin.features.allocator.texts.annotations import asking_digest, asks
from vmpin.features.allocator.texts.grant_data import from_data, to_data

#: 8 CPUs, 4 cores, 2 nodes.
MACHINE = Topology.build(CpuSet(range(8)), cores=[CpuSet((n, n + 1)) for n in range(0, 8, 2)],
                         nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))})
ON = AllocationOptions(AllocationMode.ON, reserved=CpuSet((0,)))
POLICY = "cpu-policy.vmpin.io"
EXCLUSIVE = {POLICY: "exclusive"}
MAIN = ContainerId("main")


def requested(name: str, size: int = 2, annotations: dict[str, str] | None = None, pod: str = "",
              guaranteed: bool = True) -> RequestedContainer:
    pod = pod or f"pod-{name}"
    return RequestedContainer(
        ContainerId(name), SandboxId(pod), name, "web", pod, f"uid-{pod}", pod_annotations=annotations or {},
        shares=1024 * size or 2, quota=100_000 * size or None, period=100_000, guaranteed=guaranteed)


class Ledgers:
    """A ledger whose containers run, and what is handed over of their pods."""

    def __init__(self, *containers: RequestedContainer, options: AllocationOptions = ON) -> None:
        self.options, self.ledger = options, Ledger()
        for container in containers:
            answer = on_create(MACHINE, self.ledger, container, options)
            assert not answer.refusal
            cpuset = answer.adjustment and answer.adjustment.cpus
            self.ledger = on_start(MACHINE, answer.ledger, container._replace(cpuset=cpuset), options).ledger

    def follow(self, annotations: dict[str, str], container: ContainerId = MAIN) -> Answer:
        answer = follow_annotations(MACHINE, self.ledger, container, annotations, self.options, 7)
        self.ledger = answer.ledger
        return answer

    def grant(self, container: ContainerId = MAIN) -> Grant:
        return self.ledger.grants[container]

    def has(self) -> tuple[str, str]:
        return str(self.grant().policy), str(self.grant().cpus)


def test_a_change_does_what_set_does_and_the_shared_containers_lose_their_cpus_first() -> None:
    node = Ledgers(requested("shared", 0), requested("main"))
    assert node.has() == ("none", "")
    answer = node.follow(EXCLUSIVE)
    assert node.has() == ("exclusive", "2-3")
    assert [(update.container, str(update.cpus)) for update in answer.updates] == [("shared", "0-1,4-7"),
                                                                                 ("main", "2-3")]
    assert answer.notes == ("web/pod-main/main: none becomes exclusive 2-3: its annotations were changed",)
    assert due_updates(MACHINE, node.ledger, ON) == answer.updates
    # What the container runs on does as well: it stays.
    node.ledger = applied(node.ledger, answer.updates)
    assert [update.container for update in node.follow({POLICY: "fixed"}).updates] == ["shared"]
    assert node.has() == ("fixed", "2-3")
    node.follow({**EXCLUSIVE, "cpu-near.vmpin.io": "nodes:1"})
    assert node.has() == ("exclusive", "4-5")


@pytest.mark.parametrize(("default", "guaranteed", "expected"), [
    (DefaultPolicy.NONE, True, ("none", "")), (DefaultPolicy.GUARANTEED, True, ("exclusive", "2-3")),
    (DefaultPolicy.GUARANTEED, False, ("none", "")), (DefaultPolicy.EXCLUSIVE, False, ("exclusive", "2-3"))])
def test_without_annotations_a_container_goes_back_to_the_default(default: DefaultPolicy, guaranteed: bool,
                                                                  expected: tuple[str, str]) -> None:
    node = Ledgers(requested("main", annotations={POLICY: "fixed"}, guaranteed=guaranteed),
                   options=ON._replace(default=default))
    node.follow({})
    assert node.has() == expected


REFUSED = [
    ("request is not whole", 0, EXCLUSIVE, "needs request = limit in whole CPUs"),
    ("more than there is", 8, EXCLUSIVE, "8 CPUs"),
    ("not privileged", 2, {POLICY: "infra"}, "allocate.privileged_namespaces"),
    ("isolated", 2, {**EXCLUSIVE, "cpu-kind.vmpin.io": "isolated"}, "allocate.privileged_namespaces"),
    ("a group of others", 2, {POLICY: "group:ops"}, "the group is for the namespaces ops, not for web"),
    ("no value", 2, {POLICY: "mine"}, "it is none of"),
    ("required and not there", 4, {**EXCLUSIVE, "cpu-align.vmpin.io": "core!", "cpu-near.vmpin.io": "x" * 16},
     "cpu-near.vmpin.io"),
    ("a peer's, in vain", 0, {"topology.crane.io/cpu-policy": "exclusive"}, "needs request = limit in whole CPUs"),
    ("left alone", 2, {"cpu.preserve.resource-policy.nri.io": "true"}, "from a container's creation on"),
]
GROUPS = ON._replace(groups={"ops": GroupRule(CpuSet((7,)), frozenset({"ops"}))},
                     honour=frozenset({HonouredKeys.CRANE, HonouredKeys.NRI_PLUGINS}))


@pytest.mark.parametrize(("size", "annotations", "why"), [each[1:] for each in REFUSED], ids=[e[0] for e in REFUSED])
def test_a_refused_change_leaves_the_container_as_it_is_and_is_decided_on_once(
        size: int, annotations: dict[str, str], why: str) -> None:
    node = Ledgers(requested("other", annotations=EXCLUSIVE), requested("main", size), options=GROUPS)
    before = node.ledger
    answer = node.follow(annotations)
    assert why in answer.refusal
    assert not answer.updates
    assert len(answer.notes) == 1
    assert node.ledger.shared == before.shared
    assert node.grant()._replace(annotated="") == before.grants[MAIN]
    (refused,) = node.ledger.refused
    assert (refused.container, refused.pod, refused.time_ns) == ("main", "pod-main", 7)
    assert refused.reason.endswith("(a changed annotation: the container stays as it is)")
    after = node.ledger
    assert node.follow(annotations) == Answer(after)
    # Nor after a restart of vmpin: the file has it.
    node.ledger = from_data(to_data(after))
    assert node.ledger == after
    assert node.follow(annotations) == Answer(after)
    assert not changed_containers(after, {"uid-pod-main": annotations})


def test_what_the_container_was_created_with_is_no_change_and_vmpin_set_is_none_either() -> None:
    node = Ledgers(requested("main", annotations=EXCLUSIVE))
    node.ledger = set_policy(MACHINE, node.ledger, MAIN, {"policy": "fixed"}, ON).ledger
    for same in (EXCLUSIVE, {**EXCLUSIVE, "example.com/other": "x"}, {POLICY: " exclusive "},
                 {f"{POLICY}/container.main": "exclusive"}, {**EXCLUSIVE, f"{POLICY}/container.side": "none"}):
        assert not changed_containers(node.ledger, {"uid-pod-main": same})
        assert node.follow(same) == Answer(node.ledger)
    assert node.has() == ("fixed", "2-3")
    node.follow({POLICY: "none"})
    assert node.has() == ("none", "")


def test_peers_keys_are_followed_as_at_a_creation() -> None:
    node = Ledgers(requested("main"), options=GROUPS)
    node.follow({"prefer-isolated-cpus.resource-policy.nri.io": "true"})
    assert node.has() == ("exclusive", "2-3"), "preferred alone: others do"
    crane = {"cpu-policy": "immovable", "topology-awareness": "maybe"}
    answer = node.follow({f"topology.crane.io/{key}": value for key, value in crane.items()})
    assert node.has()[0] == "fixed"
    assert "passed over" in answer.notes[-1]


def test_an_annotation_for_one_container_is_about_that_one() -> None:
    node = Ledgers(requested("main", pod="a"), requested("side", pod="a"))
    handed = {"uid-a": {f"{POLICY}/container.side": "exclusive"}}
    assert changed_containers(node.ledger, handed) == ["side"]
    assert changed_containers(node.ledger, {"uid-a": {POLICY: "exclusive"}}) == ["main", "side"]


def test_pods_that_are_not_handed_over_have_what_they_had() -> None:
    """Other pods' uids, a pod that was made again under its name, and containers that do not run yet."""
    node = Ledgers(requested("main", annotations=EXCLUSIVE))
    assert not changed_containers(node.ledger, {})
    assert not changed_containers(node.ledger, {"uid-other": {}, "": {}, "pod-main": {}, "main": {}})
    created = on_create(MACHINE, node.ledger, requested("new"), ON).ledger
    assert changed_containers(created, {"uid-pod-new": EXCLUSIVE}) == []
    assert follow_annotations(MACHINE, created, ContainerId("new"), EXCLUSIVE, ON, 0) == Answer(created)
    assert follow_annotations(MACHINE, created, ContainerId("gone"), EXCLUSIVE, ON, 0) == Answer(created)
    nameless = node.ledger.with_grants(node.grant()._replace(pod_uid=""))
    assert not changed_containers(nameless, {"": {}})


def test_a_lost_ledger_has_the_annotations_of_creation() -> None:
    node = Ledgers(requested("main", annotations={POLICY: "none"}))
    node.follow(EXCLUSIVE)
    listed = requested("main", annotations={POLICY: "none"})._replace(
        cpuset=node.grant().cpus, state=ContainerState.RUNNING)
    found = on_synchronize(MACHINE, Listed(frozenset({listed.sandbox}), (listed,)), None, ON).ledger
    assert found.grants[MAIN].annotated == asking_digest({POLICY: "none"}, "main")
    assert found.grants[MAIN].guaranteed
    assert changed_containers(found, {"uid-pod-main": EXCLUSIVE}) == [MAIN]


def test_observing_decides_and_changes_no_cpuset() -> None:
    node = Ledgers(requested("main"), options=ON._replace(mode=AllocationMode.OBSERVE))
    answer = node.follow(EXCLUSIVE)
    assert node.has() == ("exclusive", "2-3")
    assert answer.notes
    assert due_updates(MACHINE, node.ledger, node.options) == ()


def test_the_container_that_waits_longest_is_next_and_none_sooner_than_allowed() -> None:
    a, b, c = map(ContainerId, "abc")
    assert next_change([], {a: 1.0}, 5.0) is None
    assert next_change([b, a], {}, 5.0) == (a, 0.0)
    assert next_change([a, b, c], {a: 1.0, b: 2.0}, 3.0) == (c, 0.0)
    assert next_change([a, b], {a: 2.0, b: 1.0}, 3.0) == (b, PAUSE - 2)
    assert next_change([a, b], {a: 2.0, b: 1.0}, 1.0 + PAUSE) == (b, 0.0)


KEYS = st.sampled_from([POLICY, "cpu-near.vmpin.io", "topology.crane.io/topology-result", "cmk.intel.com/mutate",
                        "balloon.balloons.resource-policy.nri.io", "other.example.com"])
ANNOTATIONS = st.dictionaries(
    st.builds(lambda key, part: key + part, KEYS, st.sampled_from(["", "/pod", "/container.main", "/container.x"])),
    st.sampled_from(["none", "exclusive", "\ud800", "x" * 5000, ""]))


@given(ANNOTATIONS, st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8))))
def test_only_annotations_that_ask_for_cpus_count_and_in_any_order(annotations: dict[str, str],
                                                                   others: list[tuple[str, str]]) -> None:
    found = asking_digest(annotations, "main")
    noise = {f"x{key}": value for key, value in others}
    assert asking_digest({**noise, **dict(reversed(annotations.items()))}, "main") == found
    assert asking_digest({key: value for key, value in annotations.items() if asks(key)}, "main") == found
    assert len(found) <= 24
    assert found or not any(asks(key) and not key.endswith("/container.x") for key in annotations
                            if key in (POLICY, f"{POLICY}/container.main"))


def test_every_key_that_an_annotation_is_read_by_crosses() -> None:
    """A key that `annotated_wish` reads, and that does not cross, would be taken for one that was removed."""
    class Read(dict[str, str]):
        def __init__(self) -> None:
            self.keys_read: set[str] = set()

        def __contains__(self, key: object) -> bool:
            self.keys_read.add(str(key))
            return False

    from vmpin.features.allocator.texts.annotations import annotated_wish

    read = Read()
    annotated_wish(read, "main", frozenset(HonouredKeys))
    assert len(read.keys_read) > 30
    assert {key for key in read.keys_read if not asks(key)} == set()


def test_cranes_topology_awareness_does_not_loosen_what_the_configuration_requires() -> None:
    """crane-scheduler pkg/plugins/noderesourcetopology/filter.go: with the key a pod fits in one node, or nowhere."""
    crane = {"topology.crane.io/cpu-policy": "exclusive", "topology.crane.io/topology-awareness": "true"}
    node = Ledgers(requested("main", 5), options=ON._replace(align_required=True))
    assert "node" in node.follow(crane).refusal
    assert node.has() == ("none", "")
    node = Ledgers(requested("main", 5))
    assert not node.follow(crane).refusal
    assert node.has() == ("exclusive", "1,4-7")
