"""Two that decide on the same CPUs are found from the lists of authorities and from cpusets, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruled import authorities

from vmpin.authorities.authority import Authorities, GivenAuthority
from vmpin.authorities.dra_authority import assignments_of
from vmpin.authorities.observed_authority import ObservedAuthority
from vmpin.authorities.rivals import rivals
from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Rank
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId

EIGHT = CpuSet(range(8))


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def state_of(pods: Mapping[str, str | None]) -> DesiredState:
    """Pods with a container of their name, and its cpuset."""
    return DesiredState({SandboxId(f"s-{name}"): SandboxState(
        SandboxId(f"s-{name}"), "nri", Pod("shop", name, f"uid-{name}"), {ContainerId(name): ContainerRecord(
            Container(ContainerId(name), name, None if cpuset is None else cpus(cpuset)), Source.NRI, 1)})
        for name, cpuset in pods.items()})


def static(default: str, **entries: str) -> CpuManagerState:
    return CpuManagerState("static", cpus(default), {(f"uid-{pod}", pod): cpus(text) for pod, text in entries.items()})


def found(on_node: Authorities, state: DesiredState) -> list[tuple[str, str, tuple[str, ...], str]]:
    return [(" and ".join(rival.authorities), str(rival.cpus), rival.sandboxes, rival.what) for rival in rivals(
        on_node.listing(state), on_node.rulings(state), state.sandboxes.values(), EIGHT)]


def with_claims(state: DesiredState, kubelet: CpuManagerState | None, **claims: str) -> Authorities:
    """dra-driver-cpu's claims, each of the pod of its name."""
    assignments = assignments_of({pod: cpus(text) for pod, text in claims.items()},
                                 {pod: frozenset([f"uid-{pod}"]) for pod in claims}, state)
    return authorities(kubelet, GivenAuthority(Rank.DRA, assignments))


def test_the_kubelet_and_claims_that_give_a_cpu_to_two_pods_are_rivals() -> None:
    state = state_of({"web": "2-3", "db": "3-4", "log": "0-1,5-7"})
    on_node = with_claims(state, static("0-1,4-7", web="2-3"), db="3-4")
    assert found(on_node, state)[0] == (
        "kubelet and dra", "3-4", ("s-db", "s-web"),
        "CPUs 3-4 are given to db of s-db by dra, and to web of s-web by kubelet, which counts")


def test_a_claim_on_cpus_that_the_kubelet_shares_is_a_rival_before_its_pod_runs() -> None:
    state = state_of({"log": "0-1,4-7"})
    on_node = with_claims(state, static("0-7"), db="2-3")
    assert found(on_node, state) == [
        ("kubelet and dra", "2-3", ("uid-db",),
         "CPUs 2-3 are given to pod uid-db by dra, and to all as shared CPUs by kubelet, which counts")]


def test_two_lists_that_agree_are_none() -> None:
    state = state_of({"web": "2-3", "log": "0-1,4-7"})
    assert found(with_claims(state, static("0-1,4-7", web="2-3"), web="2-3"), state) == []


@pytest.mark.parametrize(("pods", "kubelet", "rival"), [
    # A balloon of another plugin that is moved onto a container's exclusive CPUs.
    ({"web": "2-3", "balloon": "3-5"}, static("0-1,4-7", web="2-3"),
     ("kubelet and observed", "3", ("s-web", "s-balloon"),
      "CPUs 3 are given to web of s-web by kubelet, and another program lets balloon of s-balloon use them")),
    # The exclusive container itself is moved.
    ({"web": "6-7", "log": "0-1,4-5"}, static("0-1,4-7", web="2-3"),
     ("kubelet and observed", "2-3", ("s-web",),
      "CPUs 2-3 are given to web of s-web by kubelet, and another program has set its cpuset to 6-7")),
    # A balloon that has CPUs of the pool to itself.
    ({"balloon": "6-7", "log": "0-1,4-5"}, static("0-1,4-7", web="2-3"),
     ("kubelet and observed", "6-7", ("s-balloon",),
      "CPUs 6-7 are shared by kubelet, and another program gives them to balloon of s-balloon alone"))])
def test_cpusets_that_contradict_the_checkpoint_are_rivals(
        pods: dict[str, str | None], kubelet: CpuManagerState, rival: tuple[str, str, tuple[str, ...], str]) -> None:
    assert rival in found(authorities(kubelet), state_of(pods))


def test_claims_that_the_cpusets_contradict_are_rivals() -> None:
    """dra and observed disagree: the driver keeps others off claimed CPUs. Those that share may have different
    cpusets, as it does not widen them when it releases a claim."""
    state = state_of({"db": "4-5", "web": "0-1", "log": "2-4"})
    assert [(by, of) for by, of, _, _ in found(with_claims(state, None, db="4-5"), state)] == [
        ("dra and observed", "4")]


def test_two_pods_that_share_a_claim_are_no_rivals() -> None:
    state = state_of({"web": "2-3", "db": "2-3", "log": "0-1,3-7"})
    assignments = assignments_of({"claim": cpus("2-3")}, {"claim": frozenset(["uid-web", "uid-db"])}, state)
    on_node = authorities(None, GivenAuthority(Rank.DRA, assignments))
    assert {(of, whose) for _, of, whose, _ in found(on_node, state)} == {
        ("3", ("s-web", "s-log")), ("3", ("s-db", "s-log"))}


@pytest.mark.parametrize(("pods", "kubelet"), [
    ({"web": "2-3", "log": "0-1,4-7", "shop": "0-1,4-7"}, static("0-1,4-7", web="2-3")),
    ({"web": "2-3", "log": "0-1,4-7"}, static("0-1,4-7", web="2-3")),  # it is alone in the pool
    ({"web": "1-3", "log": "0-1,4-7", "shop": "0-1,4-7"}, static("0-1,4-7", web="2-3")),  # mixed CPUs
    ({"web": "2-3", "agent": "0", "log": "1,4-7", "shop": "1,4-7"}, static("1,4-7", web="2-3")),  # reserved CPUs
    # The only pod with the pool, beside system pods on reserved CPUs: outside the pool (StarlingX), and within it
    # (OpenShift's workload partitioning).
    ({"web": "2-3", "agent": "0", "proxy": "0", "log": "1,4-7"}, static("1,4-7", web="2-3")),
    ({"web": "2-3", "agent": "0-1", "proxy": "0-1", "log": "0-1,4-7"}, static("0-1,4-7", web="2-3")),
    ({"web": "2-3", "vm": None, "log": "0-1,4-7"}, static("0-1,4-7", web="2-3")),  # no cpuset of a VM's is known
    ({"a": "0-3", "b": "2-7", "c": "7"}, None)])  # nothing lists CPUs
def test_what_one_authority_decides_is_no_rival(pods: dict[str, str | None], kubelet: CpuManagerState | None) -> None:
    state = state_of(pods)
    assert found(authorities(kubelet, ObservedAuthority(lambda: EIGHT)), state) == []


def test_a_configured_pool_beside_balloons_is_a_rival() -> None:
    """Two pods share a balloon outside node.shared_pool, so the CPUs are no container's own."""
    state = state_of({"a": "4-5", "b": "4-5", "c": "0-3"})
    assert {(by, of, whose) for by, of, whose, _ in found(authorities(None, pool=cpus("0-3")), state)} == {
        ("pool and observed", "4-5", ("s-a", "s-b")), ("pool and observed", "4-5", ("s-b", "s-a"))}


SETS = st.sets(st.integers(0, 7), min_size=1, max_size=4)


@given(st.lists(SETS, min_size=1, max_size=4), st.sets(st.integers(0, 7)))
def test_a_kubelet_alone_is_never_a_rival(owned: list[set[int]], online: set[int]) -> None:
    """Its cpusets: each CPU has one owner, all other containers have the default set."""
    left, entries = set(range(1, 8)), {}
    for number, wanted in enumerate(owned):
        if wanted & left:
            entries[f"p{number}"] = str(CpuSet(wanted & left))
            left -= wanted
    default = str(CpuSet(left | {0}))
    state = state_of({**entries, "log": default, "shop": default})
    assert found(authorities(static(default, **entries)), state) == []
