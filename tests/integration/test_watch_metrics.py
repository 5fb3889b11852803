"""Metrics and probes of the real watcher, over TCP and over a unix socket."""

from __future__ import annotations

import http.client
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from need import need_root, need_tool
from process_masks import by_tid, two_cpus, union
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from real_node import Node
from real_qemu import Qemu
from waiting import PATIENCE, wait

pytestmark = pytest.mark.root

#: Of this process alone: a port that was free a moment ago is no other's.
HOST = f"127.{'.'.join(str(1 + secrets.randbelow(254)) for _ in range(3))}"


class Unix(http.client.HTTPConnection):
    """Over the socket at `path`."""

    def __init__(self, path: Path, timeout: float = PATIENCE) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Metered(Node):
    """A node whose watcher answers at `where`."""

    def __init__(self) -> None:
        super().__init__()
        self.where: Path | int = self.run / "metrics.sock"

    def on(self, where: Path | int, **more: object) -> None:
        self.where = where
        address = f"{HOST}:{where}" if isinstance(where, int) else f"unix:{where}"
        self.configure(metrics={"address": address, **more})

    def ask(self, path: str) -> tuple[int, str]:
        with closing(Unix(self.where) if isinstance(self.where, Path) else
                     http.client.HTTPConnection(HOST, self.where, timeout=PATIENCE)) as client:
            client.request("GET", path)
            answer = client.getresponse()
            return answer.status, answer.read().decode()

    def wait_until_served(self) -> None:
        def there() -> bool:
            with suppress(OSError):
                self.ask("/healthz")
                return True
            return False

        wait(there, "no answer to a probe")

    def families(self) -> list[Metric]:
        status, text = self.ask("/metrics")
        assert status == 200
        return list(text_string_to_metric_families(text))

    def value(self, name: str, **labels: str) -> float:
        """The sum of what has these labels."""
        found = [sample.value for family in self.families() for sample in family.samples
                 if sample.name == name and labels.items() <= sample.labels.items()]
        assert found, f"no {name} {labels}"
        return sum(found)

    def wait_for(self, wanted: float, name: str, **labels: str) -> None:
        wait(lambda: self.value(name, **labels) == wanted,
             lambda: f"{name} {labels} is {self.value(name, **labels)} and not {wanted}")


def free_port() -> int:
    with socket.socket() as made:
        made.bind((HOST, 0))
        return int(made.getsockname()[1])


@pytest.fixture
def node() -> Iterator[Metered]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Metered() as made:
        yield made


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_a_scrape_shows_what_the_kernel_has(node: Metered, way: str) -> None:
    first, second = two_cpus()
    node.on(free_port() if way == "tcp" else node.run / "metrics.sock")
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.wait_until_served()
        threads = len(by_tid(vm.pid))
        node.wait_for(threads, "vmpin_threads", place="placed")
        assert node.value("vmpin_sandboxes", verdict="floating") == 1
        node.container(vm.sandbox, "web", second)
        node.wait_for(1, "vmpin_sandboxes", verdict="pinned")
        assert node.value("vmpin_threads", role="vcpu", place="placed") == 2
        assert node.value("vmpin_cpus", set="exclusive") == 1
        assert node.value("vmpin_pins_total", outcome="done") >= 2 * threads
        assert node.value("vmpin_pin_latency_seconds_count") >= 1
        assert 0 < node.value("vmpin_pin_latency_seconds_sum") < PATIENCE
        assert node.value("vmpin_source_up", source="hook") == 1
        passes = node.value("vmpin_passes_total", why="resync")
        wait(lambda: node.value("vmpin_passes_total", why="resync") > passes, "no resync is counted")
        assert abs(node.value("vmpin_last_resync_timestamp_seconds") - time.time()) < PATIENCE
        assert node.watcher is not None
        pid = node.watcher.pid  # which may have a file open at one of the looks
        wait(lambda: node.value("process_open_fds") >= len(os.listdir(f"/proc/{pid}/fd")) - 1, "not all descriptors")
        assert not any("sandbox" in sample.labels for family in node.families() for sample in family.samples)
        assert vm.sandbox not in node.ask("/metrics")[1]
    node.wait_for(0, "vmpin_threads")


def test_drift_and_its_repair_show(node: Metered) -> None:
    first, second = two_cpus()
    node.on(node.run / "metrics.sock")
    node.configure(node={"shared_pool": first}, watch={"resync_seconds": 3.0})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.wait_until_served()
        node.wait_for(2, "vmpin_threads", role="vcpu", place="placed")
        node.resyncs(1)
        drift, pins = node.value("vmpin_drift_total"), node.value("vmpin_pins_total")
        for tid in by_tid(vm.pid):
            os.sched_setaffinity(tid, {int(second)})
        wait(lambda: node.value("vmpin_threads", place="elsewhere") > 0 or node.value("vmpin_pins_total") > pins,
             "what another hand did does not show")
        node.wait_for(0, "vmpin_threads", place="elsewhere")
        assert node.value("vmpin_pins_total") >= pins + 2
        assert node.value("vmpin_drift_total") >= drift + 2


def test_each_sandbox_shows_when_asked_for_and_until_it_is_gone(node: Metered) -> None:
    first, second = two_cpus()
    node.on(node.run / "metrics.sock")
    with Qemu(node.id("a"), vcpus=1) as vm:
        node.start()
        node.wait_until_served()
        node.container(vm.sandbox, "web", union((first, second)))
        node.on(node.run / "metrics.sock", per_sandbox=True)
        assert node.watcher is not None
        node.watcher.send_signal(signal.SIGHUP)
        wait(lambda: vm.sandbox in node.ask("/metrics")[1], "the sandbox does not show")
        node.wait_for(1, "vmpin_sandbox_threads", sandbox=vm.sandbox, namespace="tests", pod="pod", role="vcpu")
    wait(lambda: f'role="vcpu",sandbox="{vm.sandbox}"' not in node.ask("/metrics")[1], "its threads still show")


def test_a_peer_that_sends_nonsense_affects_no_other(node: Metered) -> None:
    node.on(free_port())
    node.start()
    node.wait_until_served()
    assert isinstance(node.where, int)
    assert node.watcher is not None
    watcher = psutil.Process(node.watcher.pid)
    for raw in (b"\0" * 100000, b"GET " * 100000, b"\r\n\r\n", b"", b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 10000,
                b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"GET /%00%ff HTTP/1.0\n\n"):
        for _ in range(5):
            with suppress(OSError), socket.create_connection((HOST, node.where), timeout=PATIENCE) as client:
                client.sendall(raw)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
    mute = [socket.create_connection((HOST, node.where), timeout=PATIENCE) for _ in range(50)]
    node.sandbox("none")  # the command line is answered all the same
    for each in mute:
        each.close()
    node.wait_until_served()
    assert node.value("vmpin_sandboxes", verdict="pinned") == 0
    wait(lambda: [each.status for each in watcher.net_connections("tcp")] == ["LISTEN"], "connections are still open")
    assert "ERROR" not in node.log()


def test_a_port_that_is_taken_is_no_reason_not_to_pin(node: Metered) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        node.on(int(other.getsockname()[1]))
        with Qemu(node.id("a"), vcpus=1) as vm:
            node.start()
            node.container(vm.sandbox, "web", two_cpus()[1])
            node.wait_for_all(vm.pid, two_cpus()[1])
            node.wait_for_log("task failed source=metrics")
    node.wait_until_served()  # it is free now
    assert node.value("vmpin_source_restarts_total", source="metrics") >= 1


def test_ready_means_that_the_runtime_is_connected(node: Metered) -> None:
    node.on(node.run / "metrics.sock")
    with socket.socket(socket.AF_UNIX) as runtime:  # one that says nothing
        runtime.bind(str(node.top / "nri.sock"))
        runtime.listen()
        node.start()
        node.wait_until_served()
        status, text = node.ask("/readyz")
        assert status == 503
        assert "[-]nri failed" in text
        assert node.value("vmpin_source_up", source="nri") == 0
        status, text = node.ask("/healthz")
        assert (status, text.splitlines()[-1]) == (200, "ok")
    node.configure(watch={"nri": "off"})
    node.stop()
    assert not (node.run / "metrics.sock").exists()
    node.start()
    node.wait_until_served()
    status, text = node.ask("/readyz")
    assert (status, text.splitlines()[-1]) == (200, "ok")
    assert not any(sample.labels.get("source") == "nri" for family in node.families() for sample in family.samples)


def test_a_watcher_that_hangs_answers_no_probe(node: Metered) -> None:
    node.on(node.run / "metrics.sock")
    node.start()
    node.wait_until_served()
    assert node.watcher is not None
    node.watcher.send_signal(signal.SIGSTOP)
    try:
        with closing(Unix(node.run / "metrics.sock", 1.0)) as client:
            client.request("GET", "/healthz")
            with pytest.raises(TimeoutError):
                client.getresponse()
    finally:
        node.watcher.send_signal(signal.SIGCONT)
    node.wait_until_served()


def test_nothing_listens_by_default(node: Metered) -> None:
    node.start()
    assert sorted(path.name for path in node.run.iterdir() if path.is_socket()) == ["hook.sock", "vmpin.sock"]


def test_contention_is_counted_when_it_is_noticed_though_nothing_is_set_from_then_on(node: Metered) -> None:
    first, second = two_cpus()
    node.configure(node={"shared_pool": first}, drift={"contention_repairs": 1})
    node.on(node.run / "metrics.sock", per_sandbox=True)
    with Qemu(node.id("a"), vcpus=1) as vm:
        node.start()
        node.wait_for_all(vm.pid, first)
        node.wait_until_served()
        assert node.value("vmpin_contentions_total") == 0

        def contended() -> bool:
            os.sched_setaffinity(vm.pid, {int(second)})
            return "contention sandbox=" in node.log()

        wait(contended, "no contention is noticed")
        wait(lambda: node.value("vmpin_contentions_total") == 1, "contention is not counted")
        assert node.value("vmpin_sandbox_contentions_total", sandbox=vm.sandbox) == 1
        assert os.sched_getaffinity(vm.pid) == {int(second)}
