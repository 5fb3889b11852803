"""A guest with Linux under KVM, of Kata's Go runtime: the agent in it gets its map over a real AF_VSOCK; with vmpin
on the host a container's busy threads run on their own CPUs of the node and on no other. The same from the CRI on, and
what else there is to an agent under KVM, is in test_guest_chain.py; what needs no KVM in tests/integration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agent_client import AgentClient
from real_guest import GuestContainer, RealGuest, built_agent, image

from lab.node_tests.machines import PATIENCE, Kata, Vmpin, mask, until
from vmpin.cpuset import CpuSet
from vmpin.protocol.messages import NeedMap, Ping, Unpin

CID = 4711
ALL = CpuSet.parse("0-3")
#: The guest is emulated twice.
SLOW = PATIENCE * 2


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGuest]:
    agent = built_agent(tmp_path_factory.mktemp("agent"))
    with image() as built, RealGuest(built, accel="kvm", agent=agent, vsock_cid=CID) as made:
        print(f"booted in {made.boot_seconds:.0f} s")
        yield made


@pytest.fixture(scope="module", autouse=True)
def agent(guest: RealGuest) -> int:
    """Its pid. It runs for AF_VSOCK alone."""
    return guest.start_agent("--serial", "")


def wait_for_masks(made: GuestContainer, cpus: CpuSet) -> None:
    """Until every thread of it may run on just these of the guest's CPUs."""
    until(lambda: {each & ALL for each in made.masks().values()} == {cpus},
          lambda: f"{made.cgroup} on {cpus}, have {made.threads()}", SLOW)


def test_a_busy_container_is_on_its_own_cpus_of_the_node(guest: RealGuest, kata: Kata, vmpin: Vmpin) -> None:
    """From the placement on the host through the map in the guest to the CPU time of the vCPUs' threads."""
    vmpin.configure(node__shared_pool="0-1")
    kata.write(guest, {"main": "2-3", "side": "0-1"})
    vmpin.reconcile()
    places = {index: mask(tid) for tid, index in guest.vcpus().items()}
    own = {index for index, cpus in places.items() if cpus <= CpuSet.parse("2-3")}
    assert len(own) == 2, places
    assert {str(places[index]) for index in own} == {"2", "3"}
    ours, spare = CpuSet(own), ALL - CpuSet(own)

    main, side = guest.container("main", busy=2), guest.container("side", busy=2)
    with AgentClient.vsock(CID, patience=SLOW) as host:
        host.ask(Ping())
        assert any(isinstance(each, NeedMap) for each in host.said)
        host.put({"main": str(ours), "side": str(spare)}, system=str(spare), exclusive=("main",))
        wait_for_masks(main, ours)
        wait_for_masks(side, spare)
        side.remove()
        until(lambda: guest.load(2).busy() == (own, own), lambda: f"{own} busy, are {guest.load(2)}", SLOW)
        # And those threads may run nowhere else.
        assert {str(mask(tid)) for tid, index in guest.vcpus().items() if index in own} == {"2", "3"}
        host.ask(Unpin())
        wait_for_masks(main, ALL)
    main.remove()
