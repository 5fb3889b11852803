"""The watcher and real guests: maps go over virtio-serial, and what was done is read from the guest's kernel."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_client import AgentClient
from guest_states import guest, states, wait_for_states
from process_masks import seen
from real_guest import GuestContainer, RealGuest, built_agent, image
from real_node import Node
from shared_guest import SharedGuest
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.host.procfs import Procfs
from vmpin.protocol.messages import Unpin

pytest_plugins = ["given"]
pytestmark = pytest.mark.root

#: The guest's CPUs.
ALL = CpuSet.parse("0-3")


@pytest.fixture(scope="module")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_agent(tmp_path_factory.mktemp("agent"))


@pytest.fixture(scope="module")
def shared(agent_file: Path) -> Iterator[SharedGuest]:
    with SharedGuest(lambda built: RealGuest(built, f"t{secrets.token_hex(5)}-vm", agent=agent_file)) as made:
        yield made


@pytest.fixture
def real(shared: SharedGuest, request: pytest.FixtureRequest) -> Iterator[RealGuest]:
    yield from shared.lent(request)


class Inside:
    """A node, and a real guest on it; its containers here and there have the same ids."""

    def __init__(self, node: Node, guest: RealGuest, cpus: tuple[str, str]) -> None:
        self.node = node
        self.guest = guest
        self.cpus = cpus
        self.agent = 0
        self._made: list[GuestContainer] = []
        node.prefix = guest.sandbox.removesuffix("vm")
        node.configure(node={"shared_pool": cpus[0]}, watch={"only": f"{node.prefix}*"})

    def start_agent(self) -> None:
        self.agent = self.guest.start_agent()

    def kill_agent(self) -> None:
        self.guest.kill_process(self.agent)
        self.agent = 0

    def container(self, name: str, *, busy: int = 0, idle: int = 0, threads: int = 0) -> GuestContainer:
        """In the guest."""
        self._made.append(self.guest.container(self.node.id(name), busy=busy, idle=idle, threads=threads))
        return self._made[-1]

    def report(self, web: str) -> None:
        """By a hook: `web` has these CPUs, and `logs` the shared one."""
        self.node.container(self.guest.sandbox, "logs", self.cpus[0])
        self.node.container(self.guest.sandbox, "web", web)

    def own(self) -> CpuSet:
        """The vCPUs that have the second CPU for themselves."""
        return CpuSet(vcpu for vcpu, cpus in seen(self.guest.pid).vcpus.items() if cpus == self.cpus[1])

    def wait_for(self, **wanted: str) -> None:
        wait_for_states(self.node, self.guest.sandbox, wanted)

    def clean(self) -> None:
        """What the next test finds is as it was."""
        self.node.kill()
        if not self.agent:
            self.start_agent()
        with AgentClient.serial(self.guest.agent_socket) as host:
            host.ask(Unpin())
        self.kill_agent()
        for made in self._made:
            made.remove()


@contextlib.contextmanager
def on_a_node(guest: RealGuest, cpus: tuple[str, str]) -> Iterator[Inside]:
    with Node() as node:
        made = Inside(node, guest, cpus)
        try:
            yield made
            made.clean()
        except BaseException:
            print(guest.console()[-3000:])
            raise


@pytest.fixture
def inside(real: RealGuest, cpus: tuple[str, str]) -> Iterator[Inside]:
    with on_a_node(real, cpus) as made:
        yield made


def wait_for_mask(made: GuestContainer, cpus: CpuSet) -> None:
    wait(lambda: {mask & ALL for mask in made.masks().values()} == {cpus},
         lambda: f"{made.cgroup} should be on {cpus}: {made.threads()}")


@pytest.mark.guest
def test_processes_run_on_the_vcpus_that_back_their_containers_cpus(inside: Inside, cpus: tuple[str, str]) -> None:
    node, vm = inside.node, inside.guest
    web, logs = inside.container("web", busy=1, idle=1), inside.container("logs", idle=1)
    inside.start_agent()
    node.start()
    inside.report(cpus[1])
    inside.wait_for(web="applied", logs="applied")
    own = inside.own()
    assert len(own) == 1
    assert (web.mask(), logs.mask()) == ({str(own)}, {str(ALL - own)})
    assert all(mask <= ALL - own for mask in vm.system().values())
    wait(lambda: vm.load(0.5).busy() == ({*own}, {*own}), lambda: f"{own} should be busy: {vm.load(0.5)}")
    (thread,) = (tid for tid, vcpu in vm.vcpus().items() if vcpu in own)
    stat = Procfs().thread_stat(vm.pid, thread)
    assert stat is not None
    assert stat.processor == int(cpus[1])

    def applied() -> Any:
        """The status, once the agent is there: one that is too busy to answer is dropped, and looked for again."""
        found = node.sandbox(vm.sandbox)
        return found if all(each["guest"] and each["guest"]["text"] == "applied" for each in found["containers"]) \
            else None

    found = wait(applied, lambda: f"{states(node, vm.sandbox)}\n{node.log()}")
    by_name = {each["name"]: each for each in found["containers"]}
    assert by_name["web"]["vcpus"] == str(own)
    assert by_name["web"]["guest"] == {
        "state": "applied", "error": "", "cgroup": f"/{web.cgroup}", "wanted": str(own), "effective": str(own),
        "processes": 2, "threads": 2, "outside": [], "text": "applied"}
    assert by_name["logs"]["guest"]["wanted"] == str(ALL - own)
    assert found["guest"]["by"] == "vmpin-agent"
    assert found["guest"]["system"]["state"] == "applied"
    assert (found["guest"]["refused"], found["guest"]["last_error"] in ("", "no answer within 5 s")) == (0, True)

    def shown() -> list[str]:
        (head, *rows) = [line for line in node.cli("status", "-o", "wide").stdout.splitlines()
                         if line.startswith(("CONTAINER", web.cgroup, logs.cgroup))]
        return [row[head.index("GUEST"):].split()[0] for row in rows]

    wait(lambda: shown() == ["applied", "applied"], shown)


@pytest.mark.guest
def test_they_follow_a_real_containers_cpuset(inside: Inside, cpus: tuple[str, str]) -> None:
    """Reported by the real hook, and then by no source: the cgroup's file is seen to change."""
    first, second = cpus
    node, vm = inside.node, inside.guest
    web, logs = inside.container("web", idle=1), inside.container("logs", idle=1)
    inside.start_agent()
    node.start()
    node.container(vm.sandbox, "logs", first)
    outside = node.real("crun", vm.sandbox, "web", second)
    outside.run()
    inside.wait_for(web="applied", logs="applied")
    took = []
    for target in (first, second) * 4:
        outside.update(target)
        began = time.monotonic()
        wait(lambda target=target: inside.own() == CpuSet([3] if target == second else []), "the host")  # type: ignore[misc]
        pinned = time.monotonic()
        own = inside.own() or ALL
        wait_for_mask(web, own)
        wait_for_mask(logs, ALL - own or ALL)
        took.append((pinned - began, time.monotonic() - pinned))
    print("from the update to the vCPUs' masks, and from there to the masks in the guest, in ms:", ", ".join(
        f"{host * 1000:.0f}+{guest * 1000:.0f}" for host, guest in took))
    inside.wait_for(web="applied", logs="applied")


@pytest.mark.guest
def test_a_watcher_that_was_killed_finds_the_guest_as_it_left_it(inside: Inside, cpus: tuple[str, str]) -> None:
    node, vm = inside.node, inside.guest
    web, logs = inside.container("web", idle=1), inside.container("logs", idle=1)
    inside.start_agent()
    node.start()
    inside.report(cpus[1])
    inside.wait_for(web="applied", logs="applied")
    own = inside.own()
    for end in signal.SIGTERM, signal.SIGKILL:
        node.stop(end)
        time.sleep(2.5)  # the agent has looked twice
        web.start("idle")
        assert (web.mask(), logs.mask()) == ({str(own)}, {str(ALL - own)})
        if end == signal.SIGKILL:  # and the agent, too, and masks were changed meanwhile
            inside.kill_agent()
            web.write("cpuset.cpus", "0-3")
            inside.start_agent()
        node.start()
        inside.wait_for(web="applied", logs="applied")
        wait_for_mask(web, own)
        assert guest(node, vm.sandbox)["pushes"]


@pytest.mark.guest
def test_an_agent_that_was_killed_asks_and_gets_the_map(inside: Inside, cpus: tuple[str, str]) -> None:
    node = inside.node
    web, logs = inside.container("web", idle=1), inside.container("logs", idle=1)
    inside.start_agent()
    node.start()
    inside.report(cpus[1])
    inside.wait_for(web="applied", logs="applied")
    own = inside.own()
    for _ in range(2):
        inside.kill_agent()
        wait_for_mask(web, own)
        web.write("cpuset.cpus", "0-3")
        inside.start_agent()
        wait_for_mask(web, own)
        wait_for_mask(logs, ALL - own)
    inside.wait_for(web="applied", logs="applied")


@pytest.mark.guest
def test_unpin_takes_the_map_back(inside: Inside, cpus: tuple[str, str]) -> None:
    node, vm = inside.node, inside.guest
    web, logs = inside.container("web", idle=1), inside.container("logs", idle=1)
    before = {tid: mask & ALL for tid, mask in vm.system().items()}
    inside.start_agent()
    node.start()
    inside.report(cpus[1])
    inside.wait_for(web="applied", logs="applied")
    own = inside.own()
    assert node.cli("unpin", vm.sandbox).returncode == 0
    wait_for_mask(web, ALL)
    wait_for_mask(logs, ALL)
    wait(lambda: {tid: mask & ALL for tid, mask in vm.system().items() if tid in before} == before,
         lambda: f"{vm.system()} is not {before}")
    assert states(node, vm.sandbox) == {"web": "-", "logs": "-"}
    node.resyncs()
    wait_for_mask(web, ALL)
    assert node.cli("repin").returncode == 0
    inside.wait_for(web="applied", logs="applied")
    wait_for_mask(web, own)


@pytest.mark.guest
def test_an_agent_that_comes_late_is_found(inside: Inside, cpus: tuple[str, str]) -> None:
    node, vm = inside.node, inside.guest
    web = inside.container("web", idle=1)
    node.start()
    inside.report(cpus[1])
    node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[0], 2: cpus[0], 3: cpus[1]}, cpus[0])
    wait(lambda: guest(node, vm.sandbox)["last_error"], node.log)
    assert states(node, vm.sandbox) == {"web": "no agent", "logs": "no agent"}
    wait_for_mask(web, ALL)
    inside.start_agent()
    inside.wait_for(web="applied", logs="unknown: no such container in the guest")
    wait_for_mask(web, inside.own())


#: Takes every CPU it can get, again and again. Every half second there is a process more, so that the agent looks.
_ESCAPES = """
import os, time
began = time.monotonic()
while True:
    os.sched_setaffinity(0, range(4))
    if time.monotonic() - began > 0.5:
        began = time.monotonic()
        if os.fork() == 0:
            os._exit(0)
        os.wait()
"""


@pytest.mark.release  # its guest is another, and busy with what gets away
@pytest.mark.guest
def test_the_map_is_sent_and_a_plugged_vcpu_is_used_when_it_is_online(agent_file: Path,
                                                                             cpus: tuple[str, str]) -> None:
    """Without cpusets in the guest its processes can go where they like, and are brought back."""
    with image() as built, RealGuest(built, f"t{secrets.token_hex(5)}-vm", agent=agent_file,
                                     append="cgroup_disable=cpuset") as vm, on_a_node(vm, cpus) as inside:
        node = inside.node
        web, logs = inside.container("web", idle=1, threads=1), inside.container("logs", idle=1)
        inside.start_agent()
        node.start()
        inside.report(cpus[1])
        inside.wait_for(web="applied", logs="applied")
        own = inside.own()
        assert web.mask() == {str(own)}
        pid = int(vm.ask("start", cgroup=logs.cgroup, argv=["/usr/bin/python3.11", "-S", "-E", "-c", _ESCAPES]))

        def confined() -> dict[str, object]:
            (found,) = [each for each in node.sandbox(vm.sandbox)["containers"] if each["name"] == "logs"]
            return {key: found["guest"][key] for key in ("state", "outside")}

        # It is looked for every second, and may be inside just then: vCPUs 0 to 2 share a CPU, so that it may not run
        # between the agent's setting its mask and looking at it.
        wait(lambda: confined() == {"state": "pending", "outside": [pid]}, lambda: f"{pid} is outside: {confined()}")
        wait(lambda: f"(outside: {pid})" in node.cli("status", "-o", "wide").stdout, lambda: f"{pid} is not shown")
        assert states(node, vm.sandbox)["web"] == "applied"
        vm.kill_process(pid)
        inside.wait_for(web="applied", logs="applied")

        assert vm.add_vcpu() == 8
        wait(lambda: len(seen(vm.pid).vcpus) == 5 and "pending" in " ".join(states(node, vm.sandbox).values()),
             lambda: states(node, vm.sandbox))
        vm.online(4)
        inside.wait_for(web="applied", logs="applied")

        def effective() -> tuple[str, ...]:
            """The masks of web and logs, as the agent has read them."""
            found = {each["name"]: each["guest"] for each in node.sandbox(vm.sandbox)["containers"]}
            return tuple(found[name]["effective"] if found[name] else "" for name in ("web", "logs"))

        # A CPU is online a moment before it is active (kernel/cpu.c), and until then the kernel shows it in no mask.
        # The agent reads them again after ten seconds.
        wait(lambda: CpuSet.parse(",".join(filter(None, effective()))) == CpuSet.parse("0-4"), effective)
        assert ({effective()[0]}, {effective()[1]}) == (web.mask(), logs.mask())
