"""Processes older than the watcher or without an event: masks are kept, and threads that ran outside are counted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from newcomers import Machine, by_name, mask, sandbox, start_time, tids

from vmpin.domain.model import ThreadId
from vmpin.pinning.apply import Outcome
from vmpin.procevents.newborn_placer import NewbornPlacer
from vmpin.wire.proc_events import Exec, Fork

pytest_plugins = ["given_unit"]


# What was there before


def test_an_original_mask_survives_a_kill_right_after_the_mask_was_set(machine: Machine) -> None:
    vmm = machine.vmm("a")
    machine.placer.handle([Exec(time.monotonic_ns(), vmm.pid)])
    assert mask(vmm) == machine.pool
    assert not machine.node_state.config.paths.state_file.exists()
    second = machine.fresh()
    second.resync(full=True)
    assert mask(vmm) == machine.pool
    results = second.unpin([sandbox("a")])
    assert [result.outcome for result in results] == [Outcome.DONE]
    assert machine.both <= mask(vmm)


def test_the_notes_are_removed_once_the_state_file_has_them(machine: Machine) -> None:
    vmm = machine.vmm("a")
    machine.placer.handle([Exec(time.monotonic_ns(), vmm.pid)])
    assert machine.node_state.config.paths.notes_file.exists()
    assert machine.node_state.unsaved
    assert machine.node_state.save()
    assert not machine.node_state.config.paths.notes_file.exists()
    assert machine.fresh().view.originals[sandbox("a")].processes.keys() == {ThreadId(vmm.pid, start_time(vmm.pid))}


@pytest.mark.parametrize("apart", [False, True])
def test_a_vmm_forked_by_a_placed_process_has_that_processs_original_mask(machine: Machine, apart: bool) -> None:
    where = machine.other if apart else machine.pool
    if apart:
        machine.configure(virtiofsd=str(machine.other))
    (machine.path / "qemu-system-x86_64").symlink_to("/bin/sh")
    parent = machine.virtiofsd("a", script=f"read line; PATH={machine.path} qemu-system-x86_64 -c 'kill -STOP $$; :' "
                                           f"-name sandbox-{sandbox('a')} >/dev/null & echo $!; wait")
    machine.executed(parent)
    assert mask(parent) == where
    vmm = machine.child(parent)
    try:
        assert mask(vmm) == where  # inherited
        machine.executed(vmm)
        assert (mask(vmm), mask(parent)) == (machine.pool, where)
        account = machine.account("a")
        assert (account.reported, account.born_inside) == (2, 1)
        machine.resync()
        machine.reconciler.unpin([sandbox("a")])
        assert (mask(vmm), mask(parent)) == (machine.both, machine.both)
    finally:
        os.kill(vmm, signal.SIGKILL)


def test_a_helper_without_a_vm_gets_its_original_mask_back(machine: Machine) -> None:
    helper = machine.virtiofsd("a")
    machine.executed(helper)
    machine.resync()
    assert mask(helper) == machine.pool
    assert machine.reconciler.view.all_sandboxes() == [sandbox("a")]
    machine.reconciler.unpin(machine.reconciler.view.all_sandboxes())
    assert mask(helper) == machine.both
    assert machine.reconciler.view.all_sandboxes() == []


@pytest.mark.parametrize("name", ["virtiofsd", "shim"])
def test_a_helper_that_has_ended_is_forgotten(machine: Machine, name: str) -> None:
    helper = machine.virtiofsd("a") if name == "virtiofsd" else machine.shim("a")
    machine.executed(helper)
    helper.kill()
    helper.wait()
    machine.resync()
    assert (machine.node_state.newborn_counts, machine.reconciler.view.all_sandboxes()) == ({}, [])


# Without events


def test_a_vm_that_only_a_pass_sees_counts_as_outside_until_then(machine: Machine, crowd: Path) -> None:
    machine.resync()
    time.sleep(0.03)
    began = time.monotonic_ns()
    vmm = machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    time.sleep(0.1)
    machine.resync()
    assert {mask(tid) for tid in tids(vmm)} == {machine.pool}
    account = machine.account("a")
    assert (account.reported, account.outside.count) == (0, len(tids(vmm)))
    assert 0.09 < account.outside.longest < (time.monotonic_ns() - began) / 1e9 + 0.1
    # Their events come after that pass, as they lay in the buffer.
    workers = [tid for tid in tids(vmm) if tid != vmm.pid]
    machine.placer.handle([Fork(began, vmm.pid, vmm.pid, tid, vmm.pid) for tid in workers])
    assert (account.reported, account.born_inside, account.outside.count) == (len(workers), 0, len(tids(vmm)))
    machine.placer.handle([Exec(began, vmm.pid)])
    assert (account.reported, account.born_inside, account.outside.count) == (len(tids(vmm)), 0, len(tids(vmm)))
    assert machine.node_state.counters.new_thread_latency.total == account.placed.count == len(tids(vmm))
    machine.report("a", machine.other)  # its masks change, and nothing is outside
    machine.resync()
    assert machine.account("a").outside.count == len(tids(vmm))


def test_a_thread_that_a_pass_sees_within_its_cpus_does_not_count_as_outside(machine: Machine, crowd: Path) -> None:
    machine.configure(emulator=str(machine.other))
    machine.resync()
    time.sleep(0.03)
    vmm = machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    for tid in tids(vmm):
        os.sched_setaffinity(tid, machine.pool.frozen())
    machine.placer.after_pass(machine.reconciler.resync(full=True))  # the emulator threads are put elsewhere
    assert mask(vmm) == machine.other
    assert mask(by_name(vmm, "CPU 1/KVM")) == machine.pool
    machine.report("a", machine.other)  # and now the others, too
    assert {mask(tid) for tid in tids(vmm)} == {machine.other}
    assert machine.node_state.newborn_counts == {}


def test_a_reported_thread_moved_by_another_writer_is_not_counted_as_new(machine: Machine, crowd: Path) -> None:
    machine.resync()
    time.sleep(0.03)
    vmm = machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    machine.executed(vmm)
    before = machine.account("a").outside.count
    tid = by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.both.frozen())
    machine.resync()
    assert mask(tid) == machine.pool
    assert machine.account("a").outside.count == before


def test_a_thread_older_than_the_watcher_is_not_counted_as_new(machine: Machine, crowd: Path) -> None:
    machine.crowd(crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp", "2")
    time.sleep(0.03)
    placer = NewbornPlacer(machine.reconciler)
    placer.after_pass(machine.reconciler.resync(full=True), everything=True)
    assert machine.node_state.newborn_counts == {}
