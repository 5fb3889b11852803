"""Scans to real processes: which of them ran on a CPU, how long, and what they are called."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from strayed import Spinners, booked, burner_on, run_for, spinners

from vmpin.domain.model import SandboxId
from vmpin.features.isolation.foreign_scans import ForeignScans, HotCpu, home
from vmpin.features.isolation.isolation_books import ForeignRun, ProgramKind
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs, Stat

SECOND = 10**9
OWNER = SandboxId("owner")
MUCH = 3600 * SECOND


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path) as made:
        yield made


@pytest.fixture
def burning(node: Spinners, tmp_path: Path) -> Iterator[tuple[int, str]]:
    with burner_on(node.there, tmp_path) as made:
        yield made


def scan(scans: ForeignScans, hot: dict[int, int], own: dict[SandboxId, frozenset[str]] | None = None,
          owner: SandboxId = OWNER) -> list[ForeignRun]:
    """:param hot: foreign time by CPU (ns)."""
    scans.start({cpu: HotCpu(owner, foreign) for cpu, foreign in hot.items()}, own or {})
    found: list[ForeignRun] = []
    while True:
        over = scans.step(0.001)
        assert over != scans.under_way
        found += scans.take().get(owner, [])
        if over:
            return found


def clock(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)


def test_a_thread_that_ran_between_two_scans_is_found_with_its_run_time(node: Spinners,
                                                                       burning: tuple[int, str]) -> None:
    burner, name = burning
    scans, cpu = ForeignScans(node.reconciler.view), node.there.first
    before = booked(burner)
    assert scan(scans, {cpu: MUCH}) == []  # what it ran before is unknown
    run_for(0.2, burner)
    found = [run for run in scan(scans, {cpu: MUCH}) if run.program.name == name]
    after = booked(burner)
    assert found
    assert {run.cpu for run in found} == {cpu}
    assert any(0.2 * SECOND <= run.spent <= after - before for run in found)
    assert {run.program.kind for run in found} <= {ProgramKind.HOST, ProgramKind.CONTAINER}


def test_without_foreign_time_no_thread_is_read(node: Spinners, burning: tuple[int, str]) -> None:
    burner, _ = burning
    scans = ForeignScans(node.reconciler.view)
    scan(scans, {})
    run_for(0.05, burner)
    assert scan(scans, {}) == []


def test_a_vm_is_foreign_on_the_cpus_of_others_and_not_on_its_own(node: Spinners) -> None:
    vm = node.vm()
    scans, cpu = ForeignScans(node.reconciler.view), node.here.first
    scan(scans, {cpu: MUCH})
    run_for(0.1, vm.vmm.pid)
    kinds = {run.program.kind for run in scan(scans, {cpu: MUCH})}
    assert ProgramKind.VM in kinds
    run_for(0.1, vm.vmm.pid)
    assert ProgramKind.VM not in {run.program.kind for run in scan(scans, {cpu: MUCH}, owner=vm.sandbox)}


def test_no_program_had_more_than_was_foreign_on_the_cpu(node: Spinners, burning: tuple[int, str]) -> None:
    """It ran elsewhere before: of several scans together it had no more, either."""
    burner, name = burning
    scans, cpu = ForeignScans(node.reconciler.view), node.there.first
    scan(scans, {cpu: MUCH})
    for foreign in (20_000_000, 0, 30_000_000):
        run_for(0.1, burner)
        found = sum(run.spent for run in scan(scans, {cpu: foreign}) if run.program.name == name)
        assert found <= foreign
        assert found == foreign or not foreign


def test_what_ran_before_a_scan_that_read_no_thread_is_not_found_later(node: Spinners,
                                                                           burning: tuple[int, str]) -> None:
    burner, name = burning
    scans, cpu = ForeignScans(node.reconciler.view), node.there.first
    scan(scans, {cpu: MUCH})
    run_for(0.05, burner)
    scan(scans, {cpu: MUCH})
    run_for(0.5, burner)
    before = clock(burner)
    scan(scans, {})
    run_for(0.02, burner)
    found = sum(run.spent for run in scan(scans, {cpu: MUCH}) if run.program.name == name)
    assert 0 < found <= clock(burner) - before


MANY = """
import threading, time
end = threading.Event()
for _ in range(599):
    threading.Thread(target=end.wait, daemon=True).start()
print("ready", flush=True)
while True:
    pass
"""


@pytest.fixture
def crowd(node: Spinners) -> Iterator[int]:
    """A process of 600 threads, on one CPU."""
    with subprocess.Popen([sys.executable, "-c", MANY], stdout=subprocess.PIPE,
                          preexec_fn=lambda: os.sched_setaffinity(0, node.there.frozen())) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.kill()


class Counting(Procfs):
    """Which threads of a process were read, in turns."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid
        self.read: list[list[int]] = []

    def task_stats(self, pid: int | str, tids: Collection[int]) -> dict[int, Stat]:
        if pid == self.pid:
            self.read.append(list(tids))
        return super().task_stats(pid, tids)


def test_of_many_threads_some_are_read_at_a_time(node: Spinners, crowd: int) -> None:
    proc = vars(node.reconciler.view)["proc"] = Counting(crowd)
    scans, cpu = ForeignScans(node.reconciler.view), node.there.first
    scan(scans, {})
    run_for(0.05, crowd)
    scans.start({cpu: HotCpu(OWNER, MUCH)}, {})
    most = 0
    while scans.under_way:
        before = len(proc.read)
        scans.step(0.0)
        assert len(proc.read) - before <= 1  # and the loop has its turn
        most = max(most, *map(len, proc.read), 0)
    assert sum(map(len, proc.read)) == len(set().union(*proc.read)) == 600
    assert most == 256


def test_more_threads_than_a_scan_reads_are_left_to_others(node: Spinners, crowd: int) -> None:
    proc = vars(node.reconciler.view)["proc"] = Counting(crowd)
    scans, cpu = ForeignScans(node.reconciler.view, most=300), node.there.first
    scan(scans, {})
    run_for(0.05, crowd)
    scan(scans, {cpu: MUCH})
    assert sum(map(len, proc.read)) <= 300


class CountingCgroups(Cgroups):
    """How often the cgroup of a process was looked up."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid, self.asked = pid, 0

    def usage_file(self, pid: int, container: str = "") -> str | None:
        self.asked += pid == self.pid
        return super().usage_file(pid, container)


def test_whose_a_process_is_is_looked_up_once(node: Spinners, crowd: int) -> None:
    cgroups = vars(node.reconciler.view)["cgroups"] = CountingCgroups(crowd)
    scans, cpu = ForeignScans(node.reconciler.view), node.there.first
    own = {OWNER: frozenset(["/sys/fs/cgroup/none/cpu.stat"])}
    scan(scans, {cpu: MUCH}, own)
    cgroups.asked = 0
    run_for(0.05, crowd)
    scan(scans, {cpu: MUCH}, own)
    assert cgroups.asked == 1


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
