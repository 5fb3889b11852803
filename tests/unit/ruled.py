"""The rulings of a node on which some authorities rule."""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.authorities.authority import Authorities, Authority, GivenAuthority
from vmpin.authorities.kubelet_authority import assignments_of
from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Rank, Rulings
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container
from vmpin.placement.ownership import CpuClaims, Node, claims_of
from vmpin.placement.rulings import inferred


def authorities(kubelet: CpuManagerState | None, *more: Authority, pool: CpuSet | None = None) -> Authorities:
    """Those that every node has, with the kubelet's checkpoint as it is now."""
    return Authorities(pool, [GivenAuthority(Rank.KUBELET, assignments_of(kubelet)), *more])


def ruled(kubelet: CpuManagerState | None, *more: Authority, pool: CpuSet | None = None) -> Rulings:
    """The rulings that do not depend on what the containers of the node are."""
    return authorities(kubelet, *more, pool=pool).rulings(DesiredState())


def claims(containers: Iterable[Container], node: Node) -> CpuClaims:
    """The claims of a sandbox's containers on a node where no program lists CPUs."""
    return claims_of(inferred(containers, node.shared_pool), node)
