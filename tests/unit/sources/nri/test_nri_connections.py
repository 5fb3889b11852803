"""Connections of the NRI plugin: restarts of the runtime, refusals, spoilt messages, plugins that a runtime starts."""

from __future__ import annotations

import os
import queue
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import pytest
from nri_connected import Connected, begun
from nri_peer import PATIENCE, NriRuntime, NriRuntimes, delivering

from vmpin.errors import ConfigError
from vmpin.host.retry import JITTER
from vmpin.sources.nri import plugin as nri
from vmpin.sources.nri.connection import connect_to
from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.nri_events import Disconnected, NriEvent, Synced
from vmpin.wire.nri_messages import MESSAGES

pytest_plugins = ["given_nri"]


def test_a_runtime_that_restarts_is_connected_to_again_and_lists_anew(
        runtimes: NriRuntimes, connected: Connected) -> None:
    for _ in range(3):
        runtime = begun(runtimes, connected)
        assert connected.state() == (True, "containerd v2.1.9")
        runtime.close()
        assert connected.fact() == Disconnected()
        assert connected.state() == (False, "containerd v2.1.9 closed the connection")
    counters = connected.plugin.counters
    assert (counters.connects >= 3, counters.syncs, counters.last_error) == (
        True, 3, "containerd v2.1.9 closed the connection")


def test_a_shutdown_is_answered_before_the_connection_ends(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = begun(runtimes, connected)
    assert runtime.call("Shutdown").code == 0
    assert runtime.closed()
    assert connected.fact() == Disconnected()
    begun(runtimes, connected)


def test_half_a_frame_and_the_end_is_a_restart(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = begun(runtimes, connected)
    runtime.socket.sendall(bytes.fromhex("00000001 0000005b 00000051 0000"))
    runtime.close()
    assert connected.fact() == Disconnected()
    begun(runtimes, connected)
    assert connected.plugin.counters.refused == 0


def test_half_a_frame_and_silence_harm_no_other(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = begun(runtimes, connected)
    runtime.socket.sendall(bytes.fromhex("00000001 0000"))
    connected.plugin.stop(timeout=PATIENCE)
    assert not connected.plugin.running
    assert runtime.closed()


@pytest.mark.parametrize("raw", [
    struct.pack(">II", 1, 5 << 20),
    struct.pack(">IIIIBB", 1, 4096, 5 << 20, 1, 1, 0),
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack(">IIIIBB", 1, 14, 4, 1, 1, 0) + b"\xff\xff\xff\xff",
], ids=["a 5 MB frame", "a 5 MB message", "HTTP", "no protobuf"])
def test_what_is_no_nri_costs_the_connection_and_nothing_else(
        runtimes: NriRuntimes, connected: Connected, caplog: pytest.LogCaptureFixture, raw: bytes) -> None:
    runtime = begun(runtimes, connected)
    runtime.socket.sendall(raw)
    assert runtime.closed()
    assert connected.fact() == Disconnected()
    begun(runtimes, connected)
    assert connected.plugin.counters.refused == 1
    assert len([record for record in caplog.records if "nri=down" in record.getMessage()]) == 1


def test_an_event_that_cannot_be_read_is_answered_and_all_is_listed_anew(
        runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = begun(runtimes, connected)
    assert runtime.call("StateChange", b"\x12\x05ab").code == 0
    assert runtime.closed()
    assert connected.fact() == Disconnected()
    begun(runtimes, connected)
    assert connected.plugin.counters.refused == 1


def test_a_runtime_that_closes_at_once_is_one_line_and_not_one_a_second(
        runtimes: NriRuntimes, connected: Connected, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        runtime = runtimes.next()
        runtime.request("RegisterPlugin")
        runtime.close()
    up, text = connected.state()
    assert not up
    assert "disable_connections" in text
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    runtime.close()
    up, text = connected.state()
    assert not up
    assert "events asked for (0x7ff)" in text
    begun(runtimes, connected)
    assert connected.state() == (True, "containerd v2.1.9")
    lines = [record.getMessage() for record in caplog.records if "nri=down" in record.getMessage()]
    assert len(lines) == 2


def test_a_refusal_is_reported_with_the_runtimes_text(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"), code=3, message="invalid plugin index \x1b[1m")
    assert connected.state() == (False, "the runtime refused the plugin: code 3: invalid plugin index [1m")
    assert runtime.closed()


def test_attempts_become_fewer(runtimes: NriRuntimes, caplog: pytest.LogCaptureFixture) -> None:
    runtimes.away = ConnectionRefusedError(111, "Connection refused", "/run/nri.sock")
    rests: list[float] = []
    enough = threading.Event()

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 9:
            enough.set()

    made = Connected(runtimes, rest=rest)
    made.plugin.start()
    assert enough.wait(PATIENCE)
    made.plugin.stop(timeout=PATIENCE)
    wanted = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5]
    assert all((1 - JITTER) * pause <= rest <= (1 + JITTER) * pause
               for rest, pause in zip(rests[:9], wanted, strict=True))
    assert made.state() == (False, "/run/nri.sock: Connection refused")
    assert [record.getMessage() for record in caplog.records] == [
        "nri=down: /run/nri.sock: Connection refused; reconnecting"]


def test_no_socket_says_what_to_do(tmp_path: Path) -> None:
    states: queue.Queue[tuple[bool, str]] = queue.Queue()
    plugin = nri.NriPlugin(connect_to(tmp_path / "nri.sock"), NriQueue(),
                        on_state=lambda up, text: states.put((up, text)))
    plugin.start()
    up, text = states.get(timeout=PATIENCE)
    plugin.stop(PATIENCE)
    assert not up
    assert text.startswith(f"{tmp_path}/nri.sock: No such file or directory: no container runtime")
    with pytest.raises(OSError, match="too long"):
        connect_to(tmp_path / ("x" * 200))()


def test_a_library_that_cannot_be_loaded_is_loaded_at_the_next_attempt(
        runtimes: NriRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connected(runtimes, rest=lambda seconds: time.sleep(0.01))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vmpin.sources.nri.session", None)
        made.plugin.start()
        up, why = made.state()
        assert not up
        assert "session" in why
    begun(runtimes, made)
    made.plugin.stop(PATIENCE)


def test_a_runtime_that_does_not_read_costs_no_memory(runtimes: NriRuntimes) -> None:
    connected = Connected(runtimes, max_unsent=10_000)
    connected.plugin.start()
    runtime = begun(runtimes, connected)
    runtime.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def send_on() -> None:
        for _ in range(1_000_000):
            runtime.send("NoSuchMethod")

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_on()
    assert connected.fact() == Disconnected()
    assert connected.state()[0]
    up, text = connected.state()
    assert not up
    assert text.startswith("NRI: the runtime does not read")
    connected.plugin.stop(PATIENCE)


def test_a_plugin_that_the_runtime_started_ends_with_its_connection() -> None:
    theirs, ours = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    fd = theirs.detach()
    environ = {"NRI_PLUGIN_SOCKET": str(fd), "NRI_PLUGIN_NAME": "pinner", "NRI_PLUGIN_IDX": "07", "PATH": "/bin"}
    facts: queue.Queue[NriEvent] = queue.Queue()
    plugin = nri.from_environment(delivering(facts.put), lambda up, text: None, environ)
    assert plugin is not None
    assert environ == {"PATH": "/bin"}
    assert not os.get_inheritable(fd)
    plugin.start()
    with ours:
        runtime = NriRuntime(ours)
        asked = runtime.request("RegisterPlugin")
        registration = MESSAGES.decode("RegisterPluginRequest", asked.payload)
        assert (registration.plugin_name, registration.plugin_idx) == ("pinner", "07")
        runtime.grant(asked)
        runtime.configure()
        runtime.synchronize()
        assert not plugin.ended.is_set()
    assert plugin.ended.wait(PATIENCE)
    assert isinstance(facts.get(timeout=PATIENCE), Synced)
    assert facts.get(timeout=PATIENCE) == Disconnected()
    plugin.stop(PATIENCE)


def test_a_process_that_no_runtime_started_is_no_such_plugin(tmp_path: Path) -> None:
    def made(environ: dict[str, str]) -> nri.NriPlugin | None:
        return nri.from_environment(NriQueue(), lambda up, text: None, environ)

    assert made({"NRI_PLUGIN_NAME": "x"}) is None
    with (tmp_path / "file").open("w") as file:
        for number in str(file.fileno()), "-1", "x", "9999", "99999999999999999999":
            with pytest.raises(ConfigError, match="no open socket"):
                made({"NRI_PLUGIN_SOCKET": number})


@pytest.mark.parametrize(("name", "index"), [("a b", "90"), ("", "90"), ("vmpin", "7"), ("vmpin", "007"), ("x", "ab")])
def test_a_name_that_no_runtime_takes_is_refused_at_once(name: str, index: str) -> None:
    with pytest.raises(ConfigError, match="two digits"):
        nri.NriPlugin(lambda: socket.socket(), NriQueue(), name, index)


def test_nothing_stays_open(runtimes: NriRuntimes) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before, threads = opened(), threading.active_count()
    for _ in range(5):
        made = Connected(runtimes)
        made.plugin.start()
        runtime = begun(runtimes, made)
        made.plugin.stop(PATIENCE)
        assert runtime.closed()
        runtime.close()
    assert (opened(), threading.active_count()) == (before, threads)
