"""Refusals are counted by their kind, which comes from the rule that refuses and not from its words."""

from __future__ import annotations

from typing import Any

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions, DefaultPolicy
from vmpin.features.allocator.grants.cpu_request import RefusalKind
from vmpin.features.allocator.grants.decisions import on_create, on_update
from vmpin.features.allocator.grants.ledger import Ledger
from vmpin.features.allocator.grants.live_change import set_policy
from vmpin.features.allocator.texts.grant_data import from_data, to_data

#: 8 CPUs, 4 cores, 2 nodes; CPU 0 is reserved.
MACHINE = Topology.build(CpuSet(range(8)), cores=[CpuSet((n, n + 1)) for n in range(0, 8, 2)],
                         nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))})
ON = AllocationOptions(AllocationMode.ON, reserved=CpuSet((0,)))
CPUS, ALIGNMENT, REQUEST = RefusalKind.CPUS, RefusalKind.ALIGNMENT, RefusalKind.REQUEST


def a_container(name: str, milli: int, **annotations: str) -> RequestedContainer:
    keys = {f"cpu-{key}.vmpin.io": value for key, value in annotations.items()}
    return RequestedContainer(ContainerId(name), SandboxId(f"pod-{name}"), name, "web", "pod", pod_annotations=keys,
                              shares=milli * 1024 // 1000, quota=milli * 100, period=100_000)


@pytest.mark.parametrize(("milli", "asked", "kind"), [
    (8000, {"policy": "exclusive"}, CPUS),
    (5000, {"policy": "exclusive", "align": "node!"}, ALIGNMENT),
    (3000, {"policy": "exclusive", "smt": "require"}, ALIGNMENT),
    (5000, {"policy": "exclusive", "align": "core!"}, ALIGNMENT),
    (1500, {"policy": "exclusive"}, REQUEST),
    (1000, {"policy": "mine"}, REQUEST),
    (1000, {"policy": "infra"}, REQUEST),
    (1000, {"policy": "exclusive", "kind": "efficient"}, REQUEST),
    (1000, {"policy": "exclusive", "near": "no free node: within one"}, REQUEST)])
def test_a_refused_creation_has_the_kind_of_the_rule(milli: int, asked: dict[str, str], kind: RefusalKind) -> None:
    answer = on_create(MACHINE, Ledger(), a_container("db", milli, **asked), ON)
    assert answer.refusal
    assert [one.kind for one in answer.ledger.refused] == [kind]


def test_the_pools_last_cpu_is_refused_as_one_too_few() -> None:
    bare = ON._replace(reserved=CpuSet())
    answer = on_create(MACHINE, Ledger(), a_container("db", 8000, policy="exclusive"), bare)
    assert [one.kind for one in answer.ledger.refused] == [CPUS]


@pytest.mark.parametrize(("milli", "kind"), [(8000, CPUS), (1500, REQUEST)])
def test_a_refused_resize_has_the_kind_of_the_rule(milli: int, kind: RefusalKind) -> None:
    ledger = on_create(MACHINE, Ledger(), a_container("db", 2000, policy="exclusive"), ON).ledger
    answer = on_update(MACHINE, ledger, a_container("db", milli), ON)
    assert [one.kind for one in answer.ledger.refused] == [kind]


def test_a_resize_to_a_part_of_a_cpu_names_the_key_that_gave_the_cpus() -> None:
    by_default = ON._replace(default=DefaultPolicy.EXCLUSIVE)
    of = {"default": on_create(MACHINE, Ledger(), a_container("db", 2000), by_default).ledger,
          "annotation": on_create(MACHINE, Ledger(), a_container("db", 2000, policy="group:rt"), ON).ledger}
    assert all(ledger.grants[ContainerId("db")].cpus for ledger in of.values())

    def why(ledger: Ledger, options: AllocationOptions) -> str:
        return on_update(MACHINE, ledger, a_container("db", 1500), options).refusal

    needs = "needs request = limit in whole CPUs: the request is 1.5, the limit 1.5"
    assert why(of["default"], by_default) == f"vmpin: allocate.default=exclusive (policy exclusive) {needs}"
    assert why(of["default"], ON) == f"vmpin: allocate.default at its creation (policy exclusive) {needs}"
    assert why(of["annotation"], by_default) == f"vmpin: cpu-policy.vmpin.io=group:rt {needs}"


def test_a_refused_change_is_no_refused_request() -> None:
    ledger = on_create(MACHINE, Ledger(), a_container("db", 5000, policy="exclusive"), ON).ledger
    answer = set_policy(MACHINE, ledger, ContainerId("db"), {"align": "node!"}, ON)
    assert answer.refusal.startswith("vmpin: no node has 5 free CPUs")
    assert not answer.ledger.refused


def test_the_ledger_keeps_the_kind() -> None:
    ledger = on_create(MACHINE, Ledger(), a_container("db", 8000, policy="exclusive"), ON).ledger
    data: Any = to_data(ledger)
    assert from_data(data) == ledger
    for kind, why in (("other", "'other'"), (None, "'None'")):
        data["refused"][0]["kind"] = kind
        with pytest.raises(ValueError, match=f"refused request 0: kind: {why}"):
            from_data(data)
