"""vmpin's agent in a real guest: containers' processes run on the vCPUs that the host says, and on no other's.

The agent gets its maps over virtio-serial, and what it reports is compared with the guest's own kernel and with the
CPU time of the vCPUs' threads outside. The same under KVM and over AF_VSOCK is in tests/lab/node_tests/test_guest.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_client import PATIENCE, AgentClient
from real_guest import GuestContainer, RealGuest, built_agent, image
from shared_guest import SharedGuest
from vsock_device import vsock_device
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.protocol.messages import Applied, NeedMap, Ping, Pong, Unpin

ALL = CpuSet.parse("0-3")

pytestmark = [pytest.mark.guest, pytest.mark.root]


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_agent(tmp_path_factory.mktemp("agent"))


@pytest.fixture(scope="module")
def shared(agent_file: Path) -> Iterator[SharedGuest]:
    with SharedGuest(lambda built: RealGuest(built, agent=agent_file)) as made:
        yield made


@pytest.fixture
def guest(shared: SharedGuest, request: pytest.FixtureRequest) -> Iterator[RealGuest]:
    yield from shared.lent(request)


class Agent:
    """An agent in the guest, and the host's end of it; all is taken back at the end."""

    def __init__(self, guest: RealGuest) -> None:
        self.guest = guest
        self.host = AgentClient.serial(guest.agent_socket)
        self.pid = 0

    def start(self) -> None:
        self.pid = self.guest.start_agent()

    def kill(self) -> None:
        self.guest.kill_process(self.pid)
        self.pid = 0


@contextlib.contextmanager
def running(guest: RealGuest) -> Iterator[Agent]:
    agent = Agent(guest)
    agent.start()
    try:
        with agent.host as host:
            host.ask(Ping())  # it has started
            yield agent
            host.ask(Unpin())
    except BaseException:
        print(guest.console()[-3000:])
        raise
    finally:
        agent.kill()


@pytest.fixture
def agent(guest: RealGuest) -> Iterator[Agent]:
    with running(guest) as made:
        yield made


@pytest.fixture
def container(guest: RealGuest) -> Iterator[Callable[..., GuestContainer]]:
    """Makes containers, which end with the test."""
    with contextlib.ExitStack() as stack:
        def make(cid: str, **more: int | str) -> GuestContainer:
            made = guest.container(cid, **more)  # type: ignore[arg-type]
            stack.callback(made.remove)
            return made

        yield make


def wait_for_busy(guest: RealGuest, cpus: set[int], vcpus: set[int] | None = None) -> None:
    """Until those are busy and no other, in the guest and outside (where not said otherwise by the same numbers)."""
    wanted = cpus, cpus if vcpus is None else vcpus
    deadline = time.monotonic() + PATIENCE
    while (load := guest.load(0.5)).busy() != wanted:
        assert time.monotonic() < deadline, f"{wanted} should be busy, and are: {load}"


def wait_for_masks(made: GuestContainer, cpus: str) -> None:
    """Until each thread of it has just these of the guest's online CPUs."""
    online, _ = made.guest.cpus()
    wanted = CpuSet.parse(cpus)
    wait(lambda: {mask & online for mask in made.masks().values()} == {wanted},
         lambda: f"{made.cgroup} should be on {cpus}: {made.threads()}")


def test_busy_threads_run_only_on_the_vcpus_of_their_container(
        guest: RealGuest, agent: Agent, container: Callable[..., GuestContainer]) -> None:
    main = container("main", idle=2)
    side = container("side", idle=1, threads=2)
    applied = agent.host.put({"main": "2-3", "side": "0-1"}, exclusive=("main",))
    assert str(applied.containers["main"].effective) == "2-3"
    assert main.mask() == {"2-3"}
    assert side.mask() == {"0-1"}
    assert main.file("cpuset.cpus.effective") == "2-3"
    for each in (main, side):  # born inside
        each.start("forks")
        each.start("threads 2")
    assert (main.mask(), side.mask()) == ({"2-3"}, {"0-1"})

    # Only one of them is busy, and then it is to be seen from outside where: on its two vCPUs, then on the other's.
    for made in (main, side):
        made.end()
    main.start("busy")
    main.start("busy")
    wait_for_busy(guest, {2, 3})
    agent.host.put({"main": "1", "side": "0,2-3"}, exclusive=("main",))
    wait_for_busy(guest, {1})

    agent.host.ask(Unpin())
    wait_for_masks(main, "0-3")


def test_a_hotplugged_vcpu_is_used_once_it_is_online(guest: RealGuest, agent: Agent,
                                                     container: Callable[..., GuestContainer]) -> None:
    """And it is found by its APIC id, 8: in the guest it is CPU 4."""
    main = container("main", idle=1)
    agent.host.put({"main": "8"}, {"main": "pending"})  # no such vCPU yet
    assert {cpus & ALL for cpus in main.masks().values()} == {ALL}
    assert guest.add_vcpu() == 8
    wait(lambda: guest.ask("cpus")["present"] == "0-4", "the guest sees no new CPU")
    assert {cpus & ALL for cpus in main.masks().values()} == {ALL}
    guest.online(4)
    agent.host.wait_for({"main": "applied"})
    wait_for_masks(main, "4")
    busy = main.start("busy")
    wait_for_busy(guest, {4}, {8})
    guest.kill_process(busy)

    agent.host.put({"main": "3,8"})
    wait_for_masks(main, "3-4")
    guest.online(4, False)
    wait_for_masks(main, "3")
    guest.online(4)
    wait_for_masks(main, "3-4")
    agent.host.put({"main": "8"})
    guest.online(4, False)  # of the only one it has: it may go anywhere rather than nowhere
    wait(lambda: all(mask & ALL for mask in main.masks().values()), lambda: f"nowhere: {main.threads()}")
    # What was said before it went offline may not have been read yet.
    agent.host.until(lambda answer: isinstance(answer, Applied) and answer.containers["main"].state != "applied",
                     "what became of it")
    guest.online(4)
    agent.host.wait_for({"main": "applied"})
    wait_for_masks(main, "4")
    agent.host.put({"main": "0-3"})
    guest.online(4, False)


def test_the_guests_own_processes_are_kept_off_and_new_containers_are_not(
        guest: RealGuest, agent: Agent, container: Callable[..., GuestContainer]) -> None:
    """Like Kata's agent, the process that makes containers is one of the guest's own."""
    before = guest.system()
    assert set(before) >= {1, agent.pid}
    main = container("main", idle=1)
    applied = agent.host.put({"main": "2-3"}, system="0")
    assert applied.system is not None
    assert str(applied.system.effective) == "0"
    assert {str(cpus) for cpus in guest.system().values()} == {"0"}
    other = container("other", idle=1, threads=2)  # its mask is that of who made it
    agent.host.put({"main": "2-3", "other": "1-3"}, system="0")
    wait_for_masks(other, "1-3")
    wait_for_masks(main, "2-3")
    main.start("idle")
    wait_for_masks(main, "2-3")
    agent.host.put({"main": "2-3", "other": "1-3"})
    # Linux before 6.2 cannot be asked for more than what is online now, though it had more at first.
    assert {cpus & ALL for tid, cpus in guest.system().items() if tid in before} == {ALL}
    agent.host.ask(Unpin())
    wait_for_masks(other, "0-3")


def test_an_agent_that_was_killed_asks_for_the_map(guest: RealGuest, agent: Agent,
                                                   container: Callable[..., GuestContainer]) -> None:
    """The connection of a virtio-serial port does not end with it."""
    main = container("main", idle=1)
    own = main.start("idle", cpus=[2])
    agent.host.put({"main": "2-3"})
    agent.kill()
    main.start("idle")
    assert {str(mask) for tid, mask in main.masks().items() if tid != own} == {"2-3"}
    agent.start()
    agent.host.until(lambda answer: isinstance(answer, NeedMap), "that it needs a map")
    agent.host.put({"main": "1-2"})
    assert main.masks()[own] == CpuSet.parse("2")
    wait(lambda: {str(mask) for tid, mask in main.masks().items() if tid != own} == {"1-2"}, lambda: main.threads())
    agent.host.ask(Unpin())
    assert main.masks()[own] == CpuSet.parse("2")
    assert {mask & ALL for tid, mask in main.masks().items() if tid != own} == {ALL}


@pytest.mark.release
def test_a_container_may_come_later_and_end_in_the_middle(guest: RealGuest, agent: Agent,
                                                          container: Callable[..., GuestContainer]) -> None:
    container("here", idle=1)
    agent.host.put({"here": "1", "there": "2"}, {"here": "applied", "there": "unknown"})
    there = guest.container(cgroup="kubepods.slice/kubepods-pod1.slice/cri-containerd-there.scope", idle=1)
    try:
        agent.host.wait_for({"here": "applied", "there": "applied"})
        wait_for_masks(there, "2")
    finally:
        there.remove()
    agent.host.wait_for({"here": "applied", "there": "unknown"})


def test_a_containers_own_masks_and_cpusets_are_not_widened(guest: RealGuest, agent: Agent,
                                                            container: Callable[..., GuestContainer]) -> None:
    main = container("main", idle=1)
    own = main.start("idle", cpus=[1])
    agent.host.put({"main": "0-1"})
    assert main.masks()[own] == CpuSet.parse("1")
    agent.host.put({"main": "2-3"})
    assert main.masks()[own] <= CpuSet.parse("2-3")
    agent.host.put({"main": "1-3"})
    wait(lambda: main.masks()[own] == CpuSet.parse("1"), lambda: main.threads())


@pytest.mark.release
def test_garbage_on_the_port_is_survived(guest: RealGuest, agent: Agent,
                                         container: Callable[..., GuestContainer]) -> None:
    main = container("main", idle=1)
    agent.host.put({"main": "1"})
    for garbage in (b"\xff" * 5000, b"\0\0\0\x02[]", b"\0\0\0\x09" + b"{" * 9, b"\0\x0f\0\0" + b"half a frame"):
        agent.host.send(garbage)
        agent.host.quiet(0.5)
    deadline = time.monotonic() + PATIENCE
    while True:  # what was left half is dropped after a while without a word
        assert time.monotonic() < deadline
        with contextlib.suppress(TimeoutError):
            agent.host.send(b"")
            agent.host.patience = 20.0
            agent.host.ask(Ping())
            break
    agent.host.patience = PATIENCE
    wait_for_masks(main, "1")
    agent.host.put({"main": "2"})
    wait_for_masks(main, "2")


def test_what_unpin_leaves_has_no_map(guest: RealGuest, agent: Agent,
                                           container: Callable[..., GuestContainer]) -> None:
    """CPU 4 was offline while the guest's own processes were let go, and is a container's after that."""
    if guest.ask("cpus")["present"] == "0-3":
        guest.add_vcpu()
        wait(lambda: guest.ask("cpus")["present"] == "0-4", "the guest sees no new CPU")
    container("other", idle=1)
    agent.host.put({"other": "1"}, system="0")
    agent.host.ask(Unpin())
    main = container("main", idle=1)
    guest.online(4)
    try:
        agent.host.put({"main": "3,8"})
        wait(lambda: main.mask() == {"3-4"}, lambda: f"it should be on 3-4: {main.threads()}")
        wait(lambda: {str(cpus) for cpus in guest.system().values()} == {"0-4"}, lambda: guest.system())
    finally:
        guest.online(4, False)


@pytest.mark.parametrize(("layout", "append"), [
    pytest.param("v1", "", marks=pytest.mark.release), pytest.param("hybrid", "", marks=pytest.mark.release),
    pytest.param("v2", "cgroup_disable=cpuset", marks=pytest.mark.release)])
def test_in_every_layout_of_cgroups(agent_file: Path, layout: str, append: str) -> None:
    """Where there is no cpuset controller, thread by thread; and no APIC id from 3 on is the CPU's number."""
    with image() as built, RealGuest(built, cgroup=layout, append=append, agent=agent_file,
                                     smp="4,sockets=3,cores=3,threads=1,maxcpus=9") as guest, running(guest) as agent:
        host = agent.host
        assert guest.cpus()[1] == {0: 0, 1: 1, 2: 2, 3: 4}
        main = guest.container("main", parent="kata/pod", busy=1)
        hierarchies = {path.parts[4] for path in main.directories}
        assert ("cpuset" in hierarchies, "unified" in hierarchies) == (layout != "v2", layout == "hybrid")
        main.start("forks")
        side = guest.container("side", parent="kata/pod", threads=2)
        applied = host.put({"main": "4", "side": "0-1"})
        wait_for_masks(main, "3")
        wait_for_masks(side, "0-1")
        assert (applied.containers["main"].cgroup is None) == bool(append)
        side.start("threads 1")
        wait_for_masks(side, "0-1")
        side.remove()
        wait_for_busy(guest, {3})  # whose cpu-index is 3, too
        host.put({"main": "1-2"})
        wait_for_masks(main, "1-2")
        host.ask(Unpin())
        wait_for_masks(main, "0-3")


def test_over_a_hybrid_vsock(agent_file: Path) -> None:
    with vsock_device(cid=4) as device, image() as built, RealGuest(
            built, agent=agent_file, memory=384, extra=device.arguments(384)) as guest:
        main = guest.container("main", idle=1)
        guest.start_agent("--serial", "")
        with AgentClient.hybrid(device.path) as host, AgentClient.hybrid(device.path) as other:
            host.put({"main": "3"})
            wait_for_masks(main, "3")
            assert isinstance(other.ask(Ping()), Pong)
            assert guest.call_agent_from_within() == "refused"
            host.ask(Unpin())
            wait_for_masks(main, "0-3")
