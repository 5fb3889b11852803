"""The watcher and a stand-in for guests (guest_vmm): what it sends to which port and when, and what status shows."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from guest_states import guest, states, wait_for_states
from guest_vmm import GuestVmm
from need import need_root, need_tool
from nri_peer import NriRuntime
from nri_peer import container as nri_container
from nri_peer import pod as nri_pod
from process_masks import by_tid, seen
from real_node import Node
from real_qemu import Qemu
from waiting import wait

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


@pytest.fixture
def node(cpus: tuple[str, str]) -> Iterator[Node]:
    need_root()
    with Node() as made:
        made.configure(node={"shared_pool": cpus[0]})
        yield made


# Without a guest


def test_each_change_of_placement_is_pushed(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    with GuestVmm(node, "a", {10789: "agent"}) as vm:
        node.start()
        node.container(vm.sandbox, "logs", first)
        node.container(vm.sandbox, "web", first)
        wait_for_states(node, vm.sandbox, {"web": "applied", "logs": "applied"})
        (tid,) = [tid for tid, name in seen(vm.pid).names.items() if name == "fc_vcpu 2"]

        for target in (second, first) * 5:
            count = len(vm.received("map"))
            node.container(vm.sandbox, "web", target)
            wait(lambda target=target: os.sched_getaffinity(tid) == {int(target)}, "the host")  # type: ignore[misc]
            wait(lambda count=count: len(vm.received("map")) > count, "no map comes")  # type: ignore[misc]
            arrived = vm.received("map")[count]
            wanted = ["2", "0-1"] if target == second else ["0-2", "0-2"]
            assert [arrived["message"]["containers"][node.id(name)]["hw"] for name in ("web", "logs")] == wanted
        wait_for_states(node, vm.sandbox, {"web": "applied", "logs": "applied"})
        assert len(vm.received("map")) == guest(node, vm.sandbox)["pushes"]



def place(node: Node, vm: GuestVmm | Qemu, cpus: tuple[str, str]) -> None:
    """`web` alone on the second CPU, and `logs` on the CPUs of all; until the host's half of that is done."""
    first, second = cpus
    node.container(vm.sandbox, "logs", first)
    node.container(vm.sandbox, "web", second)
    node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, first)


@pytest.mark.parametrize("what", ["garbage", "flood", "liar"])
def test_a_guest_that_never_makes_sense_is_dropped_ever_more_seldom(node: Node, cpus: tuple[str, str],
                                                                   what: str) -> None:
    """And nothing of it moves anything on the host."""
    node.configure(guest={"via": "vmpin-agent"})
    with GuestVmm(node, "a", {10789: what}) as vm:
        node.start()
        place(node, vm, cpus)
        before = by_tid(vm.pid)

        def seldom() -> bool:
            """The pauses are 0.1 s at first, then 1.6 s, each a quarter more or less; a change in between, and they
            begin anew."""
            times = [each["time"] for each in vm.received("connect")]
            return len(times) >= 6 and times[-1] - times[-2] > 1.0

        wait(seldom, lambda: f"{vm.received()}\n{node.log()}")

        def all_refused() -> bool:
            """Of a connection that was just made what came of it is not known yet; and of one that a busy machine let
            wait until the watcher gave it up, the guest alone knows."""
            found = guest(node, vm.sandbox)
            return found["refused"] == found["connects"] and int(str(found["connects"])) >= 5

        wait(all_refused, lambda: f"{guest(node, vm.sandbox)}, {len(vm.received('connect'))} connections")
        found = guest(node, vm.sandbox)
        assert "protocol" in str(found["last_error"])
        # While a connection lasts they are pending.
        wait(lambda: all(each.startswith("error: what came is not") for each in states(node, vm.sandbox).values()),
             lambda: states(node, vm.sandbox))
        assert by_tid(vm.pid) == before
        assert node.cli("verify").returncode == 0
        assert sum("guest agent" in line for line in node.log().splitlines()) <= 2, node.log()
        # Whatever it was before, it is believed when it behaves.
        vm.ports({10789: "agent"})
        assert node.cli("repin").returncode == 0  # by now the next attempt may be five minutes away
        wait_for_states(node, vm.sandbox, {"web": "applied", "logs": "applied"})


def test_a_guest_that_says_nothing_is_no_agent(node: Node, cpus: tuple[str, str]) -> None:
    with GuestVmm(node, "a", {10789: "deaf"}) as vm:
        node.start()
        place(node, vm, cpus)
        wait(lambda: guest(node, vm.sandbox)["last_error"] == "no answer within 5 s", lambda: guest(node, vm.sandbox))
        assert states(node, vm.sandbox) == {"web": "no agent", "logs": "no agent"}


@pytest.mark.parametrize("port", [True, False], ids=["a port that nothing opens", "no way in"])
def test_no_agent_in_the_image_is_normal(node: Node, cpus: tuple[str, str], port: bool) -> None:
    """With a real QEMU, whose guest never came to open its end."""
    need_tool("qemu-system-x86_64")
    chardev = f"socket,id=agent,path={node.top}/agent.sock,server=on,wait=off"
    extra = ["-device", "virtio-serial-pci", "-chardev", chardev, "-device",
             "virtserialport,chardev=agent,name=org.vmpin.agent.0"] if port else []
    with Qemu(node.id("a"), vcpus=3, extra=extra) as vm:
        node.start()
        place(node, vm, cpus)
        wait(lambda: guest(node, vm.sandbox)["last_error"], lambda: guest(node, vm.sandbox))
        assert states(node, vm.sandbox) == {"web": "no agent", "logs": "no agent"}
        assert node.sandbox(vm.sandbox)["verdict"] == "pinned"
        assert node.cli("verify").returncode == 0
        assert "guest" not in node.log()
        assert "no agent" in node.cli("status", "-o", "wide").stdout


# Kata's own agent


def test_without_ours_katas_agent_is_asked(node: Node, cpus: tuple[str, str]) -> None:
    web, logs = node.id("web"), node.id("logs")
    with GuestVmm(node, "a", {1024: "kata"}, containers=(web, logs)) as vm:
        node.start()
        place(node, vm, cpus)
        wait_for_states(node, vm.sandbox, {"web": "sent", "logs": "sent"})
        assert {each["container"]: each["cpus"] for each in vm.received("cpus")} == {web: "2", logs: "0-1"}
        found = guest(node, vm.sandbox)
        assert (found["by"], found["state"]) == ("kata-agent", "Kata's agent 4.1.0")
        assert "sent" in node.cli("status", "-o", "wide").stdout
        assert {each["method"] for each in vm.received("call")} <= {"Version", "GetMetrics", "UpdateContainer"}

        node.container(vm.sandbox, "web", cpus[0])
        wait(lambda: vm.received("cpus")[-1]["cpus"] == "0-2", lambda: vm.received("cpus"))
        # As soon as ours is there it knows more.
        vm.ports({1024: "kata", 10789: "agent"})
        wait_for_states(node, vm.sandbox, {"web": "applied", "logs": "applied"})
        assert guest(node, vm.sandbox)["by"] == "vmpin-agent"


def test_katas_agent_is_asked_to_give_everything_back(node: Node, cpus: tuple[str, str]) -> None:
    web, logs = node.id("web"), node.id("logs")
    node.configure(guest={"via": "kata-agent"})
    with GuestVmm(node, "a", {1024: "kata", 10789: "agent"}, containers=(web, logs)) as vm:
        node.start()
        place(node, vm, cpus)
        wait_for_states(node, vm.sandbox, {"web": "sent", "logs": "sent"})
        assert node.cli("unpin", vm.sandbox).returncode == 0
        wait(lambda: {each["container"]: each["cpus"] for each in vm.received("cpus")} == {web: "0-2", logs: "0-2"},
             lambda: vm.received("cpus"))
        assert {each["port"] for each in vm.received("connect")} == {1024}


def test_what_katas_agent_refuses_by_its_policy_is_reported_once(node: Node, cpus: tuple[str, str]) -> None:
    with GuestVmm(node, "a", {1024: "kata"}, containers=(node.id("web"), node.id("logs")),
                  policy=("UpdateContainer",)) as vm:
        node.start()
        place(node, vm, cpus)
        wait(lambda: all(each.startswith("left alone: refused: ") and "blocked by policy" in each and
                         each.isprintable() for each in states(node, vm.sandbox).values()),
             lambda: states(node, vm.sandbox))
        # One, or more: on a busy machine the agent's answer to the first may come after the call's time limit.
        calls = [each["method"] for each in vm.received("call")]
        node.container(vm.sandbox, "web", cpus[0])
        node.wait_for_all(vm.pid, cpus[0])
        time.sleep(2)
        assert [each["method"] for each in vm.received("call")] == calls
        assert sum("refused by policy" in line for line in node.log().splitlines()) == 1, node.log()


@pytest.mark.parametrize("what", ["garbage", "deaf"])
def test_what_answers_in_place_of_katas_agent_is_dropped(node: Node, cpus: tuple[str, str], what: str) -> None:
    node.configure(guest={"via": "kata-agent"})
    with GuestVmm(node, "a", {1024: what}) as vm:
        node.start()
        place(node, vm, cpus)
        before = by_tid(vm.pid)
        wait(lambda: len(vm.received("connect")) >= 4, lambda: f"{vm.received()}\n{node.log()}",
             300)  # 5 s each, if deaf
        found = guest(node, vm.sandbox)
        assert found["by"] == ""
        assert found["last_error"]
        assert all(each.startswith("pending: waiting for an answer" if what == "deaf" else "error: ")
                   for each in states(node, vm.sandbox).values())
        assert by_tid(vm.pid) == before


# Guests that are sent nothing


def test_it_is_switched_off_and_on(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(guest={"via": "off"})
    with GuestVmm(node, "a", {10789: "agent", 1024: "kata"}) as vm:
        node.start()
        place(node, vm, cpus)
        node.resyncs()
        assert vm.received("connect") == []
        assert node.sandbox(vm.sandbox)["guest"] is None
        assert states(node, vm.sandbox) == {"web": "-", "logs": "-"}
        assert node.watcher is not None
        for via in "vmpin-agent", "off", "auto":
            count = len(vm.received("unpin"))
            node.configure(guest={"via": via})
            node.watcher.send_signal(signal.SIGHUP)
            if via == "off":  # what was sent is taken back
                wait(lambda count=count: len(vm.received("unpin")) > count, node.log)  # type: ignore[misc]
                wait(lambda: node.sandbox(vm.sandbox)["guest"] is None, node.log)
            else:
                wait_for_states(node, vm.sandbox, {"web": "applied", "logs": "applied"})
        assert {each["port"] for each in vm.received("connect")} == {10789}


def test_the_guests_of_a_handler_may_be_left_alone(node: Node, cpus: tuple[str, str]) -> None:
    """Not even before the container runtime has said which handler it is."""
    node.configure(guest={"disabled_handlers": "kata-tdx,kata-s*"})
    with socket.socket(socket.AF_UNIX) as listener, GuestVmm(node, "a", {10789: "agent", 1024: "kata"}) as tdx, \
            GuestVmm(node, "b", {10789: "agent"}) as other:
        listener.bind(str(node.top / "nri.sock"))
        listener.listen()
        node.start()
        runtime = NriRuntime(listener.accept()[0])
        try:
            runtime.begin([nri_pod(tdx.sandbox, runtime_handler="kata-tdx"),
                           nri_pod(other.sandbox, runtime_handler="kata-qemu")],
                          [nri_container(node.id("web"), tdx.sandbox, cpus[1]),
                           nri_container(node.id("mail"), other.sandbox, cpus[0])])
            wait(lambda: node.sandbox(other.sandbox)["containers"] and set(states(node, other.sandbox).values()) == {
                "applied"}, lambda: f"{node.status()}\n{node.log()}")
            node.wait_for_all(tdx.pid, cpus[1])
            found = node.sandbox(tdx.sandbox)
            assert (found["handler"], found["guest"], found["verdict"]) == ("kata-tdx", None, "pinned")
            assert [each["guest"] for each in found["containers"]] == [None]
            assert tdx.received("connect") == []
        finally:
            runtime.close()


# From one watcher to the next


def test_a_watcher_that_was_started_again_sends_it_again(node: Node, cpus: tuple[str, str]) -> None:
    """With a newer generation, however the one before ended."""
    with GuestVmm(node, "a", {10789: "agent"}) as vm:
        node.start()
        place(node, vm, cpus)
        wait_for_states(node, vm.sandbox, {"web": "applied", "logs": "applied"})
        for end in signal.SIGKILL, signal.SIGTERM, signal.SIGKILL:
            node.stop(end)
            last = vm.received("map")[-1]["message"]
            count = len(vm.received())
            node.start()
            wait(lambda count=count: [each for each in vm.received()[count:] if each["what"] == "map"],  # type: ignore[misc]
                 lambda: f"{vm.received()[-5:]}\n{node.log()}")
            wait_for_states(node, vm.sandbox, {"web": "applied", "logs": "applied"})
            now = vm.received("map")[-1]["message"]
            assert now["generation"] > last["generation"]
            assert now["containers"] == last["containers"]
        assert vm.received("unpin") == []
