"""The ledger's versions: what follows from all grants is worked out once, and follows the grants that change."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from allocation_model import shuffled
from played_calls import EXCLUSIVE, MACHINE, ON, Played, a_container, cpus
from walks import Walk

from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import Listed
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.decisions import on_pod_end, on_stop
from vmpin.features.allocator.grants.ledger import Ledger
from vmpin.features.allocator.grants.pool_cpus import due
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.vm_size import VmSize
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer, NriPod, PodEvent
from vmpin.wire.nri_enums import RUNNING, Verb


class Life:
    """Containers that come and go beside a number of shared ones."""

    def __init__(self, directory: Path, others: int) -> None:
        self._allocator = CpuAllocator(MACHINE, ON, LedgerFile(directory / f"ledger-{others}.json", "boot"),
                                       lambda pod: VmSize())
        self._allocator.synchronize(Listed(frozenset(), ()))
        for number in range(others):
            self._allocator.decide(Verb.CREATE, a_container(f"other-{number}"))
        self.calls()  # the first one begins what the others take over

    def calls(self) -> Counter[str]:
        """The functions called in the life of a shared container, from its creation to the end of its pod."""
        pod = NriPod(SandboxId("pod-new"), "pod", "web", "uid", "", 0, {}, "")
        container = NriContainer(ContainerId("new"), pod.id, "new", RUNNING, None, {}, 0)
        walk = Walk()
        with walk.recorded():
            self._allocator.decide(Verb.CREATE, a_container("new"))
            self._allocator.record(ContainerEvent(Verb.POST_START, pod, container, 1))
            self._allocator.decide(Verb.STOP, a_container("new"))
            self._allocator.record(ContainerEvent(Verb.REMOVE, pod, container, 1))
            for verb in Verb.STOP_POD, Verb.REMOVE_POD:
                self._allocator.record(PodEvent(verb, pod, 1))
        return Counter(call.function for call in walk.calls)


def test_a_shared_containers_life_costs_the_same_beside_any_number_of_others(tmp_path: Path) -> None:
    few, many = (Life(tmp_path, others).calls() for others in (20, 100))
    assert many == few
    assert "Grant.out_of_pool" not in many
    assert many["target"] <= 6, "of its own grant alone"


def check(ledger: Ledger) -> None:
    """A ledger without earlier versions comes to the same."""
    anew = shuffled(ledger)
    assert ledger.version.holdings == anew.version.holdings
    assert ledger.version.pool_load == anew.version.pool_load
    assert due(MACHINE, ledger, ON) == due(MACHINE, anew, ON)


@pytest.mark.parametrize("name", ["shared", "exclusive", "group", "vm"])
def test_each_kind_of_container_changes_what_follows_from_all(name: str) -> None:
    asked: dict[str, dict[str, Any]] = {
        "shared": {}, "exclusive": {"size": 2, "annotations": EXCLUSIVE}, "vm": {"size": 1, "vm": True},
        "group": {"size": 1, "annotations": {"cpu-policy.vmpin.io": "group:rt"}}}
    played = Played()
    for number in range(8):
        played.create(f"other-{number}")
    check(played.ledger)
    for number in range(2):
        played.create(f"{name}-{number}", **asked[name])
        check(played.ledger)
    for number in range(2):
        played.call(on_stop, ContainerId(f"{name}-{number}"))
        check(played.ledger)
        played.call(on_pod_end, SandboxId(f"pod-{name}-{number}"))
        check(played.ledger)


def test_other_shared_cpus_are_due_to_all() -> None:
    played = Played()
    for number in range(3):
        played.create(f"other-{number}")
    assert due(MACHINE, played.ledger, ON) == []
    fewer = played.ledger._replace(shared=cpus("0-3"))
    assert [str(wanted) for _, wanted in due(MACHINE, fewer, ON)] == ["0-3"] * 3
    assert due(MACHINE, played.ledger, ON) == []
