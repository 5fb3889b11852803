"""The node in brief: its sentences have names in place of ids, so that no reader that cuts them loses the end."""

from __future__ import annotations

from collections.abc import Mapping

from kube_given import NODE, line, node_part
from kubelet_processes import doubted_checkpoint
from newcomers import Machine
from recorded_node import DB, LOGS, MAIN, SHOP, WEB, status

from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.features.cluster.kube.node_pinning import node_pinning
from vmpin.features.cluster.kube.pod_condition import PinState, pinning_of
from vmpin.features.cluster.kube.reported_node import NOTHING, ReportedNode
from vmpin.features.cluster.kube.transitions import transition
from vmpin.features.cluster.survey import Survey, brief
from vmpin.placement.ownership import CpuClaims, ownership

pytest_plugins = ["given_unit"]
UID = "0b1c2d3e-0000-4000-8000-000000000001"


def surveyed(machine: Machine) -> ReportedNode:
    """As the reporter receives it."""
    survey = Survey()
    for _ in survey.take(machine.reconciler.view, lambda sandbox: None):
        pass
    return _received(survey.node, *survey.sandboxes.values())


def _received(node: Mapping[str, object], *sandboxes: Mapping[str, object]) -> ReportedNode:
    return NOTHING.after(line("all", *sandboxes, node={**node_part(), **node}))


def test_a_collision_names_pods_and_containers_and_its_sentence_is_whole(machine: Machine) -> None:
    reconciler = machine.reconciler
    reconciler.node_state.apply_events([
        SandboxSeen(SandboxId(SHOP), "nri", Pod("shop", "web", UID), handler="runc"),
        ContainerSeen(SandboxId(SHOP), Container(ContainerId(WEB), "app", machine.other), Source.NRI, 1)])
    claims = {SandboxId(SHOP): CpuClaims(((ContainerId(WEB), machine.other),), ()),
              SandboxId(DB): CpuClaims((), ((ContainerId(MAIN), machine.other),))}
    reconciler.node_state.placement_cache.own = ownership(claims, reconciler.node_state.node)
    found = surveyed(machine)
    (collision,) = node_pinning(NODE, found, True)["status"]["collisions"]
    assert collision == {
        "cpu": machine.other.first, "sandboxes": [SHOP, DB],  # of DB no source has reported a pod
        "message": f"exclusive to app of shop/web, but in the shared cpuset of {MAIN[:12]} of {DB[:12]}"}


def test_a_pods_condition_and_event_name_what_its_sentences_have_as_ids() -> None:
    entry = status()["sandboxes"][0]
    entry["reasons"] = [f"the sources disagree on the CPUs of container {WEB}: 40 and 41", f"{LOGS} is of no name"]
    entry["drift"]["why"] = f"{MAIN} of {DB} was given the CPUs"
    made = brief(entry, False, {WEB: "web", MAIN: "main", DB: "shop/db-0"})
    (found,) = _received({}, made).sandboxes.values()
    state = pinning_of(found)
    assert state.state is PinState.DEGRADED
    assert state.message == ("the sources disagree on the CPUs of container web: 40 and 41; "
                             f"{LOGS[:12]} is of no name")
    event = transition(None, state)
    assert event is not None
    assert event.message == state.message
    assert found.repairs.why == "main of shop/db-0 was given the CPUs"
    assert entry["drift"]["why"] == f"{MAIN} of {DB} was given the CPUs"  # the status document has ids


def test_a_collision_has_the_doubt_about_the_checkpoint(machine: Machine) -> None:
    """Where no kubelet runs; whole, before the reporter cuts it."""
    doubted_checkpoint(machine, UID)
    survey = Survey()
    assert [*survey.take(machine.reconciler.view, lambda sandbox: None)]
    assert survey.node["collisions"][0]["what"].endswith("written 2026-11-26T05:00:00Z, may be out of date)")  # type: ignore[index]
