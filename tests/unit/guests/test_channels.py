"""Ways into a guest, against real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from guest_peer import Talk, serving
from need import lacking

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.guests import channels
from vmpin.guests.channels import (
    Channel,
    HybridVsock,
    NotListening,
    VirtioSerial,
    Vsock,
    daemon_uds,
    find_channels,
    open_unix,
)
from vmpin.host.procfs import Procfs
from vmpin.vmm.cloud_hypervisor import CLOUD_HYPERVISOR
from vmpin.vmm.dragonball import DRAGONBALL
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.openvmm import OPENVMM
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.stratovirt import STRATOVIRT
from vmpin.vmm.virtual_machine import Process, Vm
from vmpin.vmm.vmm_type import VmmType

ME = os.getpid()
POD = SandboxId("pod-a")


def vmm(answer: bytes, then: bytes = b"", asked: list[bytes] | None = None) -> Talk:
    """A VMM that answers CONNECT so, and an agent that says `then`, in the same packet."""
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if asked is not None:
            asked.append(line)
        writer.write(answer + then)
        if answer.startswith(b"OK"):
            while data := await reader.read(100):
                writer.write(data)
    return talk


async def test_hybrid_vsock_requests_the_port_and_loses_no_byte_that_follows() -> None:
    asked: list[bytes] = []
    async with serving(vmm(b"OK 1073741824\n", b"hello\n", asked)) as path:
        stream = await HybridVsock(str(path), ME, ME).open(10789)
        assert await stream.reader.readline() == b"hello\n"
        stream.writer.write(b"back\n")
        assert await stream.reader.readline() == b"back\n"
        stream.close()
    assert asked == [b"CONNECT 10789\n"]


async def test_hybrid_vsock_over_a_path_longer_than_an_address_may_be(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    fd = os.open(deep, os.O_PATH)
    async with serving(vmm(b"OK 1\n"), Path(f"/proc/self/fd/{fd}/guest.sock")):
        (await HybridVsock(str(deep / "guest.sock"), ME, ME).open(1)).close()
    os.close(fd)


@pytest.mark.parametrize("answer", [b"", b"no\n", b"OK\n", b"OK x\n", b"OK 99999999999\n", b"OK 1" + b"1" * 10_000,
                                    b"\xff" * 100_000])
async def test_hybrid_vsock_accepts_no_other_answer(answer: bytes) -> None:
    async with serving(vmm(answer)) as path:
        with pytest.raises(OSError) as caught:
            await HybridVsock(str(path), ME).open(1024)
        # The end is how a VMM shows that nothing listens in the guest.
        assert isinstance(caught.value, NotListening) == (answer == b"")


async def test_a_vmm_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "CONNECT_DEADLINE", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
    async with serving(silent) as path:
        with pytest.raises(TimeoutError):
            await HybridVsock(str(path), ME).open(1024)


async def test_a_socket_without_a_listener_and_one_that_is_not_there(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "old.sock"))
    with pytest.raises(NotListening):
        await open_unix(str(tmp_path / "old.sock"), ME, None)
    for path in (tmp_path / "none.sock", tmp_path / "none" / "x.sock", tmp_path):
        with pytest.raises(OSError):
            await open_unix(str(path), ME, None)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


async def test_a_process_without_a_free_descriptor_loses_none_for_good() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    async with serving(vmm(b"OK 1\n")) as path:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
            with suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            os.close(held.pop())
            with pytest.raises(OSError, match="Too many open files"):
                await open_unix(str(path), ME, None)
            held.append(os.open(os.devnull, os.O_RDONLY))
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_path_that_leads_to_another_process_is_not_used() -> None:
    async with serving(vmm(b"OK 1\n")) as path:
        stranger = os.getppid()
        with pytest.raises(PermissionError, match="listens there"):
            await open_unix(str(path), ME, stranger)
        (await VirtioSerial(str(path), ME).open(1)).close()


async def test_a_relative_path_begins_where_its_process_is(tmp_path: Path) -> None:
    code = ("import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('serial.sock'); s.listen();"
            "print(flush=True); c, _ = s.accept(); c.sendall(b'hello'); sys.stdin.read()")
    qemu = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=tmp_path, stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE)
    assert qemu.stdin is not None
    assert qemu.stdout is not None
    await qemu.stdout.readline()
    stream = await VirtioSerial("serial.sock", qemu.pid).open(1)
    assert await stream.reader.read(5) == b"hello"
    stream.close()
    qemu.stdin.close()
    await qemu.wait()


def _loopback() -> socket.socket:
    """A listening AF_VSOCK socket of this machine's own (CID 1)."""
    try:
        made = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    except OSError as err:
        pytest.skip(f"needs AF_VSOCK, which is used for real in the lab: {err}")
    try:
        made.bind((1, socket.VMADDR_PORT_ANY))
    except OSError as err:
        made.close()
        pytest.skip(f"needs AF_VSOCK's CID 1 (module vsock_loopback); in the lab there is a guest's: {err}")
    made.listen()
    return made


async def test_vsock_over_the_loopback() -> None:
    with _loopback() as closed:
        free = closed.getsockname()[1]  # the kernel gives ports in turn: no other process gets it soon
    with _loopback() as made:
        port = made.getsockname()[1]
        stream = await Vsock(1).open(port)
        connection, _ = await asyncio.to_thread(made.accept)
        with connection:
            connection.sendall(b"hello")
            assert await stream.reader.read(5) == b"hello"
        stream.close()
        with pytest.raises(NotListening):
            await Vsock(1).open(free)


async def test_vsock_to_a_guest_that_is_not_there() -> None:
    if not hasattr(socket, "AF_VSOCK"):
        lacking("needs AF_VSOCK")
    with pytest.raises((OSError, TimeoutError)):
        await Vsock(0x7FFFFFF1).open(10789)


# The channels of a VM


def vm(vmm_type: VmmType, argv: list[str]) -> Vm:
    return Vm(POD, vmm_type, Process(ME, ThreadId(ME, 0), ThreadRole.EMULATOR, argv))


def ways(vmm_type: VmmType, argv: list[str], tmp_path: Path, url: str = "") -> list[Channel]:
    return find_channels(vm(vmm_type, argv), url, Procfs(), tmp_path / "vc", tmp_path / "kata")


def test_qemus_command_line_comes_before_katas_state(tmp_path: Path) -> None:
    argv = ["qemu-system-x86_64", "-device", "vhost-vsock-pci,guest-cid=77", "-chardev",
            "socket,id=c0,path=/run/x.sock,server=on", "-device", "virtserialport,chardev=c0,name=org.vmpin.agent.0"]
    found = ways(QEMU, argv, tmp_path, "vsock://78:1024")
    assert found == [Vsock(77), VirtioSerial("/run/x.sock", ME)]
    assert ways(QEMU, argv[:1], tmp_path, "vsock://78:1024") == [Vsock(78)]
    assert ways(QEMU, argv[:1], tmp_path) == []


@pytest.mark.parametrize("url", ["vsock://2:1024", "vsock://4294967295:1024", "vsock://x:1024", "vsock://٣:1024",
                                 "hvsock://relative:1024", "hvsock:///a\0b:1024", "tcp://1.2.3.4:1", "vsock://77", ""])
def test_an_invalid_agent_address_of_katas_is_left_out(url: str, tmp_path: Path) -> None:
    assert ways(QEMU, ["qemu-system-x86_64"], tmp_path, url) == []


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room: a socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        yield Path(place)


@pytest.mark.parametrize(("vmm_type", "path"), [
    (CLOUD_HYPERVISOR, "vc/vm/pod-a/clh.sock"), (CLOUD_HYPERVISOR, "kata/pod-a/ch-vm.sock"),
    (FIRECRACKER, "vc/firecracker/pod-a/root/kata.hvsock"), (FIRECRACKER, "vc/vm/pod-a/kata.hvsock"),
    (FIRECRACKER, "kata/pod-a/kata.hvsock"), (FIRECRACKER, "kata/firecracker/pod-a/root/kata.hvsock"),
    (DRAGONBALL, "kata/pod-a/root/kata.hvsock"), (OPENVMM, "kata/pod-a/vsock.sock"),
])
def test_katas_vmms_listen_at_katas_paths(vmm_type: VmmType, path: str, short: Path) -> None:
    place = short / path
    place.parent.mkdir(parents=True)
    place.touch()
    assert ways(vmm_type, ["vmm"], short) == []
    place.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
        assert ways(vmm_type, ["vmm"], short) == [HybridVsock(str(place), ME, ME)]
        # The same by Kata's own word is no second way.
        assert ways(vmm_type, ["vmm"], short, f"hvsock://{place}:1024") == [HybridVsock(str(place), ME, ME)]


@pytest.mark.parametrize(("vmm_type", "argv", "path"), [
    # A VM from Kata's factory, and one of a rootless Kata.
    (CLOUD_HYPERVISOR, ["cloud-hypervisor", "--api-socket", "{}/vm/other/clh-api.sock"], "vm/other/clh.sock"),
    (CLOUD_HYPERVISOR, ["cloud-hypervisor", "--api-socket", "path={}/u/ch-api.sock"], "u/ch-vm.sock"),
    (FIRECRACKER, ["firecracker", "--api-sock={}/pod/run/fc.sock"], "pod/kata.hvsock"),
    (OPENVMM, ["openvmm", "--ttrpc", "{}/u/openvmm.sock"], "u/vsock.sock"),
])
def test_a_vmm_listens_beside_its_api(vmm_type: VmmType, argv: list[str], path: str, tmp_path: Path) -> None:
    argv = [arg.format(tmp_path) for arg in argv]
    (tmp_path / path).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / path))
        assert ways(vmm_type, argv, tmp_path) == [HybridVsock(str(tmp_path / path), ME, ME)]
        assert ways(vmm_type, argv, tmp_path, f"hvsock://{tmp_path}/gone:1024") == [
            HybridVsock(str(tmp_path / path), ME, ME)]
    assert ways(vmm_type, [argv[0], "--api-socket", "fd=3"], tmp_path) == []


def test_stratovirts_command_line_is_qemus(tmp_path: Path) -> None:
    argv = ["stratovirt", "-device", "vhost-vsock-pci,id=vsock-9,bus=pcie.0,addr=0x3,guest-cid=9,vhostfd=7"]
    assert ways(STRATOVIRT, argv, tmp_path) == [Vsock(9)]


def test_the_daemon_of_a_vhost_user_vsock_is_a_channel(tmp_path: Path) -> None:
    argv = ["qemu-system-x86_64", "-chardev", f"socket,id=vv,path={tmp_path}/vd.sock", "-device",
            "vhost-user-vsock-pci,chardev=vv"]
    assert ways(QEMU, argv, tmp_path) == []
    with subprocess.Popen(["vhost-device-vsock", "-c", "input()", "--socket", f"{tmp_path}/vd.sock", "--uds-path",
                           "vm4.vsock"], executable=sys.executable, stdin=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        until = time.monotonic() + 120
        while not (found := ways(QEMU, argv, tmp_path)) and time.monotonic() < until:
            time.sleep(0.01)
        assert found == [HybridVsock("vm4.vsock", daemon.pid, daemon.pid)]
        daemon.stdin.write(b"\n")
        daemon.stdin.close()
        daemon.wait(120)


def test_where_a_daemon_takes_connections_is_on_its_command_line() -> None:
    daemon = ["/usr/bin/vhost-device-vsock", "--guest-cid", "4", "--socket", "vd.sock", "--uds-path=vm4.vsock"]
    assert daemon_uds(daemon, "vd.sock") == "vm4.vsock"
    assert daemon_uds(daemon, "other.sock") is None
    assert daemon_uds(["/bin/sh", *daemon[1:]], "vd.sock") is None
    assert daemon_uds(["vhost-device-vsock", "--socket", "vd.sock", "--uds-path"], "vd.sock") is None
    many = ["vhost-device-vsock", "--vm", "guest-cid=3,socket=a,uds-path=ua",
            "--vm", "guest-cid=4,socket=b,uds-path=ub"]
    assert daemon_uds(many, "b") == "ub"


@pytest.mark.parametrize(("uid", "found"), [(0, [HybridVsock("vm4.vsock", 4000, 4000)]), (1000, [])])
def test_another_users_long_command_line_is_read_no_further_than_its_beginning(
        tmp_path: Path, uid: int, found: list[Channel]) -> None:
    argv = ["qemu-system-x86_64", "-chardev", "socket,id=vv,path=/run/vd.sock", "-device",
            "vhost-user-vsock-pci,chardev=vv"]
    (tmp_path / "4000").mkdir()
    uids = f"\t{uid}" * 4
    (tmp_path / "4000/status").write_text(f"Name:\tvhost-device-vs\nUid:{uids}\nNSpid:\t4000\n")
    (tmp_path / "4000/cmdline").write_text("\0".join(
        ["vhost-device-vsock", *["--vm"] * 1000, "--socket", "/run/vd.sock", "--uds-path", "vm4.vsock"]) + "\0")
    assert find_channels(vm(QEMU, argv), "", Procfs(tmp_path), tmp_path / "vc", tmp_path / "kata") == found


@pytest.mark.parametrize(("inside", "found"), [("", [HybridVsock("vm4.vsock", 4000, 4000)]), ("\t1", [])])
def test_a_daemon_in_a_container_is_no_channel(tmp_path: Path, inside: str, found: list[Channel]) -> None:
    """Anyone's container may run a vhost-device-vsock with that socket's path on its command line."""
    argv = ["qemu-system-x86_64", "-chardev", "socket,id=vv,path=/run/vd.sock", "-device",
            "vhost-user-vsock-pci,chardev=vv"]
    (tmp_path / "4000").mkdir()
    (tmp_path / "4000/status").write_text(f"Name:\tvhost-device-vs\nNSpid:\t4000{inside}\n")
    (tmp_path / "4000/cmdline").write_text("\0".join(
        ["vhost-device-vsock", "--socket", "/run/vd.sock", "--uds-path", "vm4.vsock"]) + "\0")
    (tmp_path / "5000/cmdline").mkdir(parents=True)  # a read of it may wait for ever (is_containers): here it raises
    (tmp_path / "5000/status").write_text("Name:\tx\nNSpid:\t5000\t1\n")
    assert find_channels(vm(QEMU, argv), "", Procfs(tmp_path), tmp_path / "vc", tmp_path / "kata") == found
