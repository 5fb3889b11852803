"""VMs that begin while a watcher runs: where each thread is born, as the kernel tells of it and as /proc shows it.

The clock has no part in it: the watcher of these tests looks by itself every ten minutes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kata_shim
import pytest
from kata_shim import Shim
from need import lacking, need_root, need_tool
from real_node import Node, by_tid, seen, talk, two_cpus, wait
from real_qemu import Qemu, need_kvm

from vmpin.config.timeouts import TIMEOUTS
from vmpin.cpuset import CpuSet
from vmpin.errors import SourceError
from vmpin.host.proc_connector import ProcConnector
from vmpin.wire.proc_events import Fork

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


#: A ROM in place of firmware: where a CPU begins, 16 bytes before the end, cli; hlt; and hlt again.
_WAITS = b"\x90" * 0xFFF0 + b"\xfa\xf4\xeb\xfd".ljust(16, b"\x90")


@pytest.fixture
def node() -> Iterator[Node]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Node() as made:
        made.configure(node={"shared_pool": two_cpus()[0]}, watch={"resync_seconds": 600})
        yield made


def start(node: Node) -> None:
    """A watcher that is told of births, and has looked at what was there."""
    node.start()
    wait(lambda: "proc connector " in node.last_log(), "it logs nothing of the proc connector")
    if "proc connector open" not in node.last_log():
        lacking(f"needs the kernel's proc connector: {node.last_log()}")


def overruns(node: Node) -> int:
    """How often the watcher did not hear everything, as in a storm of another test."""
    return int(node.status()["sources"]["births"]["overruns"])


def birth(node: Node, sandbox: str) -> Any:
    found = node.sandbox(sandbox)
    return None if found is None else found["birth"]


def wait_until_nobody_looks(node: Node) -> None:
    """A VM that has begun is looked at again, ever more seldom, for some seconds: until there was no look for longer
    than there is between the last two, twice over for a busy machine."""
    seen_last: Any = None
    since = time.monotonic()

    def calm() -> bool:
        nonlocal seen_last, since
        passes = json.loads(talk(node.run / "vmpin.sock", b'{"op":"about"}\n'))["passes"]
        if passes != seen_last:
            seen_last, since = passes, time.monotonic()
        return time.monotonic() - since > 2 * TIMEOUTS.rechecks[-1]

    wait(calm, lambda: f"it looks on: {seen_last}")


class Midwife:
    """Hears of births beside the watcher, and looks at each newborn's mask at once."""

    def __init__(self) -> None:
        try:
            self._connector = ProcConnector()
        except SourceError as err:
            lacking(f"needs the kernel's proc connector: {err}")
        self._masks: dict[int, list[CpuSet]] = {}
        #: It did not keep up, so it cannot say how all were born.
        self._lost = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Midwife:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._connector.close()

    def _look(self) -> None:
        while not self._ending.is_set():
            events, lost = self._connector.read()
            self._lost = self._lost or lost
            for event in events:
                if isinstance(event, Fork) and event.child != event.process:
                    with contextlib.suppress(ProcessLookupError):
                        mask = CpuSet(os.sched_getaffinity(event.child))
                        self._masks.setdefault(event.process, []).append(mask)
            if not events:
                time.sleep(0.0002)

    def masks(self, pid: int) -> list[CpuSet]:
        """Of the threads that were born in a process; none when it cannot tell of all."""
        return [] if self._lost else self._masks.get(pid, [])


# A VM begins


def test_every_thread_of_a_vm_is_born_in_its_place(node: Node, cpus: tuple[str, str]) -> None:
    start(node)

    def all_inside(name: str) -> bool:
        before = overruns(node)
        with Midwife() as midwife, Qemu(node.id(name), vcpus=4, iothreads=["io1"]) as vm:
            node.wait_for_all(vm.pid, cpus[0])
            born = wait(lambda: ((found := birth(node, vm.sandbox)) and found["told"] >= len(vm.tids()) and found)
                        or overruns(node) > before, lambda: birth(node, vm.sandbox))
            if overruns(node) > before:
                return False
            assert born["inside"] + born["outside"] + born["ended"] == born["told"]
            assert 0 < born["outside_ms"]["max"] <= born["outside_ms"]["sum"]  # the main thread, from its exec
            assert f"started sandbox={vm.sandbox} role=emulator pid={vm.pid}" in node.log()
            if born["outside"] > 1 or set(midwife.masks(vm.pid)) != {CpuSet.parse(cpus[0])}:
                return False
            assert born["outside_ms"]["max"] == born["outside_ms"]["sum"]
            return True

    assert in_time(all_inside)


def qemu(sandbox: str) -> list[str]:
    """The command line of one that somebody else starts."""
    made = Qemu(sandbox, vcpus=2)
    made.stop()
    return made.argv


def in_time(true: Callable[[str], bool]) -> bool:
    """A machine that is busy may let the watcher wait until QEMU has made its first thread: once is enough, as
    without it there is none that is."""
    deadline = time.monotonic() + 300
    tries = itertools.takewhile(lambda number: number < 20 or time.monotonic() < deadline, itertools.count())
    return any(true(f"a{number}") for number in tries)


def test_a_vm_whose_containers_are_known_is_born_on_their_cpus(node: Node, cpus: tuple[str, str]) -> None:
    start(node)

    def all_there(name: str) -> bool:
        node.container(node.id(name), f"web-{name}", cpus[1])
        with Midwife() as midwife, Qemu(node.id(name), vcpus=2) as vm:
            node.wait_for_all(vm.pid, cpus[1])
            return set(midwife.masks(vm.pid)) == {CpuSet.parse(cpus[1])}

    assert in_time(all_there)


def test_vcpus_are_identified_without_a_clock(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    start(node)
    node.container(node.id("a"), "web", second)
    node.container(node.id("a"), "logs", first)
    with Qemu(node.id("a"), vcpus=3) as vm:
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, first)
        assert node.sandbox(vm.sandbox)["verdict"] == "pinned"


def test_a_vm_that_leaves_its_starter_is_born_in_its_place_and_gets_back_what_that_had(
        node: Node, cpus: tuple[str, str], tmp_path: Path) -> None:
    """QEMU's -daemonize: the VM is a child of the process that was executed, which ends."""
    start(node)
    free = frozenset(os.sched_getaffinity(0))

    def all_inside(name: str) -> bool:
        before, sandbox, file = overruns(node), node.id(name), tmp_path / name
        argv = [*qemu(sandbox), "-daemonize", "-pidfile", str(file)]
        with Midwife() as midwife:
            subprocess.run(argv, check=True, timeout=120)
            pid = int(file.read_text())
            try:
                wait(lambda: (found := node.sandbox(sandbox)) and found["vmm"] == {"type": "qemu", "pid": pid},
                     lambda: node.sandbox(sandbox))
                node.wait_for_all(pid, cpus[0])
                assert node.cli("unpin", sandbox).returncode == 0
                if overruns(node) > before:
                    return False
                assert set(by_tid(pid).values()) == {free}
            finally:
                os.kill(pid, signal.SIGKILL)
            return set(midwife.masks(pid)) == {CpuSet.parse(cpus[0])}

    assert in_time(all_inside)


@contextlib.contextmanager
def virtiofsd(node: Node, name: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = ["virtiofsd", "-c", "read line", "--shared-dir", f"/run/kata-containers/shared/sandboxes/{node.id(name)}/"]
    with subprocess.Popen(argv, executable="/bin/sh", stdin=subprocess.PIPE) as daemon:
        yield daemon


def placed_by_now(node: Node, name: str, cpu: str) -> None:
    """The kernel reports one event after the other: when this virtiofsd has its mask, what was executed before it has
    been looked at."""
    with virtiofsd(node, name) as daemon:
        wait(lambda: os.sched_getaffinity(daemon.pid) == {int(cpu)}, "virtiofsd is not placed")


@pytest.mark.parametrize("action", ["", "start"])
def test_a_shim_counts_every_cpu_until_its_vmm_runs(
        node: Node, cpus: tuple[str, str], tmp_path: Path, action: str) -> None:
    """Kata sizes a VM by its shim's mask; so neither an event, a pass nor a watcher that starts later narrows it."""
    program, free = kata_shim.built(tmp_path), os.sched_getaffinity(0)
    start(node)
    with Shim(program, node.id("a"), free, action) as shim:
        placed_by_now(node, "b", cpus[0])
        assert node.cli("reconcile").returncode == 0
        assert shim.counts() == {len(free)}
        node.kill()
        start(node)
        placed_by_now(node, "c", cpus[0])
        assert node.cli("reconcile").returncode == 0
        assert shim.counts() == {len(free)}
        assert node.status()["sandboxes"] == []
        vmm = shim.vmm(qemu(node.id("a")))
        try:
            node.wait_for_all(vmm, cpus[0])
            node.wait_for_all(shim.pid, cpus[0])
            assert node.cli("unpin", node.id("a")).returncode == 0
            assert {*by_tid(vmm).values(), *by_tid(shim.pid).values()} == {frozenset(free)}
        finally:
            os.kill(vmm, signal.SIGKILL)


def test_a_shim_that_becomes_the_vmm_is_placed_at_its_first_vcpu(
        node: Node, cpus: tuple[str, str], tmp_path: Path) -> None:
    program, free = kata_shim.built(tmp_path), os.sched_getaffinity(0)
    start(node)
    with Shim(program, node.id("a"), free) as shim:
        placed_by_now(node, "b", cpus[0])
        assert shim.counts() == {len(free)}
        for number in range(2):
            shim.ask("vcpu", str(number))
        node.wait_for_all(shim.pid, cpus[0])
        found = node.sandbox(node.id("a"))
        assert found["vmm"] == {"type": "dragonball", "pid": shim.pid}
        node.container(node.id("a"), "web", cpus[1])
        node.wait_for_all(shim.pid, cpus[1])


def test_a_virtiofsd_is_placed_before_the_vm_is_there(node: Node, cpus: tuple[str, str]) -> None:
    start(node)
    with virtiofsd(node, "a") as daemon:
        wait(lambda: os.sched_getaffinity(daemon.pid) == {int(cpus[0])}, "virtiofsd is not placed")
        node.container(node.id("a"), "web", cpus[1])
        with Qemu(node.id("a"), vcpus=2):
            wait(lambda: os.sched_getaffinity(daemon.pid) == {int(cpus[1])}, "virtiofsd does not follow")


# A thread is born


def test_a_vcpu_that_is_plugged_in_is_placed_at_once(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    start(node)
    node.container(node.id("a"), "web", second)
    node.container(node.id("a"), "logs", first)
    with Qemu(node.id("a"), vcpus=2, maxcpus=8) as vm:
        node.wait_for_vcpus(vm.pid, {0: first, 1: second})
        assert vm.add_vcpu() == 7
        node.wait_for_vcpus(vm.pid, {0: first, 1: second, 7: first}, first)


def test_a_vcpu_without_a_name_is_found_soon_after(node: Node, cpus: tuple[str, str]) -> None:
    need_kvm()  # as KVM tells which they are
    first, second = cpus
    start(node)
    node.container(node.id("a"), "web", second)
    node.container(node.id("a"), "logs", first)

    def masks() -> dict[int, str]:
        return {index: str(CpuSet(os.sched_getaffinity(tid))) for tid, index in vm.vcpus().items()}

    vm = Qemu(node.id("a"), vcpus=2, maxcpus=8, debug_threads=False, accel="kvm", paused=False)
    # Firmware would keep the first vCPU busy, on a busy machine for longer than anybody looks.
    (vm.dir / "rom").write_bytes(_WAITS)
    vm.argv += ["-bios", str(vm.dir / "rom")]
    with vm:
        wait(lambda: masks() == {0: first, 1: second}, masks)
        wait_until_nobody_looks(node)
        assert vm.add_vcpu() == 7
        wait(lambda: masks() == {0: first, 1: second, 7: first}, masks)


def test_a_thread_that_is_born_outside_is_put_back_and_counted(node: Node, cpus: tuple[str, str]) -> None:
    """Another hand has moved its creator; the clock that would put that back is far."""
    start(node)

    def counted(name: str) -> bool:
        with Qemu(node.id(name), vcpus=2, maxcpus=8) as vm:
            wait_until_nobody_looks(node)
            lost, before = overruns(node), birth(node, vm.sandbox)
            os.sched_setaffinity(vm.pid, {int(cpus[1])})
            assert vm.add_vcpu() == 7
            node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[0], 7: cpus[0]})
            after = wait(lambda: ((found := birth(node, vm.sandbox))["told"] == before["told"] + 1 and found)
                         or overruns(node) > lost, lambda: (before, birth(node, vm.sandbox)))
            if overruns(node) > lost:
                return False
            assert (after["inside"], after["outside"]) == (before["inside"], before["outside"] + 1)
            assert after["outside_ms"]["sum"] > before["outside_ms"]["sum"]
            wide = node.cli("status", "-o", "wide").stdout
            # Two, where the watcher had placed QEMU before that made its first thread.
            assert (f"births: {after['told']} threads, {after['inside']} within their CPUs; "
                    f"{after['outside']} were allowed outside") in wide
            assert "births reported by the kernel" in wide
            return True

    assert in_time(counted)


def test_storms_of_others_disturb_neither(node: Node, cpus: tuple[str, str]) -> None:
    start(node)

    def nearly_all_inside(name: str) -> bool:
        with Midwife() as midwife, Qemu(node.id(name), vcpus=4, maxcpus=8) as vm:
            assert vm.add_vcpu() == 7
            node.wait_for_all(vm.pid, cpus[0])
            masks = midwife.masks(vm.pid)
        return bool(masks) and masks.count(CpuSet.parse(cpus[0])) >= len(masks) - 2

    storm = subprocess.Popen(["/bin/sh", "-c", "while :; do /bin/true; done"])
    try:
        assert in_time(nearly_all_inside)
    finally:
        storm.kill()
        storm.wait()


# What may go wrong


def test_what_was_lost_is_looked_for(node: Node, cpus: tuple[str, str]) -> None:
    start(node)
    assert node.watcher is not None
    node.watcher.send_signal(signal.SIGSTOP)
    with Qemu(node.id("a"), vcpus=2) as vm:
        assert seen(vm.pid).all() != {cpus[0]}
        for _ in range(40_000):
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
        node.watcher.send_signal(signal.SIGCONT)
        node.wait_for_all(vm.pid, cpus[0])
        wait(lambda: node.status()["sources"]["births"]["overruns"] >= 1, lambda: node.status()["sources"]["births"])
        node.wait_for_log("lost events: everything is read again")
        outside = wait(lambda: birth(node, vm.sandbox), "no account")
        assert 1 <= outside["outside"] <= len(vm.tids())
        assert outside["outside_ms"]["max"] > 100


def test_without_proc_events_it_logs_that_once_and_polls(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(watch={"resync_seconds": 0.3})
    node.wrap = [need_tool("unshare"), "--net", need_tool("setpriv"), "--bounding-set=-sys_admin",
                 "--inh-caps=-sys_admin"]
    node.start()
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.wait_for_all(vm.pid, cpus[0])
        found = wait(lambda: birth(node, vm.sandbox), "no account")
        assert found["told"] == 0
        assert 1 <= found["outside"] <= len(vm.tids())  # what was born after its creator was placed is not
        assert found["outside_ms"]["max"] > 0
        state = node.status()["sources"]["births"]["state"]
        assert state.startswith("not reported: it takes the machine's own network namespace, which cannot be entered")
        node.resyncs()
    assert node.log().count("proc connector unavailable") == 1


def test_births_can_be_left_out(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(watch={"births": False})
    node.start()
    with Qemu(node.id("a"), vcpus=2) as vm:
        time.sleep(0.5)
        assert cpus[0] not in seen(vm.pid).all()
        assert node.status()["sources"]["births"] is None
        assert node.cli("reconcile").returncode == 0
        assert seen(vm.pid).all() == {cpus[0]}
    assert "births" not in node.log()


def test_a_watcher_that_is_killed_right_after_a_vm_began_can_give_everything_back(
        node: Node, cpus: tuple[str, str]) -> None:
    free = frozenset(os.sched_getaffinity(0))
    dice = secrets.SystemRandom()
    for number in range(5):
        start(node)
        with Qemu(node.id(f"a{number}"), vcpus=2) as vm:
            time.sleep(dice.uniform(0, 0.05))
            node.kill()
            start(node)
            node.wait_for_all(vm.pid, cpus[0])
            assert node.cli("unpin", vm.sandbox).returncode == 0
            assert {mask for mask in by_tid(vm.pid).values()} == {free}
            node.kill()


def test_the_account_is_in_the_document(node: Node) -> None:
    start(node)
    with Qemu(node.id("a"), vcpus=1) as vm:
        wait(lambda: birth(node, vm.sandbox), "no account")
        sources = node.status()["sources"]["births"]
        assert sources["state"].startswith("reported by the kernel")
        assert sources["events"]["exec"] >= 1
        assert sources["events"]["fork"] >= 1
        assert set(birth(node, vm.sandbox)) == {"told", "inside", "ended", "outside", "outside_ms", "placed",
                                                "placed_ms"}
