"""VMMs and watchers that are killed with -9 at any moment: nothing is pinned wrongly, and everything converges."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import RUN, Kata, NestedVm, Vmpin, Watcher, mask, until
from vmpin.cli.control_client import status_document
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId
from vmpin.host import affinity
from vmpin.host.procfs import Procfs
from vmpin.reconcile import state_file
from vmpin.vmm import threads
from vmpin.vmm.inventory import VmInventory

SEED = int(os.environ.get("VMPIN_LAB_SEED", "7"))


@pytest.fixture(autouse=True)
def _pool(vmpin: Vmpin) -> None:
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=1)


def shown(vm: NestedVm) -> set[str]:
    return {str(each) for each in vm.masks().values()}


def wait_for_a_change(before: Mapping[int, CpuSet]) -> None:
    """Until the first of these masks is another one: a pass is in the middle of its work."""
    def changed() -> bool:
        for tid, cpus in before.items():
            with contextlib.suppress(ProcessLookupError):
                if mask(tid) != cpus:
                    return True
        return False

    until(changed, f"another mask than {before}", every=0)


def settled(vm: NestedVm, vcpus: Sequence[str], sandbox: str) -> bool:
    own = vm.vcpu_tids()
    return ([str(mask(own[index])) for index in sorted(own)] == list(vcpus)
            and {str(each) for tid, each in vm.masks().items() if tid not in own.values()} == {sandbox})


def state_is_sound() -> None:
    """The state file is whole (or not written yet)."""
    _, trouble = state_file.load(RUN / "state.json", Procfs().boot_id())
    assert trouble == ""


# VMMs


@pytest.mark.parametrize(("where", "what", "call", "reaped"), [
    (VmInventory, "refresh", 1, True), (threads, "identify", 1, False), (affinity, "pin_threads", 1, True),
    (affinity, "_set", 4, False)],
    ids=["before its threads are read", "before they are identified, not yet reaped", "before the first mask",
         "amid the masks, not yet reaped"])
def test_a_vmm_killed_in_the_middle_of_a_pass_is_no_error_and_others_are_placed(
        where: object, what: str, call: int, reaped: bool, nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
        monkeypatch: pytest.MonkeyPatch) -> None:
    dying = nested_vm(vcpus=2, vhost_net=1, iothreads=["io1"], guest=Guest.IDLE)
    other = nested_vm(vcpus=2, vhost_net=1, guest=Guest.IDLE)
    kata.write(dying, {"a": "2-3"})
    kata.write(other, {"b": "4-5"})
    original = getattr(where, what)
    calls = 0

    def dies(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            pid = dying.pid
            dying.kill()
            if reaped:
                dying.stop()
            else:
                until(lambda: Procfs().tids(pid) == [str(pid)], "nothing of it but the zombie")
        return original(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(where, what, dies)
        vmpin.reconcile()
    assert calls >= call
    assert settled(other, ["4", "5"], "4-5")
    assert set(vmpin.reconcile().node_state.inventory.vms) == {SandboxId(other.sandbox)}
    assert settled(other, ["4", "5"], "4-5")
    state_is_sound()


@pytest.mark.release
def test_vmms_killed_at_random_moments_do_not_disturb_the_watcher_or_other_vms(
        nested_vm: StartsVms, kata: Kata, vmpin: Vmpin, watcher: Watcher) -> None:
    moments = random.Random(SEED)
    vmpin.configure(watch__resync_seconds=0.1)  # so that a pass is nearly always under way
    stays = nested_vm(vcpus=2, vhost_net=1, guest=Guest.IDLE)
    kata.write(stays, {"a": "2-3"})
    with watcher:
        pid = watcher.pid
        for number in range(4):
            victim = nested_vm(vcpus=2, vhost_net=1, vhost_vsock=True, guest=Guest.IDLE)
            before = victim.masks()
            kata.write(victim, {"b": "4-5"})
            if number % 2:
                wait_for_a_change(before)
            else:
                time.sleep(moments.uniform(0, 0.4))
            assert settled(stays, ["2", "3"], "2-3")
            victim.kill()
            victim.stop()
            kata.remove(victim)
        last = nested_vm(vcpus=2, vhost_net=1, guest=Guest.IDLE)
        kata.write(last, {"b": "4-5"})
        until(lambda: settled(last, ["4", "5"], "4-5"), lambda: f"the last one in its place: {last.masks()}")
        assert settled(stays, ["2", "3"], "2-3")

        def shown_ids() -> set[str]:
            return {each["id"] for each in status_document(vmpin.config())["sandboxes"]}

        until(lambda: shown_ids() == {stays.sandbox, last.sandbox}, lambda: f"the two that are left: {shown_ids()}")
        assert watcher.pid == pid
    log = watcher.log.read_text()
    assert "Traceback" not in log
    assert "task failed source=" not in log
    state_is_sound()


# Watchers


@pytest.mark.release
def test_watchers_killed_at_random_moments_leave_nothing_that_the_last_does_not_put_right(
        nested_vm: StartsVms, kata: Kata, vmpin: Vmpin, watcher: Watcher) -> None:
    """Containers come and go meanwhile. At any time a thread has the mask it began with or one of those that the
    rules give for what some container had; in the end all have theirs, and `unpin` still knows the first ones."""
    moments = random.Random(SEED)
    vmpin.configure(policy__emulator="sandbox", policy__iothreads="sandbox", policy__vhost="sandbox")
    vm = nested_vm(vcpus=3, vhost_net=1, iothreads=["io1"], guest=Guest.IDLE)
    vm.wait_idle()
    ways = {"2-3": {"0-1", "2", "3", "0-3"}, "4-5": {"0-1", "4", "5", "0-1,4-5"}}
    may = {"0-7"} | set().union(*ways.values())
    assert shown(vm) == {"0-7"}

    def other() -> None:
        """Something that at least the main thread has to move for."""
        here = str(mask(vm.pid))
        kata.write(vm, {"pinned": moments.choice([cpus for cpus in ways if here not in ways[cpus]]), "side": "0-1"})

    # Half of them before or in their first pass, half at an update; of each one at once when a mask has changed.
    for updates, amid in ((False, False), (False, True), (True, False), (True, True)):
        before = vm.masks()
        other()
        with watcher.log.open("ab") as log:
            killed = subprocess.Popen(vmpin.argv("watch"), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            if updates:
                until(lambda: b"watching vms=" in watcher.log.read_bytes(), "a watcher that watches")
                before = vm.masks()
                other()
            if amid:
                wait_for_a_change(before)
            else:
                time.sleep(moments.uniform(0.5, 1.5))
            assert killed.poll() is None, watcher.log.read_text()
        finally:
            killed.kill()
            killed.wait()
        watcher.log.write_bytes(b"")
        assert shown(vm) <= may
        state_is_sound()
    kata.write(vm, {"pinned": "4-5", "side": "0-1"})
    with watcher:
        # The vCPUs that were pinned before may be any two.
        until(lambda: sorted(str(mask(tid)) for tid in vm.vcpus()) == ["0-1", "4", "5"]
              and shown(vm) == ways["4-5"], lambda: f"its places: {vm.masks()}")
        assert vmpin.json("verify")["ok"] is True
        vmpin("unpin", "--every")
        assert shown(vm) == {"0-7"}
        assert "Traceback" not in watcher.log.read_text()


def test_a_watcher_that_comes_back_keeps_every_pair(nested_vm: StartsVms, kata: Kata, watcher: Watcher) -> None:
    """The pairs came about in two steps: placed afresh, vCPU 1 would be on 5 and vCPU 2 on 6."""
    vm = nested_vm(vcpus=3, guest=Guest.IDLE)
    kata.write(vm, {"a": "4-5", "side": "0-1"})
    with watcher:
        until(lambda: settled(vm, ["0-1", "4", "5"], "0-1"), lambda: f"the first step: {vm.masks()}")
        kata.write(vm, {"a": "5-6", "side": "0-1"})
        until(lambda: settled(vm, ["0-1", "6", "5"], "0-1"), lambda: f"the second step: {vm.masks()}")
        watcher.kill()
        watcher.start()
        assert settled(vm, ["0-1", "6", "5"], "0-1")
