"""CRI-O's annotation: which of a container's own CPUs go on taking interrupts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from irqs_part import DB, SHOP, part
from trees import make_tree

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId
from vmpin.domain.topology import Topology
from vmpin.features.irqs import irq_claims
from vmpin.features.irqs.crio_annotations import housekeeping_cpus
from vmpin.features.irqs.irqs_watcher_part import owners_of
from vmpin.placement.ownership import CpuClaims, Node, Ownership
from vmpin.sources.nri.nri_events import NriPod, PodEvent, Synced
from vmpin.wire.nri_enums import Verb

cpus = CpuSet.parse
#: Siblings are 0 and 4, 1 and 5, and so on.
TOPOLOGY = Topology.build(cpus("0-7"), [CpuSet((cpu, cpu + 4)) for cpu in range(4)])
KEY = "irq-load-balancing.crio.io"


@pytest.mark.parametrize(("annotations", "owned", "kept"), [
    ({KEY: "housekeeping"}, "2-3,6-7", "2,6"), ({KEY: "housekeeping"}, "2-3", "2"), ({KEY: "disable"}, "2-3", ""),
    ({f"{KEY}/web": "housekeeping"}, "3,7", "3,7"), ({f"{KEY}/db": "housekeeping"}, "3,7", ""),
    ({KEY: "housekeeping", f"{KEY}/web": "disable"}, "2-3", ""), ({KEY: "Housekeeping"}, "2-3", ""),
    ({KEY: "housekeeping"}, "", ""), ({}, "2-3", "")])
def test_housekeeping_keeps_the_first_core_of_a_containers_own_cpus(
        annotations: dict[str, str], owned: str, kept: str) -> None:
    assert str(housekeeping_cpus(annotations, "web", cpus(owned), TOPOLOGY)) == kept


def pod(sandbox: str, **annotations: str) -> NriPod:
    return NriPod(cast(Any, sandbox), "shop", "demo", "uid", "", 0, {
        f"{KEY}/{name}" if name != "all" else KEY: value for name, value in annotations.items()} | {"a": "b"}, "")


def test_the_annotations_of_pods_are_followed_and_open_no_other_pods_cpus(tmp_path: Path) -> None:
    make_tree(tmp_path, "proc/irq/default_smp_affinity = ff\n")
    assert part(tmp_path, "away").after_events is None
    away = part(tmp_path, "away", honour="crio")
    node = away.tasks["irqs"].__self__
    away.after_events([Synced((pod(SHOP, web="housekeeping"), pod(DB, all="disable")), (), 0)])
    assert node._annotations == {SHOP: {f"{KEY}/web": "housekeeping"}, DB: {KEY: "disable"}}
    claims = {SHOP: CpuClaims(((ContainerId("c1"), cpus("2,6")),), ()),
              DB: CpuClaims(((ContainerId("c2"), cpus("3")),), ())}
    names = {SHOP: {"c1": "web"}, DB: {"c2": "web"}}
    view: Any = SimpleNamespace(
        ownership=Ownership(claims, cpus("2-3,6"), cpus("0-1")), node=Node(TOPOLOGY), vms={}, placements={},
        sandboxes={sandbox: SimpleNamespace(containers={
            id: SimpleNamespace(container=SimpleNamespace(name=name)) for id, name in containers.items()})
            for sandbox, containers in names.items()})
    owners = owners_of(view, node._annotations)
    assert (str(owners.room.exclusive), sorted(owners.cpus)) == ("3", [2, 3, 6]), "they are counted all the same"
    away.after_events([PodEvent(Verb.RUN_POD, pod(DB, all="housekeeping"), 0)])
    assert owners_of(view, node._annotations).room.exclusive == EMPTY
    away.after_events([PodEvent(Verb.REMOVE_POD, pod(sandbox), 0) for sandbox in (SHOP, DB)])
    assert node._annotations == {}


def test_a_cpu_that_another_pod_claims_too_takes_no_interrupts(tmp_path: Path) -> None:
    claims = {SHOP: CpuClaims(((ContainerId("c1"), cpus("2,6")),), ()),
              DB: CpuClaims(((ContainerId("c2"), cpus("2-3")),), ())}
    containers = {SHOP: "c1", DB: "c2"}
    view: Any = SimpleNamespace(
        ownership=Ownership(claims, cpus("2-3,6"), cpus("0-1")), node=Node(TOPOLOGY), vms={}, placements={},
        sandboxes={sandbox: SimpleNamespace(containers={
            id: SimpleNamespace(container=SimpleNamespace(name="web"))}) for sandbox, id in containers.items()})
    assert str(owners_of(view, {SHOP: {KEY: "housekeeping"}}).room.exclusive) == "2-3"
    (claim,) = owners_of(view, {DB: {irq_claims.KEY: "claim: ['*']"}}).claims
    assert (claim.sandbox, str(claim.cpus)) == (DB, "3")
