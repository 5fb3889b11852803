"""PodResources, asked of a gRPC server as the kubelet is one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from kubelet_peer import KUBELET, Kubelet

from vmpin.cpuset import CpuSet
from vmpin.errors import SourceError
from vmpin.sources.pod_resources import list_cpus


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path / "kubelet.sock")
    yield made
    made.stop()


def pod(name: str, whole: Sequence[int] = (), /, **containers: list[int]) -> Any:
    return KUBELET["PodResources"](name=name, namespace="shop", cpu_ids=whole, containers=[
        {"name": container, "cpu_ids": ids, "devices": [
            {"resource_name": "example.com/nic", "device_ids": ["x"], "topology": {"nodes": [{"ID": 1}]}}],
         "memory": [{"memory_type": "memory", "size": 1 << 30}]} for container, ids in containers.items()])


def refusal(path: Path, timeout: float = 120) -> str:
    with pytest.raises(SourceError) as caught:
        list_cpus(path, timeout)
    assert caught.value.where == str(path)
    return caught.value.why


def test_exclusive_cpus_are_listed_by_namespace_pod_and_container(kubelet: Kubelet) -> None:
    kubelet.lists(pod("web-0", app=[2, 3, 8191], sidecar=[]), pod("db-0", app=[5, 4]), pod("idle"))
    assert list_cpus(kubelet.path, 120) == {
        ("shop", "web-0", "app"): CpuSet.parse("2-3,8191"), ("shop", "db-0", "app"): CpuSet.parse("4-5")}


def test_the_cpus_of_a_whole_pod_are_of_no_container(kubelet: Kubelet) -> None:
    """1.37, pod level resources: containers that share the rest of their pod's list none (kubernetes#138738)."""
    kubelet.lists(pod("web-0", [3, 6, 7], web=[3], aux=[], log=[]))
    assert list_cpus(kubelet.path, 120) == {
        ("shop", "web-0", ""): CpuSet.parse("3,6-7"), ("shop", "web-0", "web"): CpuSet.parse("3")}


def test_a_node_without_pods_lists_none(kubelet: Kubelet) -> None:
    kubelet.lists()
    assert list_cpus(kubelet.path, 120) == {}


def test_two_pods_of_one_name_count_as_one(kubelet: Kubelet) -> None:
    kubelet.lists(pod("web-0", app=[2, 3]), pod("web-0", app=[4]))
    assert list_cpus(kubelet.path, 120) == {("shop", "web-0", "app"): CpuSet.parse("2-4")}


def test_a_long_list_is_read(kubelet: Kubelet) -> None:
    kubelet.lists(*(pod(f"{at:0200}", app=[at % 100] * 2000) for at in range(3000)))  # 6 MB
    assert len(list_cpus(kubelet.path, 120)) == 3000


def test_a_list_beyond_all_bounds_is_not(kubelet: Kubelet) -> None:
    kubelet.calls["List"] = lambda request, context: bytes(17 << 20)
    assert "too long" in refusal(kubelet.path, 120)


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b?c", "ü"])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    plain = Kubelet(tmp_path / "s")
    try:
        plain.lists(pod("web-0", app=[2]))
        (tmp_path / name).symlink_to("s")
        assert list_cpus(tmp_path / name, 120) == {("shop", "web-0", "app"): CpuSet([2])}
    finally:
        plain.stop()


@pytest.mark.parametrize(("code", "why"), [
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "List: the kubelet is asked too often (100 times a second), or its answer is "
     "too long (rejected by rate limit)"),
    (grpc.StatusCode.UNIMPLEMENTED, "List: this kubelet does not have the call (rejected by rate limit)"),
    (grpc.StatusCode.INTERNAL, "List: internal (rejected by rate limit)"),
])
def test_a_refusal_of_the_kubelet_has_its_reason(kubelet: Kubelet, code: grpc.StatusCode, why: str) -> None:
    kubelet.fails(code, "rejected by rate\x1b limit")
    assert refusal(kubelet.path) == why


def test_a_call_that_the_kubelet_does_not_have_is_unimplemented(kubelet: Kubelet) -> None:
    kubelet.calls.clear()
    with pytest.raises(SourceError, match="this kubelet does not have the call"):
        list_cpus(kubelet.path, 120)


def test_a_slow_kubelet_is_not_waited_for(kubelet: Kubelet) -> None:
    done = threading.Event()

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        done.wait(120)
        return b""

    kubelet.calls["List"] = answer
    try:
        assert refusal(kubelet.path, 0.2) == "List: no answer in time"
    finally:
        done.set()


def test_no_kubelet_is_reported_at_once(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == "No such file or directory"
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file") == "is no socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(tmp_path / "dead"))
    assert refusal(tmp_path / "dead") == "List: the kubelet does not answer there"


def test_a_kubelet_that_was_restarted_answers_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    for _ in range(3):
        running = Kubelet(path)
        running.lists(pod("web-0", app=[2]))
        assert list_cpus(path, 120)
        running.stop()
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(os.fspath(path))
        assert "the kubelet does not answer" in refusal(path)
        path.unlink()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 100, bytes(range(256))])
def test_a_peer_of_another_protocol_is_refused(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.fspath(path))
        made.listen()
        made.settimeout(120)

        def serve() -> None:
            connection, _ = made.accept()
            with connection:
                connection.sendall(said)

        server = threading.Thread(target=serve)
        server.start()
        assert refusal(path, 3).startswith("List: ")
        server.join()


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\x05ab", b"\x0a\x03\x0a\x01\xff"])
def test_an_answer_that_is_none_is_refused(kubelet: Kubelet, raw: bytes) -> None:
    kubelet.calls["List"] = lambda request, context: raw
    assert "ListPodResourcesResponse" in refusal(kubelet.path)


@pytest.mark.parametrize("ids", [[-1], [8192], [2, 1 << 62]])
def test_a_cpu_that_no_machine_has_is_refused(kubelet: Kubelet, ids: list[int]) -> None:
    kubelet.lists(pod("web-0", app=ids))
    assert "is not between 0 and 8191" in refusal(kubelet.path)


def test_nothing_is_left_of_a_call(kubelet: Kubelet) -> None:
    kubelet.lists(pod("web-0", app=[2]))
    list_cpus(kubelet.path, 120)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        list_cpus(kubelet.path, 120)
    end = time.monotonic() + 120
    while len(os.listdir("/proc/self/fd")) > before + 4 and time.monotonic() < end:
        time.sleep(0.01)  # its connections are closed in the background
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_importing_it_loads_neither_grpc_nor_protobuf() -> None:
    code = "import sys, vmpin.sources.pod_resources as p; sys.exit('grpc' in sys.modules or 'google' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
