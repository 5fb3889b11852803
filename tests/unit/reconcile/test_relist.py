"""When the runtime is to list everything again: upon a write that no report explains, and not too often."""

from __future__ import annotations

import itertools

import pytest

from vmpin.domain.model import ContainerId, SandboxId
from vmpin.reconcile.relist import NEAR, PAUSE, Relist
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer
from vmpin.wire.nri_enums import Verb

VM, OTHER = SandboxId("vm"), SandboxId("other")


def update(sandbox: SandboxId = VM) -> ContainerEvent:
    return ContainerEvent(Verb.POST_UPDATE, None, NriContainer(ContainerId("c"), sandbox, "c", 3, None, {}, 0, ""), 0)


@pytest.mark.parametrize(("reported", "due"), [
    ([], True), ([(VM, 100 - 2 * NEAR)], True), ([(OTHER, 100)], True), ([(VM, 100 + 2 * NEAR)], False),
    ([(VM, 100 - NEAR / 2)], False), ([(VM, 100)], False), ([(VM, 100 + NEAR / 2)], False)])
def test_a_write_that_no_report_explains_is_looked_into(reported: list[tuple[SandboxId, float]], due: bool) -> None:
    relist = Relist()
    for sandbox, at in reported:
        relist.take([update(sandbox)], at)
    relist.written([VM], 100)
    assert not relist.due(100 + NEAR / 2)  # it may yet be reported
    assert relist.due(100 + 2 * NEAR) is due
    assert not relist.due(100 + PAUSE + 9 * NEAR)


def test_lists_are_far_between() -> None:
    relist = Relist()
    lists = []
    for now in range(1000):
        relist.written([VM], now)
        if relist.due(now):
            lists.append(now)
    assert len(lists) > 2
    assert all(later - earlier >= PAUSE for earlier, later in itertools.pairwise(lists))


def test_a_write_within_the_pause_is_not_lost() -> None:
    relist = Relist()
    relist.written([VM], 0)
    assert relist.due(NEAR)
    relist.written([OTHER], NEAR + 1)
    assert not relist.due(PAUSE)
    assert relist.due(NEAR + PAUSE)
