"""Programs that are executed: a sandbox's are placed before any pass."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kata_shim import Shim
from need import need_root, need_tool
from newcomers import PREFIX, SHIM, Machine, Thread, by_name, mask, own, sandbox, shared_dir, tids, until

from vmpin.cpuset import CpuSet
from vmpin.domain.events import SandboxSeen, SuspensionChanged
from vmpin.host.procfs import Procfs
from vmpin.procevents.newborn_placer import NewbornPlacer
from vmpin.vmm.dragonball import DRAGONBALL
from vmpin.wire.proc_events import Comm, Event, Exec, Fork

pytest_plugins = ["given_unit"]


# Programs


def test_a_vmm_without_any_report_goes_to_the_shared_pool_at_its_exec(machine: Machine) -> None:
    vmm = machine.vmm("a")
    follow_up = machine.executed(vmm)
    assert mask(vmm) == machine.pool
    assert (follow_up.relevant, follow_up.started) == (True, {sandbox("a")})
    assert machine.node_state.inventory.vms[sandbox("a")].vmm.pid == vmm.pid
    account = machine.account("a")
    assert (account.reported, account.born_inside, account.outside.count, account.placed.count) == (1, 0, 1, 1)
    assert 0 < account.outside.longest == account.placed.longest < 300


def test_a_vmm_whose_containers_are_known_goes_to_their_cpus(machine: Machine) -> None:
    machine.report("a", machine.other)
    vmm = machine.vmm("a")
    machine.executed(vmm)
    assert mask(vmm) == machine.other


@pytest.mark.parametrize("name", ["qemu", "virtiofsd"])
def test_it_is_placed_before_any_pass(machine: Machine, name: str) -> None:
    made = machine.vmm("a") if name == "qemu" else machine.virtiofsd("a")
    machine.placer.handle([Exec(time.monotonic_ns(), made.pid)])
    assert mask(made) == machine.pool


def test_other_programs_are_left_alone(machine: Machine) -> None:
    others = [machine.process("sleep"), machine.process("qemu-system-x86_64", "-name", "another-programs"),
              machine.process("qemu-system-x86_64", "-name", "sandbox-x" + PREFIX), machine.process(SHIM, "-id", "x")]
    follow_up = machine.executed(*others, os.getpid(), 2, 1 << 22)
    assert {mask(process) for process in others} == {machine.both}
    assert (follow_up.relevant, follow_up.now, machine.node_state.newborn_counts) == (False, set(), {})


def test_an_unpinned_or_excluded_sandbox_is_left_alone_at_its_vmms_exec(machine: Machine) -> None:
    machine.report("a", machine.other)
    machine.node_state.apply_events([SuspensionChanged(sandbox("a"), True)])
    machine.reconciler.reconcile([sandbox("a")])
    vmm = machine.vmm("a")
    machine.executed(vmm)
    assert mask(vmm) == machine.both


def test_a_second_vmm_of_a_sandbox_is_left_alone_from_its_exec_on(machine: Machine) -> None:
    """Any process can write such a command line."""
    vmm = machine.vmm("a")
    machine.executed(vmm)
    second = machine.vmm("a")
    machine.executed(second)
    machine.resync()
    assert (mask(vmm), mask(second)) == (machine.pool, machine.both)
    vmm.kill()
    vmm.wait()
    third = machine.vmm("a")
    machine.executed(third)  # when the first has ended it may be
    assert mask(third) == machine.pool


@pytest.mark.parametrize("argv", [("qemu-system-x86_64", "-name", "sandbox-{}"), (SHIM, "-id", "{}"),
                                  ("virtiofsd", "--shared-dir=/run/kata-containers/shared/sandboxes/{}/")])
def test_a_container_that_executes_such_a_program_is_left_alone(machine: Machine, argv: tuple[str, ...]) -> None:
    """Its processes are in a pid namespace of their own, and where the kubelet put them."""
    need_root()
    program = machine.path / argv[0]
    program.symlink_to("/bin/sh")
    outside = subprocess.Popen(
        [need_tool("unshare"), "--pid", "--fork", "--kill-child", program, "-c", "read line",
         *(word.format(sandbox("a")) for word in argv[1:])], stdin=subprocess.PIPE, preexec_fn=machine.free)
    machine.children.append(outside)
    until(lambda: (found := Procfs().children(outside.pid)) and Procfs().cmdline(found[0])[:1] == [str(program)])
    (inside,) = map(int, Procfs().children(outside.pid))
    follow_up = machine.executed(inside)
    machine.resync()
    assert mask(inside) == machine.both
    assert (follow_up.relevant, machine.node_state.inventory.vms, machine.node_state.newborn_counts) == (False, {}, {})
    assert machine.reconciler.view.all_sandboxes() == []


def test_threads_of_a_helper_that_was_given_back_are_left_alone(machine: Machine, crowd: Path) -> None:
    machine.node_state.apply_events([SandboxSeen(sandbox("a"), "oci")])
    helper = machine.crowd(crowd, "virtiofsd", shared_dir("a"))
    machine.executed(helper)
    machine.reconciler.unpin([sandbox("a")])
    tid = next(tid for tid in tids(helper) if tid != helper.pid)
    assert mask(tid) == machine.both
    machine.take(Fork(time.monotonic_ns(), helper.pid, helper.pid, tid, helper.pid))
    assert mask(tid) == machine.both
    machine.reconciler.take_back([sandbox("a")])
    machine.take(Fork(time.monotonic_ns(), helper.pid, helper.pid, tid, helper.pid))
    assert mask(tid) == machine.pool


def test_threads_created_before_the_inspection_are_placed_with_their_process(machine: Machine, crowd: Path) -> None:
    helper = machine.crowd(crowd, "virtiofsd", shared_dir("a"))
    machine.placer.handle([Exec(time.monotonic_ns(), helper.pid)])
    assert {mask(tid) for tid in tids(helper)} == {machine.pool}
    account = machine.account("a")
    assert (account.reported, account.outside.count) == (len(tids(helper)), len(tids(helper)))


def test_a_few_processes_forked_before_the_inspection_are_placed_with_their_parent(machine: Machine) -> None:
    """QEMU's -daemonize forks twice; a process that forks on and on does not keep the watcher from the others."""
    vmm = machine.vmm("a", script="exec 3<&0; fork() { if [ $1 = 30 ]; then echo .; read line <&3; else"
                                  " fork $(($1 + 1)) & wait; fi; }; fork 0")
    assert vmm.stdout is not None
    assert vmm.stdout.read(1) == b"."
    chain = [vmm.pid]
    while children := Procfs().children(chain[-1]):
        chain.append(int(children[0]))
    assert len(chain) == 31
    machine.placer.handle([Exec(time.monotonic_ns(), vmm.pid)])
    masks = [mask(pid) for pid in chain]
    assert masks[:3] == [machine.pool] * 3
    assert masks.count(machine.pool) < 10
    assert masks[-1] == machine.both


def test_a_process_that_executes_another_program_is_no_longer_followed(machine: Machine) -> None:
    vmm = machine.process("qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')}", script="read line; exec sleep 600")
    machine.executed(vmm)
    assert sandbox("a") in machine.node_state.inventory.vms
    assert vmm.stdin is not None
    vmm.stdin.write(b"go\n")
    vmm.stdin.flush()
    until(lambda: Procfs().cmdline(vmm.pid) == ["sleep", "600"])
    machine.executed(vmm)
    assert sandbox("a") not in machine.node_state.inventory.vms
    with Thread() as thread:
        machine.take(Fork(time.monotonic_ns(), 1, 1, thread.tid, vmm.pid))
        assert mask(thread.tid) == CpuSet(os.sched_getaffinity(0))


def test_a_vmm_that_executes_itself_with_other_arguments_is_another(machine: Machine) -> None:
    (machine.path / "qemu-system-x86_64").symlink_to("/bin/sh")
    name = f"-name sandbox-{sandbox('a')}"
    vmm = machine.vmm("a", script=f"read line; PATH={machine.path} exec qemu-system-x86_64 -c 'read x' {name} -smp 7")
    machine.executed(vmm)
    assert vmm.stdin is not None
    vmm.stdin.write(b"go\n")
    vmm.stdin.flush()
    until(lambda: Procfs().cmdline(vmm.pid)[-1:] == ["7"])  # none for a moment, while it executes itself
    machine.executed(vmm)
    assert machine.node_state.inventory.vms[sandbox("a")].vmm.argv[-2:] == ["-smp", "7"]


def test_a_helper_belongs_to_the_vm_that_comes_later(machine: Machine) -> None:
    shim = machine.shim("a")
    machine.executed(shim)
    assert machine.node_state.inventory.vms == {}
    vmm = machine.vmm("a")
    machine.executed(vmm)
    machine.report("a", machine.other)
    vm = machine.node_state.inventory.vms[sandbox("a")]
    assert [process.pid for process in vm.helpers] == [shim.pid]
    assert (mask(shim), mask(vmm)) == (machine.other, machine.other)


# Kata's shim: it sizes the VM by its own mask


def test_a_shim_keeps_its_mask_until_its_vmm_runs(machine: Machine, crowd: Path) -> None:
    """Events, passes and another watcher's first look find the shim; none of them sets a mask."""
    machine.report("a", machine.other)
    shim = machine.crowd(crowd, SHIM, "-namespace", "k8s.io", "-id", sandbox("a"))
    tid = next(tid for tid in tids(shim) if tid != shim.pid)
    follow_up = machine.executed(shim)
    machine.take(Fork(time.monotonic_ns(), shim.pid, shim.pid, tid, shim.pid))
    machine.resync()
    machine.fresh().resync(full=True)
    machine.executed(shim)
    assert {mask(tid) for tid in tids(shim)} == {machine.both}
    assert (follow_up.now, machine.node_state.newborn_counts) == (set(), {})
    assert machine.reconciler.view.all_sandboxes() == [sandbox("a")]
    vmm = machine.vmm("a")
    machine.executed(vmm)
    assert {mask(vmm), *(mask(tid) for tid in tids(shim))} == {machine.other}
    assert machine.account("a").outside.count == 1, "the VMM's main thread: a shim that waits for its VMM is no leak"
    machine.reconciler.unpin([sandbox("a")])
    assert {mask(vmm), *(mask(tid) for tid in tids(shim))} == {machine.both}


def test_a_shim_of_a_vm_that_a_pass_found_does_not_count_as_outside(machine: Machine) -> None:
    machine.resync()
    shim = machine.shim("a")
    time.sleep(0.03)  # a clock tick or more between the start times
    vmm = machine.vmm("a")
    machine.resync()
    assert (mask(shim), mask(vmm)) == (machine.pool, machine.pool)
    assert machine.account("a").outside.count == 1


@pytest.mark.parametrize(("rule", "expected"), [("off", "both"), ("sandbox", "pool"), ("other", "other")])
def test_a_shim_is_placed_by_its_policy_once_its_vmm_runs(machine: Machine, rule: str, expected: str) -> None:
    machine.configure(shim=str(machine.other) if rule == "other" else rule)
    shim = machine.shim("a")
    machine.executed(shim)
    assert mask(shim) == machine.both
    machine.executed(machine.vmm("a"))
    assert mask(shim) == getattr(machine, expected)


@pytest.mark.parametrize("action", ["", "start"])
def test_a_shim_counts_every_cpu_until_its_vmm_runs(
        machine: Machine, shim_program: Path, crowd: Path, action: str) -> None:
    """At its start, when it checks annotations, and when it loads its configuration; its VMM is placed at its exec."""
    machine.report("a", machine.other)
    with Shim(shim_program, sandbox("a"), machine.both.frozen(), action) as shim:
        machine.executed(shim.pid)
        machine.resync()
        assert shim.counts() == {2}
        vmm_program = machine.path / "qemu-system-x86_64"
        vmm_program.symlink_to(crowd)
        vmm = shim.vmm([str(vmm_program), "-name", f"sandbox-{sandbox('a')}"])
        try:
            until(lambda: Procfs().cmdline(vmm)[-1:] == [f"sandbox-{sandbox('a')}"])
            assert mask(vmm) == machine.both
            machine.placer.handle([Exec(time.monotonic_ns(), vmm)])
            assert mask(vmm) == machine.other, "ahead of any pass"
            machine.executed(vmm)
            assert mask(shim.pid) == machine.other
        finally:
            os.kill(vmm, signal.SIGKILL)


@pytest.mark.parametrize("again", [False, True])
def test_a_shim_that_becomes_the_vmm_is_placed_at_its_first_vcpu(
        machine: Machine, shim_program: Path, again: bool) -> None:
    """Dragonball: a library in the shim's own process. A watcher that came later must know the shim, too."""
    with Shim(shim_program, sandbox("a"), machine.both.frozen()) as shim:
        machine.executed(shim.pid)
        if again:
            machine.reconciler = machine.fresh()
            machine.placer = NewbornPlacer(machine.reconciler)
            machine.resync()
        assert shim.counts() == {2}
        tid = shim.ask("vcpu", "0")
        follow_up = machine.take(Comm(time.monotonic_ns(), tid, shim.pid, "db_vcpu0"))
        assert follow_up.started == {sandbox("a")}
        assert machine.node_state.inventory.vms[sandbox("a")].type is DRAGONBALL
        assert {mask(int(tid)) for tid in os.listdir(f"/proc/{shim.pid}/task")} == {machine.pool}


@pytest.mark.parametrize("action", ["start", "delete"])
def test_a_runtimes_call_of_the_shims_program_is_no_sandbox(machine: Machine, action: str) -> None:
    """One for each container, with the container's id."""
    machine.executed(machine.vmm("a"))
    called = [machine.process(SHIM, "-namespace", "k8s.io", "-id", sandbox(name), action) for name in ("a", "c1")]
    follow_up = machine.executed(*called)
    machine.resync()
    assert {mask(process) for process in called} == {machine.both}
    assert (follow_up.relevant, follow_up.now) == (False, set())
    assert own(machine.reconciler.view.vm_sandboxes()) == own(machine.node_state.newborn_counts) == {sandbox("a")}
    assert not {process.pid for process in called} & machine.node_state.inventory.process_table.helpers.keys()


# Any order


def test_events_may_be_doubled_late_or_wrong(machine: Machine, crowd: Path) -> None:
    vmm, now = machine.running(crowd), time.monotonic_ns()
    tid = by_name(vmm, "CPU 1/KVM")
    events: list[Event] = [
        Comm(now, tid, vmm.pid, "CPU 1/KVM"), Fork(now, 1, 1, tid, vmm.pid), Exec(now, vmm.pid),
        Fork(now, 1, 1, tid, vmm.pid), Comm(now, tid, vmm.pid, "\ufffd"), Exec(now, tid), Exec(now, 0),
        Fork(now, 0, 0, 0, vmm.pid), Comm(now, 0, vmm.pid, "CPU 99999/KVM"), Exec(now, vmm.pid)]
    for _ in range(2):
        for event in events:
            machine.take(event)
    assert {mask(tid) for tid in tids(vmm)} == {machine.pool}
    vmm.kill()
    vmm.wait()
    for event in events:
        machine.take(event)
    assert machine.node_state.inventory.vms == {}
