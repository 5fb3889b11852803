"""The whole chain: what the CRI says of a container becomes where its busy threads run, in the guest and on the node.

A real containerd starts the pod's VM, under KVM, which boots Linux with vmpin's agent in it; NRI tells the watcher,
and that tells the agent over AF_VSOCK. Only Kata's part in the guest is the test's own: it makes the containers'
cgroups.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from agent_client import AgentClient
from cri_node import CriNode
from real_containerd import VM, Containerd, Pod
from real_guest import GuestContainer, RealGuest, built_agent, image
from real_node import seen

from lab.guest_image import GuestImage
from lab.node_tests.machines import PATIENCE, until
from lab.node_tests.runs import Runs
from vmpin.cpuset import CpuSet

CID = 4712
ALL = CpuSet.parse("0-3")
#: The guest is emulated twice.
SLOW = PATIENCE * 2
#: How long it is measured at least, in seconds.
_SPELL = 3.0


class PodGuest(RealGuest):
    """The VM of a pod, which the pod's runtime starts; its sandbox is the pod."""

    pod: Pod

    def __init__(self, built: GuestImage, containerd: Containerd, agent: Path) -> None:
        super().__init__(built, accel="kvm", agent=agent, vsock_cid=CID)
        self._containerd = containerd
        self.argv += ["-qmp", f"unix:{self._control},server=on,wait=off"]

    def _start(self) -> None:
        name = self.argv.index("-name")
        self._containerd.vm.write_text(json.dumps([*self.argv[:name], *self.argv[name + 2:]]))
        self.pod = self._containerd.pod("vm", VM)
        self.sandbox = self.pod.id

    def _wait(self) -> None:
        self.qmp("query-status")

    @property
    def pid(self) -> int:
        return self.pod.pid

    def vcpus(self) -> dict[int, int]:
        """By their names: QEMU's word on thread ids is of its own pid namespace."""
        return {tid: int(name[4:].partition("/")[0]) for tid, name in seen(self.pid).names.items()
                if name.startswith("CPU ")}

    def all_threads(self) -> list[int]:
        return self.tids()


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    with Containerd() as made:
        yield made


@pytest.fixture
def guest(containerd: Containerd, tmp_path: Path) -> Iterator[PodGuest]:
    agent = built_agent(tmp_path)
    with image() as built, (made := PodGuest(built, containerd, agent)):
        print(f"booted in {made.boot_seconds:.0f} s")
        made.start_agent("--serial", "")
        # It takes long to start in there, and the watcher looks for one that is late every five minutes only.
        with AgentClient.vsock(CID, patience=SLOW) as host:
            host.inventory()
        yield made


@pytest.fixture
def node(containerd: Containerd) -> Iterator[CriNode]:
    with CriNode(containerd) as made:
        made.configure(node={"shared_pool": "0-1"})
        yield made


def states(node: CriNode, guest: PodGuest) -> dict[str, str]:
    """What status has of each container in the guest, by name."""
    return {each["name"]: each["guest"]["text"] for each in node.sandbox(guest.sandbox)["containers"]
            if not each["pause"]}


def on_host(guest: PodGuest, vcpus: Mapping[int, str]) -> bool:
    return {vcpu: cpus for vcpu, cpus in seen(guest.pid).vcpus.items() if vcpu in vcpus} == vcpus


def wait_for(node: CriNode, guest: PodGuest, vcpus: Mapping[int, str], *inside: tuple[GuestContainer, str]) -> float:
    """Until vCPUs are on their CPUs and containers on their vCPUs; the seconds from the one to the other."""
    until(lambda: on_host(guest, vcpus), lambda: f"{vcpus} wanted, {seen(guest.pid)}\n{node.log()}", SLOW, every=0.005)
    began = time.monotonic()
    for made, cpus in inside:
        until(lambda made=made, cpus=cpus: {mask & ALL for mask in made.masks().values()} == {CpuSet.parse(cpus)},  # type: ignore[misc]
              lambda made=made, cpus=cpus: f"{made.cgroup} on {cpus}, has {made.threads()}\n{states(node, guest)}\n"  # type: ignore[misc]
              f"{node.log()}", SLOW, every=0.005)
    return time.monotonic() - began


def check(guest: PodGuest, busy: Mapping[int, int], sandbox: str) -> None:
    """The work that is done in the guest is done by these vCPUs, each on its CPU of the node and on no other.

    The rest of the work is the agent's, and the test's own in the guest: that is the same however little the busy ones
    got of a busy machine, whose share shows in a spell in which they got something.

    :param busy: CPUs by vCPU. :param sandbox: where all other threads of the VM may be.
    """
    until(lambda: share(guest, busy, sandbox) > 0.6, f"vCPUs {[*busy]} to do most of the work", SLOW)


def share(guest: PodGuest, busy: Mapping[int, int], sandbox: str) -> float:
    """A spell's look at it: the vCPUs' part of the work, by the guest's word or the node's, whichever is less."""
    tids = {index: tid for tid, index in guest.vcpus().items()}
    before = guest.cpu_time()
    with Runs(guest) as runs:
        deadline = time.monotonic() + _SPELL

        def spell_is_over() -> bool:
            runs.sample()
            return time.monotonic() > deadline and all(runs.used.get(tids[vcpu], 0) > 5 * 10**8 for vcpu in busy)

        until(spell_is_over, lambda: f"vCPUs {[*busy]} are to be busy, but: {runs.used}", SLOW, every=0.2)
    inside = {cpu: seconds - before[cpu] for cpu, seconds in guest.cpu_time().items()}
    outside = {vcpu: runs.used.get(tid, 0) / 1e9 for vcpu, tid in tids.items()}
    shares = [sum(each[vcpu] for vcpu in busy) / sum(each.values()) for each in (inside, outside)]
    print(f"vCPUs {CpuSet(busy)}: {shares[0]:.1%} of the work by the guest's own word, {shares[1]:.1%} by the node's; "
          + ", ".join(f"vCPU {vcpu} {spent:.1f} s on CPU {runs.cpus[tids[vcpu]]}" for vcpu, spent in outside.items()))
    assert {vcpu: runs.cpus[tids[vcpu]] for vcpu in busy} == {vcpu: CpuSet([cpu]) for vcpu, cpu in busy.items()}
    assert runs.of(guest) <= CpuSet.parse(sandbox)
    return min(shares)


def test_from_the_cri_to_the_guests_threads(node: CriNode, guest: PodGuest) -> None:
    node.connect()
    main, side = guest.pod.create("main", cpus="2-3"), guest.pod.create("side", cpus="0-1")
    in_main, in_side = guest.container(main.id, busy=2), guest.container(side.id, idle=1)
    for each in main, side:
        each.start()
    wait_for(node, guest, {0: "0-1", 1: "0-1", 2: "2", 3: "3"}, (in_main, "2-3"), (in_side, "0-1"))
    until(lambda: states(node, guest) == {"main": "applied", "side": "applied"}, lambda: str(node.status()), SLOW)
    found = node.sandbox(guest.sandbox)
    assert (found["verdict"], found["guest"]["by"]) == ("pinned", "vmpin-agent")
    assert f"vsock, CID {CID}" in found["guest"]["state"]
    check(guest, {2: 2, 3: 3}, "0-3")

    # Other CPUs for the same vCPUs: nothing is to be told to the guest.
    pushes = found["guest"]["pushes"]
    main.update(cpus="4-5")
    wait_for(node, guest, {0: "0-1", 1: "0-1", 2: "4", 3: "5"}, (in_main, "2-3"))
    assert node.sandbox(guest.sandbox)["guest"]["pushes"] == pushes
    check(guest, {2: 4, 3: 5}, "0-1,4-5")

    # Fewer: a vCPU goes back to the others. Some 30 ms on a real machine; here each instruction of the guest is
    # emulated, and the emulator's, too.
    told, pinned, applied, trips = [], [], [], []
    for cpus, vcpus, wanted in (("5", {2: "0-1", 3: "5"}, "3"), ("4-5", {2: "4", 3: "5"}, "2-3"),
                                ("7", {2: "0-1", 3: "7"}, "3")):
        began = time.monotonic()
        main.update(cpus=cpus)
        told.append(time.monotonic() - began)
        until(lambda vcpus=vcpus: on_host(guest, vcpus), str(vcpus), SLOW, every=0.002)  # type: ignore[misc]
        pinned.append(time.monotonic() - began - told[-1])
        applied.append(wait_for(node, guest, vcpus, (in_main, wanted)))
        began = time.monotonic()
        in_main.masks()
        trips.append(time.monotonic() - began)
    for what, took in (("the CRI's call", told), ("from its end to the masks of the vCPUs", pinned),
                       ("from there to the masks in the guest", applied), ("a look at those", trips)):
        print(f"{what}: {', '.join(f'{each * 1000:.0f}' for each in took)} ms")
    # A look waits for the guest as well, and tells how slow that is.
    assert statistics.median(applied) < max(5, 20 * statistics.median(trips))
    wait_for(node, guest, {0: "0-1", 1: "0-1"}, (in_side, "0-2"))
    check(guest, {3: 7}, "0-1,7")

    in_main.remove()
    main.remove()
    wait_for(node, guest, dict.fromkeys(range(4), "0-1"), (in_side, "0-3"))
