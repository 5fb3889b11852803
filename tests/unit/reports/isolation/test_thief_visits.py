"""Visits to real processes: which of them ran on a CPU, how long, and what they are called."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from strayed import Spinners, run_for, spinners

from vmpin.domain.model import SandboxId
from vmpin.reports.isolation.isolation_advice import ThiefKind
from vmpin.reports.isolation.isolation_books import Theft
from vmpin.reports.isolation.thief_visits import ThiefVisits, home

SECOND = 10**9
OWNER = SandboxId("owner")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path) as made:
        yield made


@pytest.fixture
def burner(node: Spinners) -> Iterator[int]:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as child:
        os.sched_setaffinity(child.pid, node.there.frozen())
        yield child.pid
        child.kill()


def visit(visits: ThiefVisits, hot: dict[int, SandboxId]) -> list[Theft]:
    visits.start(hot, {})
    while not visits.step(0.001):
        assert visits.under_way
    assert not visits.under_way
    return [theft for owner, theft in visits.found if owner == OWNER]


def clock(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)


def test_a_thread_that_ran_between_two_visits_is_met_with_its_run_time(node: Spinners, burner: int) -> None:
    visits, cpu = ThiefVisits(node.reconciler.view), node.there.first
    assert visit(visits, {cpu: OWNER}) == []  # what it ran before is unknown
    before = clock(burner)
    run_for(0.2, burner)
    found = [theft for theft in visit(visits, {cpu: OWNER}) if theft.thief.name == "sh"]
    after = clock(burner)
    assert found
    assert {theft.cpu for theft in found} == {cpu}
    assert any(0.15 * SECOND < theft.spent <= after - before + SECOND for theft in found)
    assert {theft.thief.kind for theft in found} <= {ThiefKind.HOST, ThiefKind.CONTAINER}


def test_without_foreign_time_no_thread_is_looked_at(node: Spinners, burner: int) -> None:
    visits = ThiefVisits(node.reconciler.view)
    visit(visits, {})
    run_for(0.05, burner)
    assert visit(visits, {}) == []


def test_a_vm_is_a_thief_on_the_cpus_of_others_and_not_on_its_own(node: Spinners) -> None:
    vm = node.vm()
    visits, cpu = ThiefVisits(node.reconciler.view), node.here.first
    visit(visits, {cpu: OWNER})
    run_for(0.1, vm.vmm.pid)
    kinds = {theft.thief.kind for theft in visit(visits, {cpu: OWNER})}
    assert ThiefKind.VM in kinds
    run_for(0.1, vm.vmm.pid)
    visits.start({cpu: vm.sandbox}, {})
    while not visits.step(1.0):
        pass
    assert ThiefKind.VM not in {theft.thief.kind for _, theft in visits.found}


ID = "a" * 64


@pytest.mark.parametrize(("raw", "found"), [
    (b"0::/system.slice/backup.service\n", (None, "backup.service")),
    (b"4:cpuset:/\n1:name=systemd:/system.slice/cron.service\n0::/\n", (None, "cron.service")),
    (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n".encode(),
     (ID, f"cri-containerd-{ID}.scope")),
    (f"3:cpuset:/kubepods/pod1/{ID}\n0::/\n".encode(), (ID, ID)), (b"", (None, "")),
    (b"\xff\xfe\n::::\n", (None, ""))])
def test_a_process_has_a_container_or_a_unit(raw: bytes, found: tuple[str | None, str]) -> None:
    container, unit = home(raw)
    assert container == found[0]
    assert unit == found[1] or not found[1]
