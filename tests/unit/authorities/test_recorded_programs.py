"""Programs that set cpusets, as they were recorded (tests/data): which container owns which CPUs in each step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nri_events import after
from ruled import authorities

from vmpin.authorities.authority import Authorities
from vmpin.authorities.observed_authority import ObservedAuthority
from vmpin.authorities.rivals import rivals
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, reduce
from vmpin.domain.events import CpusetSeen, Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import Node as PlacedNode
from vmpin.placement.ownership import claims_of
from vmpin.placement.rulings import effective_containers
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer, NriEvent, NriPod, PodEvent, Synced
from vmpin.wire.nri_enums import RUNNING, Verb

DATA = Path(__file__).parents[2] / "data"
KOORDLET = json.loads((DATA / "koordinator-cpusets.json").read_text())
CRIO = json.loads((DATA / "crio-1.37-steps.json").read_text())["steps"]


def cpus(text: str | None) -> CpuSet | None:
    return None if text is None else CpuSet.parse(text)


def pod(name: str, handler: str = "", annotations: dict[str, str] | None = None) -> NriPod:
    return NriPod(SandboxId(f"s-{name}"), name, "tests", f"uid-{name}", handler, 0, annotations or {}, "/tests")


def container(of: str, name: str, cpuset: str | None) -> NriContainer:
    return NriContainer(ContainerId(f"{of}-{name}"), SandboxId(f"s-{of}"), name, RUNNING, cpus(cpuset), {}, 0)


def event(call: list[Any], now: int) -> NriEvent:
    """A recorded call."""
    verb, *rest = call
    if verb == "LIST":
        pods = dict.fromkeys(of for of, _, _ in rest[0])
        return Synced(tuple(map(pod, pods)), tuple(container(*listed) for listed in rest[0]), now)
    if verb == "RUN_POD":
        return PodEvent(Verb.RUN_POD, pod(*rest), now)
    of, name, cpuset, *requested = rest
    return ContainerEvent(Verb[verb], pod(of), container(of, name, cpuset), now, cpus(*requested or [None]))


def states(steps: list[dict[str, Any]]) -> Iterator[tuple[str, DesiredState]]:
    """The state after each step, as a plugin has it."""
    state, now = DesiredState(), 0
    for step in steps:
        for call in step["calls"]:
            now += 1
            state = after([event(call, now)], state)
        yield step["step"], state


def owned(on_node: Authorities, state: DesiredState, online: CpuSet) -> dict[str, str]:
    """The CPUs of each owner, with the shared ones in its cpuset after a +."""
    rulings, node = on_node.rulings(state), PlacedNode(Topology.build(online))
    found = {}
    for sandbox in state.sandboxes.values():
        claim = claims_of(effective_containers(sandbox, rulings), node)
        shared = dict(claim.shared)
        found.update({str(name): str(own) + (f"+{shared[name]}" if name in shared else "")
                      for name, own in claim.exclusive})
    return found


TWO = CpuSet(range(2))
STATIC = CpuManagerState("static", CpuSet((0,)), {("uid-mixed", "main"): CpuSet((1,))})


def of_crio(on_node: Callable[[], Authorities]) -> dict[str, dict[str, str]]:
    made = on_node()
    return {step: owned(made, state, TWO) for step, state in states(CRIO)}


def test_crios_mixed_cpus_are_the_checkpoints_entry_and_shared_ones() -> None:
    """Also once CRI-O was started again: it lists the CPUs with the shared ones."""
    found = of_crio(lambda: authorities(STATIC))
    assert [found[step].get("mixed-main") for step in ("mixed CPUs", "the kubelet's update", "CRI-O restarted")] == [
        "1+0"] * 3
    assert {owner for owners in found.values() for owner in owners} == {"mixed-main"}


def test_crio_adds_the_shared_cpus_after_the_request_so_only_the_report_of_the_creation_has_them() -> None:
    (step,) = (step for step in CRIO if step["step"] == "mixed CPUs")
    assert [call[3] for call in step["calls"][1:3]] == ["1", "0-1"]
    assert step["cgroups"]["main"]["cpuset.cpus"] == "0-1"


def test_without_a_checkpoint_crios_workloads_own_what_no_other_pod_may_use() -> None:
    found = of_crio(lambda: authorities(None, ObservedAuthority(lambda: TWO)))
    assert found["workload"] == {"mgmt-agent": "0"}
    assert found["workload with the author's cpuset"] == {"mgmt-agent": "0", "mgmt-chosen-agent": "1"}
    assert found["mixed CPUs"] == {}  # its container may use both CPUs


def test_a_cpuset_that_a_pods_author_chose_in_crios_workload_takes_no_cpu_from_its_owner() -> None:
    """CRI-O gives it to the container. It is another pod's by the checkpoint, and two decide."""
    on_node = authorities(STATIC)
    state = dict(states(CRIO))["CRI-O restarted"]
    assert owned(on_node, state, TWO) == {"mixed-main": "1+0"}
    (chosen,) = effective_containers(state.sandboxes[SandboxId("s-mgmt-chosen")], on_node.rulings(state))
    assert (chosen.exclusive, chosen.cpuset, chosen.stale_cpuset) == (False, None, CpuSet((1,)))
    assert ("s-mixed", "s-mgmt-chosen") in [rival.sandboxes for rival in rivals(
        on_node.listing(state), on_node.rulings(state), state.sandboxes.values(), TWO)]


def of_koordlet(pods: str, best_effort: bool = False, policy: str = "none") -> DesiredState:
    """The pods of these names, with the cpusets of koordlet's answers to NRI, and those that it writes to the cgroups
    of best-effort ones."""
    answers = {row["pod"]: row["cpuset"] for row in KOORDLET["hook"] if row["policy"] == policy}
    state = after([ContainerEvent(Verb.POST_START, pod(name), container(name, "main", answers[name] or None), 1)
                   for name in pods.split()])
    for name, written in KOORDLET["best_effort"].items() if best_effort else ():
        state = reduce(state, CpusetSeen(SandboxId(f"s-{name}"), ContainerId(f"{name}-main"), CpuSet.parse(written),
                                         Source.CGROUP, 2))
    return state


EIGHT = CpuSet(range(8))


def observed() -> Authorities:
    return authorities(None, ObservedAuthority(lambda: EIGHT))


def test_pods_of_koordinators_classes_own_what_its_annotation_gives_them() -> None:
    assert owned(observed(), of_koordlet("lse lsr ls plain numa"), EIGHT) == {"lse-main": "2-3", "lsr-main": "4-5"}


def test_of_an_lsr_pod_best_effort_pods_use_a_part_and_of_an_lse_pod_none() -> None:
    """In a VM they have no cgroup and no cpuset, so every CPU counts as theirs, too."""
    pods = "lse lsr ls numa be"
    assert owned(observed(), of_koordlet(pods, best_effort=True), EIGHT) == {"lse-main": "2-3", "lsr-main": "5+4"}
    assert owned(observed(), of_koordlet(pods), EIGHT) == {}


def test_koordinators_annotation_itself_gives_no_cpu() -> None:
    """A pod's author can write it; koordlet gives the container that cpuset, and another pod may use its CPUs then."""
    state = of_koordlet("lse lsr ls numa")
    author = ContainerEvent(Verb.POST_START, pod("author", "", {
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"2"}'}), container("author", "main", "2"), 3)
    assert owned(observed(), after([author], state), EIGHT) == {"lse-main": "3+2", "lsr-main": "4-5"}
    unset = author._replace(container=container("author", "main", "0-1,6-7"))
    assert owned(observed(), after([unset], state), EIGHT) == {"lse-main": "2-3", "lsr-main": "4-5"}


def test_koordlet_beside_a_static_kubelet_is_a_rival() -> None:
    """It gives an LSE pod CPUs of the kubelet's pool, and takes them from the pods that share it."""
    on_node = authorities(CpuManagerState("static", EIGHT, {}))
    state = of_koordlet("lse ls numa", policy="static")
    assert owned(on_node, state, EIGHT) == {}
    assert [(rival.authorities, str(rival.cpus), rival.sandboxes) for rival in rivals(
        on_node.listing(state), on_node.rulings(state), state.sandboxes.values(), EIGHT)] == [
        (("kubelet", "observed"), "2-3", ("s-lse",))]
