"""The whole chain: what the CRI says of a container becomes where its busy threads run, in the guest and on the node.

A real containerd starts the pod's VM, under KVM, which boots Linux with vmpin's agent in it; NRI reports to the
watcher, and that sends to the agent over AF_VSOCK. Only Kata's part in the guest is the test's own: it makes the
containers' cgroups.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from agent_client import AgentClient
from cri_node import CriNode
from process_masks import seen
from real_containerd import VM, Containerd, Pod
from real_guest import GuestContainer, RealGuest, built_agent, image

from lab.guest_image import GuestImage
from lab.node_tests.machines import PATIENCE, until
from lab.node_tests.runs import Runs
from vmpin.cpuset import CpuSet
from vmpin.protocol.messages import NeedMap, Ping, Pong, Unpin

pytestmark = pytest.mark.release  # minutes

CID = 4712
ALL = CpuSet.parse("0-3")
#: The guest is emulated twice.
SLOW = PATIENCE * 2
#: How long it is measured at least, in seconds.
_SPELL = 3.0


class PodGuest(RealGuest):
    """The VM of a pod, which the pod's runtime starts; its sandbox is the pod."""

    pod: Pod
    #: In the guest. It runs for AF_VSOCK alone.
    agent_pid: int

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


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    with Containerd() as made:
        yield made


@pytest.fixture(scope="module")
def guest(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodGuest]:
    agent = built_agent(tmp_path_factory.mktemp("agent"))
    with image() as built, (made := PodGuest(built, containerd, agent)):
        print(f"booted in {made.boot_seconds:.0f} s")
        made.agent_pid = made.start_agent("--serial", "")
        # It takes long to start in there, and the watcher looks for one that is late every five minutes only.
        with AgentClient.vsock(CID, patience=SLOW) as host:
            host.ask(Ping())
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


def wait_for(node: CriNode, guest: PodGuest, vcpus: Mapping[int, str], *inside: tuple[GuestContainer, str]) -> None:
    """Until vCPUs are on their CPUs and containers on their vCPUs."""
    until(lambda: on_host(guest, vcpus), lambda: f"{vcpus} wanted, {seen(guest.pid)}\n{node.log()}", SLOW)
    for made, cpus in inside:
        until(lambda made=made, cpus=cpus: {mask & ALL for mask in made.masks().values()} == {CpuSet.parse(cpus)},  # type: ignore[misc]
              lambda made=made, cpus=cpus: f"{made.cgroup} on {cpus}, has {made.threads()}\n{states(node, guest)}\n"  # type: ignore[misc]
              f"{node.log()}", SLOW)


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


def wait_for_masks(made: GuestContainer, cpus: str) -> None:
    """Until every thread of it may run on just these of the guest's CPUs."""
    until(lambda: {each & ALL for each in made.masks().values()} == {CpuSet.parse(cpus)},
          lambda: f"{made.cgroup} on {cpus}, have {made.threads()}", SLOW)


def test_a_process_of_the_guest_is_not_taken_for_the_host(guest: PodGuest) -> None:
    """AF_VSOCK shows the caller's CID: from within it is not 2."""
    with AgentClient.vsock(CID, patience=SLOW) as host:
        assert isinstance(host.ask(Ping()), Pong)
    assert guest.call_agent_from_within() == "refused"


def test_the_agent_serves_again_after_kill_9(guest: PodGuest) -> None:
    main = guest.container("idle", idle=1)
    with AgentClient.vsock(CID, patience=SLOW) as host:
        host.put({"idle": "2"})
        guest.kill_process(guest.agent_pid)
        with pytest.raises(EOFError):
            host.quiet(SLOW)
    wait_for_masks(main, "2")
    guest.agent_pid = guest.start_agent("--serial", "")
    with AgentClient.vsock(CID, patience=SLOW) as host:
        host.until(lambda answer: isinstance(answer, NeedMap), "that it needs a map")
        host.put({"idle": "1"})
        wait_for_masks(main, "1")
        host.ask(Unpin())
    main.remove()


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

    # Other CPUs for the same vCPUs: nothing is to be sent to the guest. Only an agent that was too slow for an answer,
    # and so was connected to again, is sent the same map once more.
    before = node.sandbox(guest.sandbox)["guest"]
    main.update(cpus="4-5")
    wait_for(node, guest, {0: "0-1", 1: "0-1", 2: "4", 3: "5"}, (in_main, "2-3"))
    after = node.sandbox(guest.sandbox)["guest"]
    assert after["pushes"] - before["pushes"] <= after["connects"] - before["connects"], f"{before}\n{node.log()}"
    check(guest, {2: 4, 3: 5}, "0-1,4-5")

    # Fewer: a vCPU goes back to the others.
    for cpus, vcpus, wanted in (("5", {2: "0-1", 3: "5"}, "3"), ("4-5", {2: "4", 3: "5"}, "2-3"),
                                ("7", {2: "0-1", 3: "7"}, "3")):
        main.update(cpus=cpus)
        wait_for(node, guest, vcpus, (in_main, wanted))
    wait_for(node, guest, {0: "0-1", 1: "0-1"}, (in_side, "0-2"))
    check(guest, {3: 7}, "0-1,7")

    in_main.remove()
    main.remove()
    wait_for(node, guest, dict.fromkeys(range(4), "0-1"), (in_side, "0-3"))
