"""When the NIC of a VM is read. It is this machine's own network that is read, and a VM is a process of the test."""

from __future__ import annotations

import os
import resource
import sys

import pytest

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.features.network.vm_nics import VmNics
from vmpin.host.procfs import Procfs
from vmpin.vmm.process_table import ROUNDS
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

POD, OTHER = SandboxId("pod"), SandboxId("other")


@pytest.fixture
def nics() -> VmNics:
    return VmNics(Procfs(), "/sys")


def vm(sandbox: SandboxId, late: int = 0) -> Vm:
    stat = Procfs().thread_stat(os.getpid(), os.getpid())
    assert stat is not None
    main = ThreadId(os.getpid(), stat.starttime + late)
    return Vm(sandbox, QEMU, Process(main.tid, main, ThreadRole.EMULATOR, []))


def test_with_another_policy_nothing_is_read_or_loaded(nics: VmNics, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("node_links", "near_nic", "rtnetlink"):
        monkeypatch.delitem(sys.modules, f"vmpin.features.network.{name}", raising=False)
    assert nics.refresh({POD: vm(POD)}, 0, wanted=False) == set()
    assert nics.found == {}
    assert not {"vmpin.features.network.node_links", "vmpin.features.network.near_nic"} & sys.modules.keys()


def test_a_new_vm_is_read_once_and_again_at_its_turn(nics: VmNics) -> None:
    vms = {POD: vm(POD)}
    assert nics.refresh(vms, 1, wanted=True) == {POD}
    first = nics.found
    assert nics.refresh(vms, 2, wanted=True) == set()
    assert nics.found is first
    assert nics.refresh(vms, ROUNDS, wanted=True) == set()  # read, and the same
    assert nics.found is not first
    vms[OTHER] = vm(OTHER, late=1)
    assert nics.refresh(vms, ROUNDS + 1, wanted=True) == {OTHER}
    assert nics.refresh({OTHER: vms[OTHER]}, 2 * ROUNDS, wanted=True) == set()
    assert list(nics.found) == [vms[OTHER].vmm.id]


def test_a_policy_that_is_near_no_longer_has_all_placed_again(nics: VmNics) -> None:
    vms = {POD: vm(POD)}
    nics.refresh(vms, 1, wanted=True)
    assert nics.refresh(vms, 2, wanted=False) == {POD}
    assert (nics.found, nics.refresh(vms, 3, wanted=False)) == ({}, set())


def test_links_that_cannot_be_read_are_logged_once(nics: VmNics, caplog: pytest.LogCaptureFixture) -> None:
    vms = {POD: vm(POD)}
    nics.refresh({OTHER: vm(OTHER)}, 0, wanted=True)  # loads what it takes to read
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        for turn in (1, ROUNDS, 2 * ROUNDS):
            nics.refresh(vms, turn, wanted=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert nics.found[vms[POD].vmm.id].numa_node is None
    assert nics.found[vms[POD].vmm.id].why.startswith("the node's links cannot be read: rtnetlink: ")
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "links of the node not read (rtnetlink"]
