"""Identifying the threads of real QEMUs, compared with QEMU's own answer over its other QMP connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import platform
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from identified_threads import identified, vcpus_of
from need import need_root, need_unshare
from real_qemu import Qemu, need_kvm
from waiting import wait

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId
from vmpin.host.procfs import PF_USER_WORKER, Procfs
from vmpin.vmm import qemu
from vmpin.vmm.qemu import guest_vcpus, iothread_ids, qmp_sockets
from vmpin.vmm.qmp import query, query_threads
from vmpin.vmm.recognition import VmmProcess, classify
from vmpin.vmm.threads import Identified, wants_qmp
from vmpin.vmm.virtual_machine import Process, Vm

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="starts qemu-system-x86_64 with a PC")


def look(vm: Qemu, procfs: Procfs | None = None, **more: object) -> Identified:
    return identified(vm.pid, qemu.QEMU, vm.argv, vm.threads(), procfs or Procfs(), **more)  # type: ignore[arg-type]


def look_until_complete(vm: Qemu, procfs: Procfs | None = None, **more: object) -> Identified:
    """The firmware keeps the first vCPU busy for seconds."""
    found: Identified = wait(lambda: seen if (seen := look(vm, procfs, **more)).complete else None,
                             "vCPUs are not identified")
    return found


def look_for_iothreads(vm: Qemu) -> set[int]:
    """One that is not waiting just then (a loaded machine) cannot be identified by the order."""
    found: set[int] = wait(lambda: with_role(look(vm), ThreadRole.IOTHREAD), vm.threads)
    return found


def asks_qmp(vm: Qemu, found: Identified) -> bool:
    return wants_qmp(qemu.QEMU, vm.argv, found.complete, bool(with_role(found, ThreadRole.IOTHREAD)))


def with_role(found: Identified, role: ThreadRole) -> set[int]:
    return {tid for tid, (its, _) in found.roles.items() if its is role}


def test_process_is_classified_by_its_real_command_line() -> None:
    with Qemu() as vm:
        argv = Procfs().cmdline(vm.pid)
        assert argv == vm.argv
        assert classify(argv) == VmmProcess(qemu.QEMU, vm.sandbox)  # type: ignore[arg-type]


def test_named_threads_are_identified_by_their_names() -> None:
    with Qemu(vcpus=2, maxcpus=8, iothreads=["io1"], vhost=2) as vm:
        found = look(vm)
        assert (found.found_by, found.complete, vcpus_of(found)) == ("names", True, vm.vcpus())
        assert with_role(found, ThreadRole.IOTHREAD) == vm.iothreads()
        assert len(with_role(found, ThreadRole.VHOST)) == 2
        assert vm.pid in with_role(found, ThreadRole.EMULATOR)
        assert set(found.roles) == set(vm.tids())
        assert not asks_qmp(vm, found)


def test_vhost_stand_ins_are_kernel_made_where_io_uring_is_allowed() -> None:
    with Qemu(vhost=3) as vm:
        stats = [stat for _, stat in vm.threads() if stat.comm == f"vhost-{vm.pid}"]
        assert len(stats) == 3
        if not any(stat.flags & PF_USER_WORKER for stat in stats):
            pytest.skip("io_uring is forbidden here, or older than Linux 6.4")
        assert all(stat.flags & PF_USER_WORKER for stat in stats)


def test_hotplugged_vcpus_leave_holes() -> None:
    with Qemu(vcpus=2, maxcpus=8) as vm:
        assert vm.add_vcpu() == 7
        found = look(vm)
        assert (found.found_by, found.complete, vcpus_of(found)) == ("names", True, vm.vcpus())
        assert sorted(vcpus_of(found).values()) == [0, 1, 7]
        assert guest_vcpus(vm.argv, vcpus_of(found).values()) == tuple(map(Vcpu, map(VcpuId, (0, 1, 7))))


def test_iothreads_with_long_names_are_identified_by_their_order() -> None:
    """Kata's ids do not fit into a thread name, and then QEMU sets none."""
    with Qemu(vcpus=2, iothreads=["indep_iothread_0", "io1", "indep_iothread_1"]) as vm:
        assert look_for_iothreads(vm) == vm.iothreads()


def test_unnamed_threads_are_identified_by_qmp() -> None:
    with Qemu(vcpus=3, maxcpus=8, iothreads=["io1", "io2"], debug_threads=False, qmp_sockets=1) as vm:
        vm.add_vcpu()
        found = look(vm)
        assert (found.found_by, found.complete, vcpus_of(found)) == ("none", False, {})
        assert asks_qmp(vm, found)
        assert qmp_sockets(vm.argv) == (vm.qmp_path,)
        answer = asyncio.run(query(vm.qmp_path, deadline=120, pid=vm.pid))
        assert answer is not None
        found = look(vm, qmp=answer)
        assert (found.found_by, found.complete, vcpus_of(found)) == ("qmp", True, vm.vcpus())
        assert sorted(vcpus_of(found).values()) == [0, 1, 2, 7]
        assert with_role(found, ThreadRole.IOTHREAD) == vm.iothreads()
        assert len(iothread_ids(vm.argv)) == len(vm.iothreads())
        assert not asks_qmp(vm, found)


def test_katas_own_connection_is_never_asked() -> None:
    with Qemu(debug_threads=False) as vm:
        assert not asks_qmp(vm, look(vm))


def test_unnamed_vcpus_are_identified_by_kvm_run() -> None:
    need_kvm()
    # cores that are no power of two: KVM's ids are 0 1 2 4 5 6 there
    with Qemu(smp="5,sockets=2,cores=3,maxcpus=6", debug_threads=False, accel="kvm", paused=False,
              iothreads=["indep_iothread_0"]) as vm:
        found = look_until_complete(vm)
        assert (found.found_by, vcpus_of(found)) == ("kvm_run", vm.vcpus())
        assert vm.add_vcpu() == 5
        found = look_until_complete(vm)
        assert vcpus_of(found) == vm.vcpus()
        assert look_for_iothreads(vm) == vm.iothreads()


def test_paused_vcpus_are_unknown_to_kvm() -> None:
    """A vCPU that never ran is in no KVM_RUN; the descriptors say that it is there."""
    need_kvm()
    with Qemu(vcpus=2, debug_threads=False, accel="kvm") as vm:
        assert look(vm) == Identified(dict.fromkeys(vm.tids(), (ThreadRole.EMULATOR, None)), "none", False)


class _Busy(Procfs):
    """A /proc in which every thread is on a CPU all the time."""

    def syscall(self, pid: int | str, tid: int | str) -> str:
        return "running"


@pytest.mark.root
def test_busy_vcpus_are_identified_by_debugfs() -> None:
    need_root()
    need_kvm()
    with debugfs() as root, Qemu(vcpus=2, debug_threads=False, accel="kvm", paused=False) as vm:
        if not list(Path(root).glob(f"kvm/{vm.pid}-*/vcpu0/pid")):
            pytest.skip("this kernel's KVM lists no threads in debugfs")  # as need_kvm(): not the set-up's fault
        found = look_until_complete(vm, _Busy(), debugfs=root)
        assert (found.found_by, vcpus_of(found)) == ("debugfs", vm.vcpus())


@contextmanager
def debugfs() -> Iterator[str]:
    """Where debugfs is; if it is not mounted, it is for the time being, in a mount namespace of its own."""
    if Path("/sys/kernel/debug/kvm").exists():
        yield "/sys/kernel/debug"
        return
    script = "mount -t debugfs none /sys/kernel/debug && echo mounted && exec sleep 600"
    with subprocess.Popen([*need_unshare("--mount"), "sh", "-c", script], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"mounted\n":
                pytest.skip("debugfs cannot be mounted here")
            yield f"/proc/{process.pid}/root/sys/kernel/debug"
        finally:
            process.kill()


def connections(path: str) -> list[str]:
    """The states of the clients of a socket: 03 served, 02 waiting."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(f" {path}"))
    return [words[5] for words in fields if words[5] != "01"]


def unanswered(path: str, pid: int | None = None) -> bool:
    try:
        return asyncio.run(query(path, 0.2, pid)) is None
    except TimeoutError:
        return True


def wait_for_clients(path: str, *states: str) -> None:
    wait(lambda: connections(path) == list(states), lambda: connections(path))


def test_socket_in_use_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Qemu(qmp_sockets=1) as vm, socket.socket(socket.AF_UNIX) as katas:
        katas.connect(vm.qmp_path)
        wait_for_clients(vm.qmp_path, "03")
        assert asyncio.run(query(vm.qmp_path, deadline=1e6, pid=vm.pid)) is None  # it does not wait for that
        assert connections(vm.qmp_path) == ["03"], "a connection was queued"
        katas.close()
        wait_for_clients(vm.qmp_path)
        assert asyncio.run(query(vm.qmp_path, deadline=120)) is not None
    assert not caplog.records


def test_socket_that_is_in_use_unseen_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """Its owner may have bound it by another path, or in another network namespace."""
    caplog.set_level(logging.INFO)
    with Qemu(qmp_sockets=1) as vm, socket.socket(socket.AF_UNIX) as katas:
        other = vm.dir / "other.sock"
        os.link(vm.qmp_path, other)
        katas.connect(vm.qmp_path)
        wait_for_clients(vm.qmp_path, "03")
        with pytest.raises(TimeoutError):
            asyncio.run(query(str(other), deadline=0.2))
        katas.close()
        assert asyncio.run(query(str(other), deadline=120)) is not None
    assert not caplog.records


def test_a_qemu_that_is_late_is_asked_again(tmp_path: Path) -> None:
    """And the unread rest of the first question is not taken for another program's client."""
    with Qemu(debug_threads=False, qmp_sockets=1) as vm:
        asked = Vm(SandboxId("a"), qemu.QEMU,
                   Process(vm.pid, ThreadId(vm.pid, 0), ThreadRole.EMULATOR, list(vm.argv)))
        os.kill(vm.pid, signal.SIGSTOP)
        goes_on = threading.Timer(0.5, os.kill, (vm.pid, signal.SIGCONT))
        goes_on.start()
        assert asyncio.run(query_threads(asked, (0.1, *[0.5] * 240)))
        goes_on.join()


def test_relative_path_is_taken_from_qemus_directory() -> None:
    with Qemu(extra=["-qmp", "unix:rel.sock,server=on,wait=off"]) as vm:
        assert asyncio.run(query("rel.sock", deadline=120, pid=vm.pid)) is not None
        assert unanswered("rel.sock")


def _silent(client: socket.socket) -> None:
    client.recv(1)


def _junk(client: socket.socket) -> None:
    client.sendall(b"\x00\xff{]\n" * 100)
    client.recv(1)


def _hang_up(client: socket.socket) -> None:
    del client


def _endless(client: socket.socket) -> None:
    while True:
        client.sendall(b"x" * 65536)


def _greets_only(client: socket.socket) -> None:
    client.sendall(b'{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 9}, "package": ""}, '
                   b'"capabilities": []}}\n')
    while client.recv(100):
        pass


def _refuses(client: socket.socket) -> None:
    _greeting = b'{"QMP": {"version": {}, "capabilities": []}}\n'
    client.sendall(_greeting)
    client.recv(1000)
    client.sendall(b'{"return": {}}\n')
    while got := client.recv(1000):
        number = got.partition(b'"id": "')[2].partition(b'"')[0] or got.partition(b'"id":"')[2].partition(b'"')[0]
        client.sendall(b'{"id": "' + number + b'", "error": {"class": "CommandNotFound", "desc": "no"}}\n')


def _negotiates(client: socket.socket) -> None:
    client.sendall(b'{"QMP": {"version": {}, "capabilities": []}}\n')
    command = json.loads(client.recv(1000))
    reply = {"return": {}, "id": command["id"]} if "id" in command else {"return": {}}
    client.sendall(json.dumps(reply).encode() + b"\n")


def _ends_in_a_message(client: socket.socket) -> None:
    _negotiates(client)
    client.sendall(b'{"return": [')


@pytest.mark.parametrize("behave", [_ends_in_a_message, _silent, _junk, _hang_up, _endless, _greets_only, _refuses])
def test_server_that_is_no_qemu_gives_no_answer(tmp_path: Path, behave: Callable[[socket.socket], None],
                                                caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def serve() -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):  # the peer hangs up when it likes
            behave(client)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "qmp.sock"))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        assert unanswered(str(tmp_path / "qmp.sock"))
        thread.join(120)
        assert not thread.is_alive(), "the connection was not closed"
    gc.collect()  # asyncio logs a failure that was not looked at
    assert not caplog.records


@pytest.mark.parametrize("message", [b'{"id": 0}\n', b'{"event": "RESUME", "data": {}, "timestamp": {}}\n'])
def test_a_flood_of_messages_is_given_up_long_before_the_deadline(tmp_path: Path, message: bytes) -> None:
    def serve() -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            _negotiates(client)
            while True:
                client.sendall(message * 1000)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "qmp.sock"))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        assert asyncio.run(query(str(tmp_path / "qmp.sock"), deadline=60)) is None
        thread.join(120)


def test_no_socket_is_no_answer(tmp_path: Path) -> None:
    assert unanswered(str(tmp_path / "absent"))
    assert unanswered(str(tmp_path / "no" / "directory"))
    assert unanswered("", pid=os.getpid())
