"""The guests of a node: what each is sent and when, over hybrid vsock as Firecracker has it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import effort
from guest_machines import POD, QUICK, Machine, changed, running
from guest_peer import Agent, until

from vmpin.config.timeouts import Timeouts
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuId, VcpuState, VmThread
from vmpin.guests import vm_guest
from vmpin.guests.channels import Channel, Vsock, find_channels
from vmpin.guests.manager import GuestManager
from vmpin.guests.vm_guest import VmGuest, guest_vcpus
from vmpin.host.procfs import Procfs
from vmpin.protocol.messages import Unpin, VcpuMap
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Vm


async def test_vmpins_agent_comes_first_and_is_sent_each_change(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
        assert node.by() == "vmpin-agent"
        assert node.asked == [10789]
        assert {cid: share.hw for cid, share in node.agent.maps[-1].containers.items()} == {
            "web": (2, 3), "logs": (0, 1)}
        assert node.agent.maps[-1].system == (0, 1)
        for number in range(20):  # how soon is the bench's to say (guest_apply)
            count = len(node.agent.maps)
            node.give("2" if number % 2 == 0 else "2-3")
            assert node.states()["web"] == "pending"
            await until(lambda: len(node.agent.maps) > count)  # noqa: B023
            await until(lambda: node.states()["web"] == "applied")
        count = len(node.agent.maps)
        node.update()
        node.give("2-3")  # the same in other objects
        await asyncio.sleep(0.05)
        assert len(node.agent.maps) == count


async def test_katas_own_agent_is_used_until_vmpins_answers(tmp_path: Path) -> None:
    node = Machine(tmp_path, ports={1024})
    async with running(node):
        await until(lambda: node.states() == {"web": "sent", "logs": "sent"})
        assert node.kata.containers == {"web": "2-3", "logs": "0-1"}
        assert node.by() == "kata-agent"
        node.ports.add(10789)
        await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
        assert node.by() == "vmpin-agent"
        calls = len(node.kata.calls)
        node.give("3")
        await until(lambda: node.agent.maps[-1].containers["web"].hw == (3,))
        assert len(node.kata.calls) == calls
        node.ports.discard(10789)
        assert node.agent.writer is not None
        node.agent.writer.transport.abort()
        await until(lambda: node.states() == {"web": "sent", "logs": "sent"})
        assert node.kata.containers["web"] == "3"


async def test_a_guest_without_an_agent_makes_no_line_in_the_log(tmp_path: Path,
                                                                 caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(Machine(tmp_path, ports=set())) as node:
        await until(lambda: node.asked.count(1024) >= 2)
        assert all(text.startswith("no agent") for text in node.states().values())
        assert node.by() == ""
    assert caplog.records == []


@pytest.mark.parametrize(("via", "ports"), [("vmpin-agent", {10789}), ("kata-agent", {1024})])
async def test_only_the_configured_agent_is_used(via: str, ports: set[int], tmp_path: Path) -> None:
    async with running(Machine(tmp_path, {"guest_via": via})) as node:
        await until(lambda: node.by() == via)
        await asyncio.sleep(0.3)
        assert set(node.asked) == ports


@pytest.mark.parametrize("values", [{"guest_via": "off"}, {"guest_disabled_handlers": "kata-tdx,kata-f*"}])
async def test_a_guest_without_a_map_is_not_even_connected_to(values: dict[str, str], tmp_path: Path) -> None:
    async with running(Machine(tmp_path, values)) as node:
        await asyncio.sleep(0.2)
        assert node.asked == []
        assert node.guests.report(POD) is None


async def test_unidentified_vcpus_narrow_no_container(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        count = len(node.agent.maps)
        node.vm.vcpu_state = VcpuState.UNIDENTIFIED
        node.give("2")
        await asyncio.sleep(0.05)
        assert len(node.agent.maps) == count
        assert node.states()["web"] == "pending: its vCPUs are not identified yet"
        node.vm.vcpu_state = VcpuState.IDENTIFIED
        node.give("2")
        await until(lambda: node.states()["web"] == "applied")


async def test_a_vm_that_ends_and_one_that_comes_in_its_place(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        node.vm.vmm = changed(node.vm.vmm, id=ThreadId(os.getpid(), 2))
        node.update()
        await until(lambda: node.agent.connections == 2)
        await until(lambda: node.states().get("web") == "applied")
        node.view.vms = {}
        node.update()
        assert node.guests.report(POD) is None
        await asyncio.sleep(0.05)
        assert not isinstance(node.agent.requests[-1], Unpin)


async def test_the_watcher_started_again_sends_it_again(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        old = node.agent.maps[-1].generation
        node.guests = GuestManager(timeouts=QUICK)
        node.update()
        task = asyncio.create_task(node.guests.run())
        await until(lambda: node.states().get("web") == "applied")
        assert node.agent.maps[-1].generation > old
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_foreign_agent_is_an_error_with_a_counter_in_the_status(tmp_path: Path) -> None:
    class Mad(Agent):
        async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00\x00\x00\x09[\x1b[31m\x07]]]")
            await reader.read()
    async with running(Machine(tmp_path, {"guest_via": "vmpin-agent"}, agent=Mad())) as node:
        await until(lambda: counted(node)["refused"] >= 3)
        assert set(node.states().values()) == {f"error: {counted(node)['state']}"}
        assert "not version 1 of the protocol" in counted(node)["last_error"]
        assert counted(node)["last_error"].isprintable()
        node.agent = Agent()
        await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
        assert counted(node)["refused"] >= 3


def counted(node: Machine) -> dict[str, Any]:
    found = node.guests.data(POD)
    assert found is not None
    return found[0]


async def test_an_agent_that_comes_late_is_found_on_request(tmp_path: Path) -> None:
    rare = GuestManager(timeouts=Timeouts(agent_first=60.0, agent_last=60.0, agent_early=0.05))
    async with running(Machine(tmp_path, ports=set(), guests=rare)) as node:
        await until(lambda: node.asked == [10789, 1024])
        node.ports = {10789, 1024}
        await asyncio.sleep(0.1)
        assert node.asked == [10789, 1024]
        node.guests.retry_now()
        await until(lambda: node.states() == {"web": "applied", "logs": "applied"})


def test_the_cid_on_a_command_line_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest without an agent is tried again and again, and a Kata's command line has a hundred words."""
    node, searches = Machine(tmp_path), list[Vm]()

    def search(vm: Vm, *places: Any) -> Sequence[Channel]:
        searches.append(vm)
        return find_channels(vm, *places)

    monkeypatch.setattr(vm_guest, "find_channels", search)
    argv = ["/usr/bin/qemu-system-x86_64", "-device", "vhost-vsock-pci,guest-cid=7"]
    vms = (node.vm, 0), (changed(node.vm, type=QEMU, vmm=changed(node.vm.vmm, argv=argv)), 7)
    for (vm, cid), count in zip(vms, (3, 1), strict=True):  # a hybrid vsock's socket may appear later
        searches.clear()
        guest = VmGuest("auto", vm, "", Procfs(), node.config(), lambda cid, sandbox: None)
        assert [list(guest.channels()) for _ in range(3)] == [[Vsock(cid)] if cid else []] * 3
        assert len(searches) == count


def test_vcpus_are_in_the_order_of_creation(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    threads = {tid: VmThread(ThreadId(tid, began), ThreadRole.VCPU, f"CPU {vcpu}/KVM", 1, VcpuId(vcpu))
               for tid, began, vcpu in ((500, 9, 6), (400, 7, 1), (401, 7, 0), (402, 9, 7), (600, 1, 2))}
    argv = ["/usr/bin/qemu-system-x86_64", "-smp", "2,cores=1,threads=1,sockets=8,maxcpus=8"]
    vmm = changed(node.vm.vmm, argv=argv, threads={**threads, 700: threads[500]._replace(
        id=ThreadId(700, 1), role=ThreadRole.EMULATOR, vcpu=None)})
    found = guest_vcpus(changed(node.vm, type=QEMU, vmm=vmm), {VcpuId(number): number for number in (0, 1, 6,
    7)})
    assert ([*found.hw], found.boot, found.most, found.plugged) == ([1, 0, 7, 6], 2, 8, [7, 6])
    assert guest_vcpus(node.vm, {VcpuId(number): number for number in range(4)}).plugged == []


def test_a_map_that_could_not_be_derived_is_derived_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Machine(tmp_path)
    guest = VmGuest("vmpin-agent", node.vm, "", Procfs(), node.config(), lambda cid, sandbox: None)
    state = node.view.sandboxes[POD]
    with monkeypatch.context() as patch:
        patch.setattr(vm_guest, "guest_map", None)
        with pytest.raises(TypeError):
            guest.update(node.vm, node.placement, state)
    guest.update(node.vm, node.placement, state)
    assert isinstance(guest.agent and guest.agent.wish, VcpuMap)


def test_threads_that_an_earlier_watcher_identified_count_once_they_are_read(tmp_path: Path) -> None:
    """The first reading may fail, for want of descriptors for instance: then the file's threads alone are known."""
    node = Machine(tmp_path)
    guest = VmGuest("vmpin-agent", node.vm, "", Procfs(), node.config(), lambda cid, sandbox: None)
    unread = changed(node.vm, vcpus=(), vcpu_state=VcpuState.AWAITED)
    guest.update(unread, node.placement, node.view.sandboxes[POD])
    assert guest.trouble
    guest.update(node.vm, node.placement, node.view.sandboxes[POD])
    assert isinstance(guest.agent and guest.agent.wish, VcpuMap)


async def test_an_update_of_three_hundred_unchanged_guests_costs_little(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    vms, states, placements = {}, {}, {}
    for number in range(300):
        pod = SandboxId(f"pod-{number}")
        vms[pod] = changed(node.vm, sandbox=pod)
        states[pod] = node.view.sandboxes[POD]._replace(id=pod)
        placements[pod] = node.view.placements[POD]._replace(sandbox=pod)
    node.view.vms, node.view.placements = vms, placements
    node.view.sandboxes = states
    node.update()
    assert effort(node.update, 20) < 0.6


def test_a_failed_update_is_logged_once_and_stops_no_pass(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vmpin.guests.vm_guest", None)  # as if a library were not there
        machine = Machine(tmp_path)
        machine.update()
    assert len(caplog.records) == 1
    assert "guest not updated" in caplog.text
    assert machine.guests.data(POD) is None
    machine.update()
    assert machine.guests.data(POD) is not None


async def test_a_cid_that_two_vmms_name_is_connected_to_for_neither(tmp_path: Path) -> None:
    """A command line is its process's to write; the kernel gives a CID to one VM."""
    node = Machine(tmp_path, {"guest_via": "off"})
    argv = ["qemu-system-x86_64", "-smp", "4", "-device", "vhost-vsock-pci,guest-cid=77"]
    pods = [SandboxId("pod-a"), SandboxId("pod-b")]
    vms = {pod: changed(node.vm, sandbox=pod, type=QEMU, vmm=changed(node.vm.vmm, argv=argv))
           for pod in pods}
    node.view.config = node.config()

    def state(pod: SandboxId) -> str:
        report = node.guests.report(pod)
        return "" if report is None else report.state

    async def tried(present: list[SandboxId], contested: bool) -> None:
        node.view.vms = {pod: vms[pod] for pod in present}
        node.update()
        node.guests.retry_now()
        await until(lambda: all(state(pod) and ("is also the CID" in state(pod)) == contested for pod in present))

    task = asyncio.create_task(node.guests.run())
    await tried(pods, contested=True)
    assert all(f"sandbox {other}'s VMM" in state(pod) for pod, other in zip(pods, pods[::-1], strict=True))
    await tried(pods[1:], contested=False)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
