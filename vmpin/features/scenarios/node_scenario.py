"""A node as a scenario describes it, placed by the rules that the watcher uses and written as JSON data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadRole
from vmpin.domain.policy import Policy
from vmpin.domain.sandbox_placement import Placement, Previous
from vmpin.features.common.scenario_values import ScenarioPart
from vmpin.named_tuple import NamedTuple
from vmpin.placement.ownership import Collision, Node, Ownership, claims_of, find_collisions, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.placement.rulings import inferred


class ScenarioSandbox(NamedTuple):
    request: PlacementRequest
    iothreads: int
    vhost: int


class Scenario(NamedTuple):
    node: Node
    policy: Policy
    sandboxes: tuple[ScenarioSandbox, ...]
    #: What keys of features describe, by the feature's name.
    of_features: Mapping[str, ScenarioPart] = MappingProxyType({})


class ScenarioOutcome(NamedTuple):
    """The placements of a scenario, and their collisions."""

    placements: tuple[Placement, ...]
    sandboxes: tuple[ScenarioSandbox, ...]
    collisions: tuple[Collision, ...]
    own: Ownership
    moves: int  #: vCPUs that have other CPUs than in the previous plan.

    def data(self) -> dict[str, Any]:
        """Return the result as `vmpin plan --scenario -o json` prints it."""
        return {"sandboxes": [_placement_data(placement, sandbox.iothreads)
                              for placement, sandbox in zip(self.placements, self.sandboxes, strict=True)],
                "collisions": [collision._asdict() for collision in self.collisions], "moves": self.moves}


def place_scenario(scenario: Scenario, previous: Mapping[SandboxId, Previous] | None = None) -> ScenarioOutcome:
    """Place every sandbox of a scenario."""
    before = previous or {}
    requests = [sandbox.request for sandbox in scenario.sandboxes]
    own = ownership({request.id: claims_of(inferred(request.containers, scenario.node.shared_pool), scenario.node)
                     for request in requests}, scenario.node)
    placements = tuple(place(request, scenario.node, own, scenario.policy, before.get(request.id))
                       for request in requests)
    moves = 0
    for placement in placements:
        old = before.get(placement.sandbox, Previous()).vcpus
        moves += sum(vcpu.id in old and old[vcpu.id][0] != vcpu.cpus for vcpu in placement.vcpus)
    return ScenarioOutcome(placements, scenario.sandboxes, tuple(find_collisions(own)), own, moves)


def _text(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def _placement_data(placement: Placement, iothreads: int) -> dict[str, object]:
    other = {role: _text(cpus) for role, cpus in placement.others.items()}
    return {"id": placement.sandbox, "mask": str(placement.mask), "verdict": str(placement.verdict),
            "reasons": list(placement.reasons), "vcpus": [{"id": vcpu.id, "cpus": _text(vcpu.cpus),
                                                           "container": vcpu.container} for vcpu in placement.vcpus],
            "iothreads": [{"index": index, "cpus": other[ThreadRole.IOTHREAD]} for index in range(iothreads)],
            "vhost": other[ThreadRole.VHOST], "emulator": other[ThreadRole.EMULATOR],
            "containers": [{"id": container, "vcpus": str(CpuSet(vcpus))}
                           for container, vcpus in placement.containers.items()]}
