"""Passes in which nothing has changed: what they read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from newcomers import Machine, by_name, sandbox, tids
from system_calls import system_calls

from vmpin.reconcile import source_findings
from vmpin.vmm.process_table import ROUNDS, SELDOM, YOUNG_PASSES

pytest_plugins = ["given_unit"]

#: What a pass reads whatever is on the node: the online and the isolated CPUs, the checkpoint, the DRA driver's claims
#: and registration, Kata's directories.
OPENS, STATS = 4, 5


def _vmm(machine: Machine, crowd: Path, name: str) -> subprocess.Popen[bytes]:
    return machine.crowd(
        crowd, "qemu-system-x86_64", "-name", f"sandbox-{sandbox(name)},debug-threads=on", "-smp", "8")


def _settle(machine: Machine, monkeypatch: pytest.MonkeyPatch, *own: int) -> None:
    """Only these processes are there, the kernel reports what they do, and nothing is new any more."""
    monkeypatch.setattr(machine.node_state.proc, "pids", lambda: list(map(str, own)))
    machine.reconciler.resync(full=True)
    machine.node_state.forks_reported(True)
    for _ in range(YOUNG_PASSES + 1):
        machine.reconciler.resync()


def test_a_pass_without_changes_reads_masks_and_counts_threads_and_opens_no_file_of_theirs(
        machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.node_state.proc, "pids", list)
    machine.reconciler.resync()
    bare = system_calls(machine.reconciler.resync)
    vmms = [_vmm(machine, crowd, name) for name in "abc"]
    _settle(machine, monkeypatch, *(vmm.pid for vmm in vmms))
    monkeypatch.setattr(source_findings, "rivals", None)  # not worked out again
    passes = [system_calls(machine.reconciler.resync) - bare for _ in range(SELDOM)]
    expected = {"sched_getaffinity": sum(len(tids(vmm)) for vmm in vmms), "stat": len(vmms)}
    assert sum(calls != expected for calls in passes) <= len(vmms), passes  # its turn comes once to each


def _calls(do: Callable[[], object]) -> int:
    """How many functions `do` calls, in Python or in C."""
    calls = 0

    def count(_: FrameType, event: str, function: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
    return calls


def test_a_pass_without_changes_calls_few_functions_for_a_vm(
        machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.node_state.proc, "pids", list)
    machine.reconciler.resync()
    bare = min(_calls(machine.reconciler.resync) for _ in range(3))
    vmms = [_vmm(machine, crowd, name) for name in "abc"]
    _settle(machine, monkeypatch, *(vmm.pid for vmm in vmms))
    masks = sum(len(tids(vmm)) for vmm in vmms)
    assert min(_calls(machine.reconciler.resync) for _ in range(SELDOM)) - bare - masks <= 60 * len(vmms)


def test_names_are_read_again_after_lost_events_and_else_seldom(
        machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no event is lost, each new name is reported."""
    vmm = _vmm(machine, crowd, "a")
    _settle(machine, monkeypatch, vmm.pid)
    tid, stats = by_name(vmm, "call_rcu"), machine.node_state.vms[sandbox("a")].vmm.stats

    def name_after(full: bool, *, passes: int = 1) -> str:
        """Its name as a pass has it that was wrong before, as after a lost event."""
        machine.node_state.vms[sandbox("a")].vmm.stats[tid] = stats[tid]._replace(comm="before")
        machine.node_state.inventory.process_table.round = vmm.pid + ROUNDS - 1  # its turn without events
        for _ in range(passes):
            machine.reconciler.resync(full=full)
        return machine.node_state.vms[sandbox("a")].vmm.stats[tid].comm

    assert name_after(full=False) == "before"
    assert name_after(full=True) == "call_rcu"
    assert name_after(full=False, passes=SELDOM) == "call_rcu"
    machine.node_state.forks_reported(False)
    assert name_after(full=False) == "call_rcu"


@pytest.mark.parametrize(("named", "files"), [(False, 3), (True, 2)])
def test_a_first_pass_makes_seven_system_calls_a_thread_and_reads_three_files_of_a_vmm(
        named: bool, files: int, machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line, stat, and status; no status of a VMM that Kata's state names."""
    vmms = [_vmm(machine, crowd, name) for name in "abc"]
    for name, vmm in zip("abc" if named else "", vmms, strict=False):
        file = machine.path / "kata_go" / "sbs" / sandbox(name) / "persist.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"HypervisorState": {"Pid": vmm.pid, "Type": "qemu"}}))
    threads = sum(len(tids(vmm)) for vmm in vmms)
    monkeypatch.setattr(machine.node_state.proc, "pids", lambda: [str(vmm.pid) for vmm in vmms])
    calls = system_calls(lambda: machine.reconciler.resync(full=True))
    assert calls["sched_getaffinity"] == 3 * threads  # before, at once before, and afterwards
    assert calls["sched_setaffinity"] == threads
    assert calls["pread"] == len(vmms)  # the others of a VMM are checked by its task directory
    own = 2 * len(vmms) if named else 0  # Kata's files: each with a second read, for its end
    assert 0 <= calls["read"] - threads - files * len(vmms) - own <= 4, calls
    # The task directory, too; it and a stat file once more to set the masks.
    assert 0 <= calls["open"] - threads - (files + 3) * len(vmms) - own // 2 <= 12, calls
