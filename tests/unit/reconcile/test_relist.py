"""When the runtime is to list everything again: upon a write that no report explains, and not too often."""

from __future__ import annotations

import itertools

import pytest

from vmpin.domain.model import ContainerId, SandboxId
from vmpin.reconcile.relist import NEAR, PAUSE, Relist
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer, NriPod, PodEvent, Synced
from vmpin.wire.nri_enums import CREATED, RUNNING, Verb

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


def call(verb: Verb, sandbox: SandboxId = VM, container: str = "new") -> ContainerEvent:
    return ContainerEvent(verb, None, NriContainer(ContainerId(container), sandbox, "c", 0, None, {}, 0, ""), 0)


@pytest.mark.parametrize("after", [15, 26, 100, 3600])
@pytest.mark.parametrize("reports", [[Verb.CREATE], [Verb.CREATE, Verb.POST_CREATE],
                                     [Verb.CREATE, Verb.POST_CREATE, Verb.START]])
def test_a_container_that_has_not_started_explains_a_write_however_long_it_takes(after: int,
                                                                                 reports: list[Verb]) -> None:
    relist = Relist()
    for verb in reports:
        relist.take([call(verb)], 0)
    relist.written([VM], after)
    assert not any(relist.due(after + later) for later in range(100))
    relist.take([call(Verb.POST_START)], after + 100)
    assert not any(relist.due(after + 100 + later) for later in range(100))
    relist.written([VM], after + 200 + NEAR)  # of a container that runs
    assert relist.due(after + 200 + 2 * NEAR)


@pytest.mark.parametrize("end", [
    call(Verb.POST_START), call(Verb.STOP), call(Verb.REMOVE),
    PodEvent(Verb.REMOVE_POD, NriPod(VM, "", "", "", "", 0, {}, ""), 0), Synced((), (), 0)])
def test_a_container_that_has_started_or_ended_explains_no_later_write(end: object) -> None:
    relist = Relist()
    relist.take([call(Verb.CREATE)], 0)
    relist.take([end], 1)  # type: ignore[list-item]
    relist.written([VM], 100)
    assert relist.due(100 + NEAR)


def test_containers_of_other_sandboxes_and_those_that_run_explain_nothing() -> None:
    relist = Relist()
    relist.take([call(Verb.CREATE, OTHER), call(Verb.CREATE), call(Verb.CREATE, container="second"),
                 call(Verb.POST_START)], 0)
    relist.written([VM], 100)
    assert not relist.due(200)  # the second one has not started yet
    relist.take([call(Verb.REMOVE, container="second")], 201)
    relist.written([VM], 300)
    assert relist.due(300 + NEAR)


@pytest.mark.parametrize(("state", "due"), [(CREATED, False), (RUNNING, True)])
def test_a_container_that_is_listed_before_its_start_explains_a_write(state: int, due: bool) -> None:
    relist = Relist()
    relist.take([Synced((), (call(Verb.CREATE).container._replace(state=state),), 0)], 0)
    relist.written([VM], 100)
    assert relist.due(100 + NEAR) is due
