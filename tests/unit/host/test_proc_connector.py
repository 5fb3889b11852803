"""The kernel's proc connector, with its real events."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from need import lacking, need_root, need_tool

from vmpin.errors import SourceError
from vmpin.host import proc_connector
from vmpin.host.proc_connector import ProcConnector, lacking_rights
from vmpin.host.procfs import Procfs, linux
from vmpin.wire import proc_events
from vmpin.wire.proc_events import COMM, EXEC, FORK, Comm, Event, Exec, Fork

pytestmark = pytest.mark.root

_PR_SET_NAME = 15


@pytest.fixture
def connector() -> Iterator[ProcConnector]:
    need_root()
    try:
        made = ProcConnector()
    except SourceError as err:
        lacking(f"needs the kernel's proc connector: {err}")
    yield made
    made.close()


def until(connector: ProcConnector, true: Callable[[list[Event]], bool], seconds: float = 120.0) -> list[Event]:
    found: list[Event] = []
    deadline = time.monotonic() + seconds
    while not true(found):
        assert time.monotonic() < deadline, found[-20:]
        found += connector.read()[0]
        time.sleep(0.002)
    return found


def test_a_thread_is_reported_with_its_process_and_its_name(connector: ProcConnector) -> None:
    born: list[int] = []

    def named() -> None:
        born.append(threading.get_native_id())
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"CPU 3/KVM", 0, 0, 0)

    before = time.monotonic_ns()
    thread = threading.Thread(target=named)
    thread.start()
    thread.join()
    after = time.monotonic_ns()
    found = until(connector, lambda events: any(isinstance(event, Comm) and event.name == "CPU 3/KVM"
                                                for event in events))
    (fork,) = [event for event in found if isinstance(event, Fork) and event.child == born[0]]
    # From Python 3.14 on a thread begins by taking the name that threading has for it.
    *own, comm = [event for event in found if isinstance(event, Comm) and event.thread == born[0]]
    assert [event.name for event in own] == ([] if sys.version_info < (3, 14) else [thread.name[:15]])
    assert fork.process == comm.process == os.getpid()
    assert comm.name == "CPU 3/KVM"
    assert before <= fork.time <= comm.time <= after


def test_a_program_is_reported_and_its_fork_is_filtered_out(connector: ProcConnector) -> None:
    ran = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    ran.wait()
    found = until(connector, lambda events: any(isinstance(event, Exec) and event.process == ran.pid
                                                for event in events))
    assert [event for event in found if isinstance(event, Fork) and event.child == event.process == ran.pid] == []


@pytest.mark.usefixtures("connector")
@pytest.mark.parametrize(("release", "events"), [("6.1.0-25-amd64", None), ("5.14.0-427.el9", None), ("odd", None),
                                                 ("6.6.1", FORK | EXEC | COMM), ("10.0", FORK | EXEC | COMM)])
def test_an_old_kernel_is_asked_as_it_understands(release: str, events: int | None) -> None:
    """Although another socket listens, so that what it did not understand would arrive as well."""
    if (linux(os.uname().release) or (0, 0)) < (6, 6) and events is not None:
        lacking("needs Linux 6.6")
    made = ProcConnector(release=release)
    try:
        assert (made.kinds, made.filtered) == (events, events is not None)
        test_a_thread_is_reported_with_its_process_and_its_name(made)
    finally:
        made.close()


@pytest.mark.usefixtures("connector")
def test_a_reader_that_was_stopped_reads_the_events_all_the_same() -> None:
    """Before Linux 6.6 there is no second form to ask in. The event is there when the thread has begun."""
    ProcConnector(release="5.15.0", patience=-1.0).close()


def renamed(name: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


@pytest.mark.parametrize("others", [0, 600, proc_events.MAX_FOLLOWED])
def test_of_processes_that_are_not_followed_no_name_and_no_thread_is_received(
        connector: ProcConnector, others: int) -> None:
    """However many are followed: where the kernel has no room for so many, all are received."""
    connector.follow([os.getpid(), *range(1 << 22, (1 << 22) + others)])
    script = "import threading\nfor _ in range(1000): threading.Thread(target=int).start()"
    for code in "for _ in range(1000): open('/proc/self/comm', 'w').write('x')", script:
        with subprocess.Popen([sys.executable, "-S", "-c", code]) as other:
            assert other.wait() == 0
        renamed(b"followed")
        received = until(connector, lambda events: any(isinstance(event, Comm) and event.name == "followed"
                                                       for event in events))
        if others < proc_events.MAX_FOLLOWED:
            assert not any(isinstance(event, Comm | Fork) and event.process == other.pid for event in received)
    connector.follow(range(proc_events.MAX_FOLLOWED + 1))
    renamed(b"any")
    until(connector, lambda events: any(isinstance(event, Comm) and event.name == "any" for event in events))


def test_without_room_for_any_filter_the_former_one_hides_nothing(
        connector: ProcConnector, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    connector.follow([1])
    with monkeypatch.context() as patched:
        patched.setattr(proc_connector, "_attach", no_room)
        connector.follow([1, os.getpid()])
    renamed(b"followed")
    until(connector, lambda events: any(isinstance(event, Comm) and event.name == "followed" for event in events))


def test_what_is_lost_is_reported(connector: ProcConnector) -> None:
    own = socket.socket(fileno=os.dup(connector.fd))
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(50):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    lost = False
    deadline = time.monotonic() + 120
    while not lost:
        assert time.monotonic() < deadline
        lost = connector.read()[1]
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    own.close()
    test_a_thread_is_reported_with_its_process_and_its_name(connector)  # and it goes on


def test_a_message_of_another_sender_than_the_kernel_is_dropped(connector: ProcConnector) -> None:
    forged = bytes.fromhex("4c00000003000000a7b60200000000000100000001000000a7b6020000000000280000000200000001000000"
                           "313b6387f21900000100000001000000000000000000000000000000000000000000000000000000")[:76]
    with (socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11) as other,
          socket.socket(fileno=os.dup(connector.fd)) as own):
        other.sendto(forged, (own.getsockname()[0], 0))
    with subprocess.Popen(["/bin/true"]) as child:
        found = until(connector, lambda events: any(isinstance(each, Exec) and each.process == child.pid
                                                    for each in events))
    assert Exec(28529444207409, 1) not in found


def test_it_opens_beside_a_thousand_other_descriptors(connector: ProcConnector) -> None:
    """Each guest's connection has one."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2048:
        lacking("needs a hard limit of 2048 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 2048), most))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.dup(opened[0]))
        made = ProcConnector()
        assert made.fd > 1024
        made.close()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def test_leaving_is_sent_once(connector: ProcConnector) -> None:
    """The kernel counts listeners, and makes events for one that did not deregister."""
    # No public way in: the kernel shows nowhere whom it counts, so what is sent to it is taken by another socket.
    real = connector._socket
    connector._socket, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with kernel:
        connector.close()
        connector.close()
        kernel.setblocking(False)
        said = kernel.recv(512)
        assert said == proc_events.subscription(proc_events.MCAST_IGNORE, connector.kinds)
        with pytest.raises(BlockingIOError):
            kernel.recv(512)
        with pytest.raises(OSError) as caught:
            connector.read()
        assert caught.value.errno == errno.EBADF
    with real:
        real.send(said)


_TRY = """\
import sys
from pathlib import Path
from vmpin.errors import SourceError
from vmpin.host.proc_connector import ProcConnector
try:
    ProcConnector(network=Path(sys.argv[1])).close()
except SourceError as err:
    print(err.why)
else:
    print("received")
"""


def tried(*wrap: str, network: str | Path = "/nonexistent") -> str:
    ran = subprocess.run([need_tool(wrap[0]), *wrap[1:], sys.executable, "-c", _TRY, str(network)],
                         capture_output=True, text=True, timeout=120)
    if "unshare" in ran.stderr:
        lacking(ran.stderr)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.usefixtures("connector")
def test_in_namespaces_of_its_own_the_error_names_the_one_at_fault() -> None:
    """Although a listener is there whose events it would get, too."""
    assert tried("unshare", "--pid", "--fork") == "it needs the machine's own pid namespace"
    assert tried("unshare", "--pid", "--fork", "--mount-proc") == "it needs the machine's own pid namespace"
    assert tried("unshare", "--net").startswith(
        "it needs the machine's own network namespace, which cannot be entered from here: ")
    assert tried("unshare", "--user", "--map-root-user") == "it needs the machine's own user namespace"


@pytest.mark.usefixtures("connector")
def test_from_another_network_namespace_the_machines_is_entered() -> None:
    assert tried("unshare", "--net", network=f"/proc/{os.getpid()}/ns/net") == "received"


def test_what_is_missing_is_reported(tmp_path: Path) -> None:
    """As /proc has it of a process without rights in other namespaces."""
    namespaces = tmp_path / "self" / "ns"
    namespaces.mkdir(parents=True)
    (namespaces / "user").symlink_to("user:[4026531837]")
    (namespaces / "pid").symlink_to("pid:[4026532000]")
    (tmp_path / "self" / "status").write_text("Name:\tvmpin\nCapEff:\t0000000000800000\n")
    bare = Procfs(tmp_path)
    assert lacking_rights(bare) == "CAP_NET_ADMIN is missing, it needs the machine's own pid namespace"
    assert lacking_rights(bare, "network") == ("CAP_NET_ADMIN is missing, it needs the machine's own pid and network "
                                        "namespace")
    (tmp_path / "self" / "status").write_text("CapEff:\t000001ffffffffff\n")
    (namespaces / "pid").unlink()
    assert lacking_rights(bare) == ""
