"""Every value of every key, and every error."""

from __future__ import annotations

import json

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import (
    AllocationOptions,
    DefaultPolicy,
    GroupRule,
    HonouredKeys,
)
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuKind, CpuPolicy, CpuWish, Refusal, SmtUse
from vmpin.features.allocator.grants.eligibility import PolicyRuling, amount_after, amount_of, ruling
from vmpin.features.allocator.grants.ledger import CpuAmount
from vmpin.features.allocator.texts.annotation_values import AnnotatedWish, AnnotationError
from vmpin.features.allocator.texts.annotations import annotated_wish, with_changes
from vmpin.features.allocator.texts.grant_data import wish_data, wish_of

ALL = frozenset(HonouredKeys)
CRANE = "topology.crane.io"
NRI = "resource-policy.nri.io"


def wish(annotations: dict[str, str], container: str = "app") -> CpuWish:
    return annotated_wish(annotations, container, ALL).wish


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("cpu-policy", "none", CpuWish(CpuPolicy.NONE)),
    ("cpu-policy", "exclusive", CpuWish(CpuPolicy.EXCLUSIVE)),
    ("cpu-policy", "fixed", CpuWish(CpuPolicy.FIXED)),
    ("cpu-policy", "numa", CpuWish(CpuPolicy.NUMA)),
    ("cpu-policy", "infra", CpuWish(CpuPolicy.INFRA)),
    ("cpu-policy", " group:dpdk ", CpuWish(CpuPolicy.GROUP, "dpdk")),
    ("cpu-align", "node", CpuWish(align=Alignment.NODE)),
    ("cpu-align", "cache!", CpuWish(align=Alignment.CACHE, align_required=True)),
    ("cpu-align", "core", CpuWish(align=Alignment.CORE)),
    ("cpu-align", "socket!", CpuWish(align=Alignment.SOCKET, align_required=True)),
    ("cpu-smt", "prefer", CpuWish(smt=SmtUse.PREFER)),
    ("cpu-smt", "require", CpuWish(smt=SmtUse.REQUIRE)),
    ("cpu-smt", "spread", CpuWish(smt=SmtUse.SPREAD)),
    ("cpu-kind", "any", CpuWish(kind=CpuKind.ANY)),
    ("cpu-kind", "performance", CpuWish(kind=CpuKind.PERFORMANCE)),
    ("cpu-kind", "efficient", CpuWish(kind=CpuKind.EFFICIENT)),
    ("cpu-kind", "isolated", CpuWish(kind=CpuKind.ISOLATED)),
    ("cpu-near", "devices", CpuWish(near="devices")),
    ("cpu-near", "0000:3b:00.0", CpuWish(near="0000:3b:00.0")),
    ("cpu-near", "ens1f0", CpuWish(near="ens1f0")),
    ("cpu-near", "nodes:0,2", CpuWish(near="nodes:0,2")),
    ("cpu-spare", "match", CpuWish()),
    ("cpu-spare", "0", CpuWish(spare="0")),
    ("cpu-spare", "007", CpuWish(spare="7")),
    ("cpu-spare", "own", CpuWish(spare="own")),
])
def test_each_value_is_read_written_and_read_again(key: str, value: str, expected: CpuWish) -> None:
    assert wish({f"{key}.vmpin.io": value}) == expected
    assert with_changes(CpuWish(), {key.removeprefix("cpu-"): value.strip()}) == expected
    assert wish_of(json.loads(json.dumps(wish_data(expected)))) == expected


@pytest.mark.parametrize(("key", "value"), [
    ("cpu-policy", ""), ("cpu-policy", "Exclusive"), ("cpu-policy", "group"), ("cpu-policy", "group:"),
    ("cpu-policy", "group:a/b"), ("cpu-policy", "group:" + "a" * 64), ("cpu-policy", "exclusive:a"),
    ("cpu-align", "node!!"), ("cpu-align", "!"), ("cpu-align", "die"), ("cpu-smt", "none"), ("cpu-kind", "P"),
    ("cpu-near", ""), ("cpu-near", "../../etc"), ("cpu-near", "nodes:"), ("cpu-near", "nodes:0-99999"),
    ("cpu-near", "a" * 16), ("cpu-near", ".."), ("cpu-near", "ethé" * 4), ("cpu-near", "eth\x1b"),
    ("cpu-near", "\x1f" + "eth"), ("cpu-near", "eth\u202e0"), ("cpu-near", "eth\udc80"), ("cpu-near", "eth0\0"),
    ("cpu-near", "nodes:" + "0," * 200 + "0"), ("cpu-policy", "group:a\x7f"), ("cpu-spare", "1\x07"),
    ("cpu-policy", "exclusive" * 100),
    ("cpu-spare", "-1"), ("cpu-spare", "1.5"), ("cpu-spare", "513"), ("cpu-spare", "٣"),
])
def test_an_error_names_the_key_and_the_value(key: str, value: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        wish({f"{key}.vmpin.io/pod": value})
    assert str(caught.value).startswith(f"{key}.vmpin.io/pod=")
    assert caught.value.value == value


def test_a_long_or_unprintable_value_does_not_fill_the_log() -> None:
    with pytest.raises(AnnotationError) as caught:
        wish({"cpu-smt.vmpin.io": "\x1b[2J\n" + "x" * 10_000})
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("value", "message"), [
    ("eth\x1b[2J", "cpu-near.vmpin.io=eth\\x1b[2J: it has characters that cannot be printed"),
    ("eth\u202e", "cpu-near.vmpin.io=eth\\u202e: it has characters that cannot be printed"),
    ("nodes:" + "0," * 200 + "0",
     f"cpu-near.vmpin.io=nodes:{'0,' * 57}…: it has 407 characters, more than 256"),
    ("\x1b" * 300, "cpu-near.vmpin.io=" + r"\x1b" * 30 + "…: it has 300 characters, more than 256"),
    ("e" * 15 + "é", "cpu-near.vmpin.io=eeeeeeeeeeeeeeeé: it is neither devices, a PCI address (0000:3b:00.0), a "
     "network device nor nodes:LIST")])
def test_text_of_a_pod_s_author_is_shown_escaped_and_short(value: str, message: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        wish({"cpu-near.vmpin.io": value})
    assert str(caught.value) == message
    with pytest.raises(AnnotationError):
        with_changes(CpuWish(), {"near": value})


def test_a_value_may_end_in_a_line_break() -> None:
    assert wish({"cpu-near.vmpin.io": " nodes:0-1\n"}).near == "nodes:0-1"


def test_the_container_s_own_key_comes_before_the_pod_s() -> None:
    keys = {"cpu-policy.vmpin.io": "none", "cpu-policy.vmpin.io/pod": "fixed",
            "cpu-policy.vmpin.io/container.app": "exclusive"}
    assert wish(keys).policy is CpuPolicy.EXCLUSIVE
    assert wish(keys, "other").policy is CpuPolicy.FIXED
    assert wish({"cpu-policy.vmpin.io": "none"}).policy is CpuPolicy.NONE
    # A bad value for another container is none of this one's.
    assert wish({"cpu-policy.vmpin.io/container.app": "??"}, "other").policy is None


@pytest.mark.parametrize(("annotations", "expected"), [
    ({f"{CRANE}/cpu-policy": "none"}, CpuWish(CpuPolicy.NONE)),
    ({f"{CRANE}/cpu-policy": "exclusive"}, CpuWish(CpuPolicy.EXCLUSIVE)),
    ({f"{CRANE}/cpu-policy": "numa", f"{CRANE}/topology-awareness": "true"},
     CpuWish(CpuPolicy.NUMA, align=Alignment.NODE, exclude_reserved=True)),
    ({f"{CRANE}/cpu-policy": "immovable", f"{CRANE}/topology-awareness": "false"}, CpuWish(CpuPolicy.FIXED)),
    ({f"{CRANE}/exclude-reserved-cpus": "true"}, CpuWish(exclude_reserved=True)),
    ({f"{CRANE}/topology-result": '[{"name":"node1","type":"Node","resources":{"capacity":{"cpu":"4"}}}]'},
     CpuWish(near="nodes:1")),
    ({f"{CRANE}/topology-result": "[]"}, CpuWish()),
    ({f"prefer-shared-cpus.{NRI}": "true"}, CpuWish(CpuPolicy.NONE)),
    ({f"prefer-reserved-cpus.{NRI}/pod": "true"}, CpuWish(CpuPolicy.INFRA)),
    ({f"require-isolated-cpus.{NRI}/container.app": "true"}, CpuWish(CpuPolicy.EXCLUSIVE, kind=CpuKind.ISOLATED)),
    ({f"prefer-isolated-cpus.{NRI}": "false"}, CpuWish()),
    ({f"hide-hyperthreads.{NRI}": "true"}, CpuWish(smt=SmtUse.SPREAD)),
    ({f"balloon.balloons.{NRI}": "big"}, CpuWish(CpuPolicy.GROUP, "big")),
    ({"cmk.intel.com/mutate": "true"}, CpuWish(CpuPolicy.EXCLUSIVE, smt=SmtUse.REQUIRE)),
    ({f"{CRANE}/cpu-policy": "exclusive", "cpu-policy.vmpin.io": "fixed"}, CpuWish(CpuPolicy.FIXED)),
    ({f"{CRANE}/cpu-policy": "exclusive", "cpu-smt.vmpin.io": "require"},
     CpuWish(CpuPolicy.EXCLUSIVE, smt=SmtUse.REQUIRE)),
])
def test_the_keys_of_peers(annotations: dict[str, str], expected: CpuWish) -> None:
    assert wish(annotations) == expected
    own = {key: value for key, value in annotations.items() if "vmpin" in key}
    assert annotated_wish(annotations, "app", frozenset()) == annotated_wish(own, "app", frozenset())


@pytest.mark.parametrize(("key", "value"), [
    (f"{CRANE}/cpu-policy", "static"), (f"{CRANE}/cpu-policy", "Exclusive"), (f"{CRANE}/cpu-policy", " exclusive"),
    (f"{CRANE}/topology-awareness", "yes"), (f"{CRANE}/topology-result", "{"),
    (f"{CRANE}/topology-result", "[1]"),
    (f"{CRANE}/topology-result", '[{"name":"rack","type":"Node","resources":{"capacity":{"cpu":"2"}}}]'),
    (f"{CRANE}/topology-result", '[{"name":"node99999","type":"Node","resources":{"capacity":{"cpu":"2"}}}]'),
    (f"{CRANE}/topology-result", "[" * 100_000), (f"prefer-shared-cpus.{NRI}", "yes"),
    (f"prefer-reserved-cpus.{NRI}", ""), (f"require-isolated-cpus.{NRI}", " true"), (f"hide-hyperthreads.{NRI}", "on"),
])
def test_a_value_that_the_peer_passes_over_is_passed_over_with_a_note(key: str, value: str) -> None:
    """crane pkg/ensurance/cm/cpumanager/util.go (GetPodCPUPolicy, GetPodTopologyResult), crane-scheduler
    pkg/plugins/noderesourcetopology/helper.go (IsPodAwareOfTopology), nri-plugins
    cmd/plugins/topology-aware/policy/pod-preferences.go: the pod starts as if the key were not there."""
    found = annotated_wish({key: value}, "app", ALL)
    assert found.wish == CpuWish()
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f"{key}=")
    assert len(found.notes[0]) < 400


def test_a_balloon_that_no_group_can_be_named_as_is_an_error_as_an_unknown_balloon_is() -> None:
    """nri-plugins cmd/plugins/balloons/policy/balloons-policy.go, chooseBalloonDef."""
    with pytest.raises(AnnotationError, match="balloon"):
        wish({f"balloon.balloons.{NRI}": "a/b"})


@pytest.mark.parametrize("zones", [
    '[{"name":"node1","type":"Zone","resources":{"capacity":{"cpu":"4"}}}]',
    '[{"name":"node1","resources":{"capacity":{"cpu":"4"}}}]', '[{"name":"node1","type":"Node"}]',
    '[{"name":"node1","type":"Node","resources":{"capacity":{"memory":"4Gi"}}}]', "[]"])
def test_zones_without_cpus_and_of_other_types_do_not_count(zones: str) -> None:
    """crane pkg/ensurance/cm/cpumanager/cpu_manager.go, fromZoneListToTopologyResult."""
    assert annotated_wish({f"{CRANE}/topology-result": zones}, "app", ALL) == AnnotatedWish(CpuWish(), "crane")


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("t", True), ("TRUE", True), ("True", True),
                                                 ("0", False), ("F", False), ("false", False)])
def test_booleans_are_those_of_go(value: str, expected: bool) -> None:
    """crane-scheduler and nri-plugins read them by strconv.ParseBool."""
    assert wish({f"{CRANE}/topology-awareness": value}).align is (Alignment.NODE if expected else None)
    assert wish({f"hide-hyperthreads.{NRI}": value}).smt is (SmtUse.SPREAD if expected else None)


@pytest.mark.parametrize("value", ["True", "1", "yes", "", " true"])
def test_two_keys_are_only_true_as_this_word(value: str) -> None:
    """crane pkg/utils/cpuset.go (PodExcludeReservedCPUs), nri-plugins pkg/resmgr/cache/container.go
    (PreserveCpuResources): all other values are as if the key were not there."""
    assert wish({f"{CRANE}/exclude-reserved-cpus": value}) == CpuWish()
    assert not annotated_wish({f"cpu.preserve.{NRI}": value}, "app", ALL).left_alone


def test_cmk_mutates_for_three_words() -> None:
    """CMK intel/webhook.py, is_mutation_required."""
    asks = CpuWish(CpuPolicy.EXCLUSIVE, smt=SmtUse.REQUIRE)
    words = ("true", "True", "1", "TRUE", "on", "false", " true", "")
    assert [wish({"cmk.intel.com/mutate": word}) == asks for word in words] == [True] * 3 + [False] * 5


@pytest.mark.parametrize(("given", "expected"), [
    (("prefer-reserved-cpus", "prefer-shared-cpus", "require-isolated-cpus"), CpuWish(CpuPolicy.INFRA)),
    (("prefer-shared-cpus", "require-isolated-cpus"), CpuWish(CpuPolicy.NONE)),
    (("prefer-isolated-cpus", "hide-hyperthreads"),
     CpuWish(CpuPolicy.EXCLUSIVE, smt=SmtUse.SPREAD, kind=CpuKind.ISOLATED)),
])
def test_which_preference_of_topology_aware_comes_first(given: tuple[str, ...], expected: CpuWish) -> None:
    """nri-plugins cmd/plugins/topology-aware/policy/pod-preferences.go, cpuAllocationPreferences."""
    assert wish({f"{key}.{NRI}": "true" for key in given}) == expected


@pytest.mark.parametrize(("annotations", "isolated"), [
    ({"prefer-isolated-cpus./pod": "true", "require-isolated-cpus.": "false"}, True),
    ({"prefer-isolated-cpus./pod": "false", "require-isolated-cpus.": "true"}, False),
    ({"prefer-isolated-cpus.": "true", "require-isolated-cpus./container.app": "false"}, False),
    ({"prefer-isolated-cpus./pod": "true", "require-isolated-cpus./pod": "false"}, False),
])
def test_the_key_for_fewer_containers_counts_of_the_two_for_isolated_cpus(annotations: dict[str, str],
                                                                         isolated: bool) -> None:
    """nri-plugins cmd/plugins/topology-aware/policy/pod-preferences.go, isolatedCPUsPreference."""
    keys = {key.replace(".", f".{NRI}", 1): value for key, value in annotations.items()}
    assert (wish(keys).kind is CpuKind.ISOLATED) is isolated


@pytest.mark.parametrize(("name", "policy"), [("reserved", CpuPolicy.INFRA), ("default", CpuPolicy.NONE)])
def test_the_balloons_that_are_built_in(name: str, policy: CpuPolicy) -> None:
    """nri-plugins cmd/plugins/balloons/policy/balloons-policy.go, fillBuiltinBalloonDefs."""
    assert wish({f"balloon.balloons.{NRI}/container.app": name}) == CpuWish(policy)


def test_preserve_of_nri_plugins_leaves_the_container_alone() -> None:
    assert annotated_wish({f"cpu.preserve.{NRI}": "true"}, "app", ALL).left_alone
    assert not annotated_wish({f"cpu.preserve.{NRI}": "true", "cpu-policy.vmpin.io": "none"}, "app", ALL).left_alone


@pytest.mark.parametrize(("changes", "match"), [
    ({"polcy": "fixed"}, "polcy=fixed: there is no such key"), ({"policy": "best"}, "policy=best"),
    ({"cpu-smt.vmpin.io": "x"}, r"cpu-smt\.vmpin\.io=x")])
def test_a_change_names_what_is_wrong(changes: dict[str, str], match: str) -> None:
    with pytest.raises(AnnotationError, match=match):
        with_changes(CpuWish(), changes)


@pytest.mark.parametrize(("shares", "quota", "period", "expected"), [
    (2048, 200_000, 100_000, CpuAmount(2000, 2000, 2)),
    (1024, 200_000, 100_000, CpuAmount(1000, 2000, 0)),
    (2046, 199_900, 100_000, CpuAmount(1999, 1999, 0)),
    (2048, 200_001, 100_000, CpuAmount(2000, 2001, 0)),
    (2047, 200_000, 100_000, CpuAmount(2000, 2000, 0)),
    (2048, None, None, CpuAmount(2000, 0, 0)),
    (2048, -1, 100_000, CpuAmount(2000, 0, 0)),
    (3072, 150_000, 50_000, CpuAmount(3000, 3000, 3)),
    (2, None, 100_000, CpuAmount(2, 0, 0)),
    (None, None, None, CpuAmount()),
    (262_144, 25_600_000, 100_000, CpuAmount(256_000, 256_000, 256)),
    (262_144, 30_000_000, 100_000, CpuAmount(256_000, 300_000, 0)),
    (262_144, 20_000_000, 100_000, CpuAmount(256_000, 200_000, 0)),
    (4096, 400_000, None, CpuAmount(4000, 4000, 4)),
])
def test_whole_cpus_are_exact(shares: int | None, quota: int | None, period: int | None, expected: CpuAmount) -> None:
    assert amount_of(shares, quota, period) == expected


def test_beyond_256_cpus_the_qos_class_has_the_request() -> None:
    """The kernel's largest cpu.shares is that of 256 CPUs: a pod's author could ask for fewer than the limit."""
    assert amount_of(262_144, 30_000_000, 100_000, guaranteed=True) == CpuAmount(300_000, 300_000, 300)
    assert amount_of(2048, 300_000, 100_000, guaranteed=True) == CpuAmount(2000, 3000, 0)


def test_an_update_keeps_what_it_does_not_name() -> None:
    before = CpuAmount(2000, 2000, 2)
    assert amount_after(before, None, None, None) == before
    assert amount_after(before, 2048, None, None) == before
    assert amount_after(before, 3072, 300_000, 100_000) == CpuAmount(3000, 3000, 3)
    assert amount_after(before, None, 300_000, 100_000) == CpuAmount(2000, 3000, 0)
    assert amount_after(CpuAmount(2000, 3000, 0), None, 200_000, 100_000) == before


OPTIONS = AllocationOptions(reserved=CpuSet((0,)), groups={
    "big": GroupRule(namespaces=frozenset({"ml"})), "set": GroupRule(CpuSet((7,))), "gone": GroupRule(CpuSet((0, 9)))})
MACHINE = Topology.build(CpuSet(range(8)))
TWO = CpuAmount(2000, 2000, 2)


@pytest.mark.parametrize(("asks", "namespace", "amount", "expected"), [
    (CpuWish(CpuPolicy.EXCLUSIVE), "web", TWO, PolicyRuling(CpuPolicy.EXCLUSIVE)),
    (CpuWish(CpuPolicy.INFRA), "kube-system", CpuAmount(), PolicyRuling(CpuPolicy.INFRA)),
    (CpuWish(CpuPolicy.GROUP, "x"), "web", TWO, PolicyRuling(CpuPolicy.GROUP, "web/x")),
    (CpuWish(CpuPolicy.GROUP, "big"), "ml", TWO, PolicyRuling(CpuPolicy.GROUP, "big")),
    (CpuWish(CpuPolicy.GROUP, "set"), "web", CpuAmount(100), PolicyRuling(CpuPolicy.GROUP, "set")),
    (CpuWish(CpuPolicy.EXCLUSIVE, kind=CpuKind.ISOLATED), "kube-system", TWO, PolicyRuling(CpuPolicy.EXCLUSIVE)),
    (CpuWish(CpuPolicy.NONE, kind=CpuKind.ISOLATED), "web", CpuAmount(), PolicyRuling(CpuPolicy.NONE)),
])
def test_what_a_container_may_have(asks: CpuWish, namespace: str, amount: CpuAmount, expected: PolicyRuling) -> None:
    assert ruling(MACHINE, AnnotatedWish(asks, "vmpin"), namespace, False, amount, OPTIONS) == expected


@pytest.mark.parametrize(("asks", "namespace", "amount", "words"), [
    (CpuWish(CpuPolicy.EXCLUSIVE), "web", CpuAmount(500, 1500), ["cpu-policy.vmpin.io=exclusive", "0.5", "1.5"]),
    (CpuWish(CpuPolicy.FIXED), "web", CpuAmount(2000), ["cpu-policy.vmpin.io=fixed", "limit none"]),
    (CpuWish(CpuPolicy.INFRA), "web", TWO, ["cpu-policy.vmpin.io=infra", "privileged_namespaces", "web"]),
    (CpuWish(CpuPolicy.EXCLUSIVE, kind=CpuKind.ISOLATED), "web", TWO, ["cpu-kind.vmpin.io=isolated", "web"]),
    (CpuWish(CpuPolicy.FIXED, kind=CpuKind.ISOLATED), "kube-system", TWO, ["fixed", "isolated"]),
    (CpuWish(CpuPolicy.GROUP, "big"), "web", TWO, ["group:big", "ml", "web"]),
    (CpuWish(CpuPolicy.GROUP, "x"), "web", CpuAmount(100), ["group:x", "whole CPUs"]),
    (CpuWish(CpuPolicy.GROUP, "gone"), "web", TWO, ["group:gone", "allocate.groups", "0,9", "none is online"]),
])
def test_what_a_container_may_not_have(asks: CpuWish, namespace: str, amount: CpuAmount, words: list[str]) -> None:
    why = ruling(MACHINE, AnnotatedWish(asks, "vmpin"), namespace, False, amount, OPTIONS)
    assert isinstance(why, Refusal)
    assert all(word in why.reason for word in words), why
    peer = ruling(MACHINE, AnnotatedWish(asks, "crane"), namespace, False, amount, OPTIONS)
    assert isinstance(peer, PolicyRuling)
    assert peer == PolicyRuling(CpuPolicy.NONE, note=f"crane: {why.reason}")


@pytest.mark.parametrize(("default", "guaranteed", "amount", "expected"), [
    (DefaultPolicy.NONE, True, TWO, CpuPolicy.NONE),
    (DefaultPolicy.GUARANTEED, True, TWO, CpuPolicy.EXCLUSIVE),
    (DefaultPolicy.GUARANTEED, False, TWO, CpuPolicy.NONE),
    (DefaultPolicy.EXCLUSIVE, False, TWO, CpuPolicy.EXCLUSIVE),
    (DefaultPolicy.EXCLUSIVE, True, CpuAmount(1500, 1500), CpuPolicy.NONE),
])
def test_without_an_annotation_the_default_counts(default: DefaultPolicy, guaranteed: bool, amount: CpuAmount,
                                                  expected: CpuPolicy) -> None:
    found = ruling(MACHINE, AnnotatedWish(), "web", guaranteed, amount, OPTIONS._replace(default=default))
    assert found == PolicyRuling(expected)
