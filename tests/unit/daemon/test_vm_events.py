"""What the events of a container in a VM make the watcher do, as counts: times depend on the machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from newcomers import Machine, sandbox, start_time
from nri_events import container, pod
from system_calls import system_calls

from vmpin.cpuset import CpuSet
from vmpin.daemon.watcher import Watcher
from vmpin.domain.events import ContainerSeen, Source
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId, VcpuState
from vmpin.guests import vm_guest
from vmpin.guests.manager import GuestManager
from vmpin.host.lock import Lock
from vmpin.reconcile import placement_cache
from vmpin.reconcile.cpuset_files import CpusetFiles
from vmpin.reconcile.urgency import can_wait
from vmpin.sources.nri.nri_events import CallFacts, ContainerEvent
from vmpin.sources.spool import Spool
from vmpin.wire.nri_enums import CREATED, RUNNING, STOPPED, Verb

pytest_plugins = ["given_unit"]

VM = SandboxId(sandbox("a"))
LIFE = {Verb.CREATE: CREATED, Verb.POST_CREATE: CREATED, Verb.START: CREATED, Verb.POST_START: RUNNING,
        Verb.STOP: STOPPED, Verb.REMOVE: STOPPED}


@pytest.fixture
def watcher(machine: Machine, crowd: Path) -> Iterator[Watcher]:
    """Of a VM that was there before, whose new threads the kernel reports."""
    vmm = machine.running(crowd)
    machine.reconciler.resync()
    machine.node_state.inventory.process_table.round = vmm.pid + 1  # not its turn to be read again
    config = machine.node_state.config
    with Lock(config.paths.lock_file) as lock:
        machine.node_state.forks_reported(True)
        yield Watcher(lambda: config, machine.reconciler, Spool(config.paths.spool), [], lock)


def report(watcher: Watcher, verb: Verb, cpus: str, name: str = "c1", waited: bool = False) -> None:
    watcher._on_nri([ContainerEvent(verb, pod(id_=VM), container(name, cpus, LIFE[verb], pod_=VM), time.time_ns())],
                    time.perf_counter(), waited)


def waiting(watcher: Watcher, cpus: CpuSet, creates_late: bool = True) -> set[Verb]:
    """The calls about a container whose events may wait."""
    return {verb for verb in Verb if can_wait(watcher.view, CallFacts(
        verb, VM, ContainerId("c1"), "kata", cpus, creates_late))}


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: Counter[str]) -> None:
    """Count the calls of a function."""
    function: Callable[..., Any] = getattr(owner, name)

    def count(*args: Any, **named: Any) -> Any:
        calls[name] += 1
        return function(*args, **named)

    monkeypatch.setattr(owner, name, count)


async def test_a_containers_life_sets_masks_twice_and_derives_two_maps(
        watcher: Watcher, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = len(list(machine.node_state.vms[VM].threads()))
    calls: Counter[str] = Counter()
    counted(monkeypatch, vm_guest, "guest_map", calls)
    counted(monkeypatch, placement_cache, "place", calls)
    made = {verb: system_calls(lambda verb=verb: report(watcher, verb, str(machine.other)))  # type: ignore[misc]
            for verb in LIFE}
    read = {"sched_getaffinity": threads, "stat": 4}  # masks; number of threads, checkpoint, DRA claims and driver
    assert made[Verb.START] == made[Verb.POST_START] == made[Verb.REMOVE] == read
    assert made[Verb.POST_CREATE] == {**read, "open": 1, "read": 1, "close": 1}  # the VMM's cgroup
    for verb in Verb.CREATE, Verb.STOP:
        assert made[verb]["sched_setaffinity"] == threads
        assert made[verb]["sched_getaffinity"] == 3 * threads  # compared, right before the set, and afterwards
    assert calls == {"guest_map": 2, "place": 3}  # START ends the runtime's request
    assert VM in watcher.passes.rechecks.pending


async def test_a_vm_is_rechecked_seldom_while_it_has_its_masks_and_all_its_threads_are_reported_and_named(
        watcher: Watcher, machine: Machine) -> None:
    node_state, vm = machine.node_state, machine.node_state.vms[VM]
    vm.vcpu_state, vm.found_by = VcpuState.IDENTIFIED, "names"
    for verb in Verb.CREATE, Verb.POST_START:
        report(watcher, verb, str(machine.other))
        assert watcher.passes.rechecks.pending[VM].step == 3
    vm.found_by = "kvm_run"
    assert not machine.reconciler.view.is_settled(VM)
    vm.found_by, vm.vcpu_state = "names", VcpuState.UNIDENTIFIED
    assert not machine.reconciler.view.is_settled(VM)
    vm.vcpu_state = VcpuState.IDENTIFIED
    node_state.pinner.recheck(VM)  # a cgroup refused a mask, for instance
    assert not machine.reconciler.view.is_settled(VM)
    watcher.passes.run([VM], "recheck")
    assert machine.reconciler.view.is_settled(VM)
    node_state.forks_reported(False)
    assert not machine.reconciler.view.is_settled(VM)
    report(watcher, Verb.POST_START, str(machine.other))
    assert watcher.passes.rechecks.pending[VM].step == 0


async def test_an_expected_call_about_a_settled_vm_waits_and_its_pass_is_a_recheck(
        watcher: Watcher, machine: Machine) -> None:
    vm = machine.node_state.vms[VM]
    vm.vcpu_state, vm.found_by = VcpuState.IDENTIFIED, "names"
    report(watcher, Verb.CREATE, str(machine.other))
    assert not waiting(watcher, machine.pool)  # another plugin has adjusted it
    assert waiting(watcher, machine.other, creates_late=False) == {Verb.START, Verb.POST_START}
    assert waiting(watcher, machine.other) == {Verb.POST_CREATE, Verb.START, Verb.POST_START}
    report(watcher, Verb.POST_CREATE, str(machine.other))
    assert waiting(watcher, machine.other) == {Verb.START, Verb.POST_START}
    report(watcher, Verb.START, str(machine.other))
    assert not waiting(watcher, machine.pool)  # other CPUs than it was created with
    assert waiting(watcher, machine.other) == {Verb.START, Verb.POST_START}
    report(watcher, Verb.POST_START, str(machine.other), waited=True)
    assert machine.node_state.counters.passes["nri"] == 4
    assert watcher.passes.rechecks.pending[VM].step == 6
    report(watcher, Verb.STOP, str(machine.other))
    assert waiting(watcher, machine.other) == {Verb.REMOVE}
    machine.node_state.forks_reported(False)
    assert not waiting(watcher, machine.other)


async def test_a_start_that_may_end_the_wait_for_vcpus_does_not_wait(watcher: Watcher, machine: Machine) -> None:
    vm = machine.node_state.vms[VM]
    vm.vcpu_state, vm.found_by = VcpuState.IDENTIFIED, "names"
    report(watcher, Verb.CREATE, str(machine.other))
    vm.vcpus = ()  # all are still to be plugged in
    machine.node_state.placement_cache.dirty.add(VM)
    watcher.passes.run([VM], "test")
    assert machine.reconciler.view.is_settled(VM)
    assert waiting(watcher, machine.other) == {Verb.POST_CREATE}


async def test_a_containers_life_in_a_settled_vm_wakes_the_loop_four_times(
        watcher: Watcher, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times for containerd's calls, the last of them with the first recheck and the state file; then for the
    other recheck."""
    now, wakes, loop = time.monotonic(), list[float](), asyncio.get_running_loop()
    began, selector = now, loop._selector  # type: ignore[attr-defined]
    poll = selector.select

    def select(timeout: float | None) -> object:
        """No time passes but while the loop sleeps."""
        nonlocal now
        if timeout is None or timeout > 0:
            now += timeout or 3600
            wakes.append(round(now - began, 2))
        return poll(0)

    vm = machine.node_state.vms[VM]
    vm.vcpu_state, vm.found_by = VcpuState.IDENTIFIED, "names"
    watcher.saving.save()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(selector, "select", select)
    tasks = [asyncio.create_task(task) for task in (watcher.passes.recheck(), watcher.saving.run())]
    cpus, at = str(machine.other), {0.01: [Verb.CREATE],
                                    0.08: [Verb.POST_CREATE, Verb.START, Verb.POST_START, Verb.STOP],
                                    0.35: [Verb.REMOVE]}
    for after, verbs in at.items():
        for verb in verbs:
            loop.call_later(after, report, watcher, verb, cpus, "c1", verb is Verb.REMOVE)
    written = machine.node_state.config.paths.state_file
    before = written.stat().st_ino
    await asyncio.sleep(60)
    assert wakes == [*at, 3.15, 60.0]
    assert machine.node_state.counters.passes == {"nri": 6, "recheck": 1}
    assert written.stat().st_ino != before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_recheck_that_changes_nothing_reads_masks_and_looks_at_no_guest(
        watcher: Watcher, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    report(watcher, Verb.CREATE, str(machine.other))
    threads = len(list(machine.node_state.vms[VM].threads()))
    calls: Counter[str] = Counter()
    counted(monkeypatch, GuestManager, "update", calls)
    watcher.passes.run([VM], "recheck")
    made = system_calls(lambda: watcher.passes.run([VM], "recheck"))
    assert made.pop("sched_getaffinity") == threads
    assert made == {"stat": 4}
    assert not calls
    for thread in machine.node_state.vms[VM].threads():
        os.sched_setaffinity(thread.id.tid, machine.both.frozen())
    watcher.passes.run([VM], "recheck")
    assert calls == {"update": 1}
    assert machine.node_state.counters.passes["recheck"] == 3


def test_the_cgroup_of_a_process_is_looked_up_once_in_the_pass_that_has_its_turn(machine: Machine) -> None:
    process = machine.process("sh")
    machine.node_state.inventory.process_table.round = process.pid & 15
    machine.node_state.apply_events([ContainerSeen(
        SandboxId(sandbox("b")), Container(ContainerId("c2")), Source.NRI, time.time_ns(),
        init=ThreadId(process.pid, start_time(process.pid)))])
    files = CpusetFiles(machine.node_state)
    assert [system_calls(files.paths)["open"] for _ in range(3)] == [1, 0, 0]
    machine.node_state.inventory.process_table.round += 16
    assert [system_calls(files.paths)["open"] for _ in range(3)] == [1, 0, 0]
