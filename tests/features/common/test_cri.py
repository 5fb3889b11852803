"""The CRI calls that give a container other CPUs and list pods, against a gRPC server as a runtime is one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cri_peer import CriServer

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.errors import SourceError
from vmpin.features.common import cri

C1, CPUS = ContainerId("c1"), CpuSet.parse("2-3")
#: Seconds; no test waits for as long.
PATIENCE = 60.0

Serve = Callable[..., CriServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    made: list[CriServer] = []

    def start(name: str = "cri.sock", served: bool = True) -> CriServer:
        made.append(CriServer(tmp_path / name, served))
        return made[-1]

    yield start
    for server in made:
        server.stop()


def update(paths: list[Path], timeout: float = PATIENCE) -> None:
    with cri.connected(paths) as servers:
        cri.update_cpus(servers, C1, CPUS, timeout)


def ready_pods(paths: list[Path]) -> frozenset[str]:
    with cri.connected(paths) as servers:
        return cri.ready_pods(servers, PATIENCE)


def test_a_container_is_given_its_cpus_and_nothing_else_changes(serve: Serve) -> None:
    server = serve()
    update([server.path])
    assert server.updates == [("c1", "2-3")]


def test_the_runtime_that_has_the_container_is_found(serve: Serve) -> None:
    docker, other, right = serve("docker.sock", served=False), serve("other.sock"), serve("right.sock")
    other.failure = grpc.StatusCode.NOT_FOUND, "an error occurred when try to find container"
    update([docker.path, other.path, right.path])
    assert right.updates == [("c1", "2-3")]


def test_what_the_runtime_refuses_has_its_reason(serve: Serve) -> None:
    server, other = serve(), serve("other.sock")
    server.failure = grpc.StatusCode.UNKNOWN, "Requested CPUs are not available\x1b"
    other.failure = grpc.StatusCode.NOT_FOUND, "no such container"
    with pytest.raises(SourceError, match=r"UpdateContainerResources: unknown.*CPUs are not available") as err:
        update([server.path, other.path])
    assert not cri.is_mute(err.value)


def test_a_mute_runtime_is_left_at_the_deadline(serve: Serve) -> None:
    server = serve()
    server.mute = True
    with pytest.raises(SourceError, match="no answer in time") as err:
        update([server.path], 0.2)
    assert cri.is_mute(err.value)


def test_a_socket_without_a_server_is_no_runtime_that_could_be_asked_again_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(tmp_path / "dead"))
    with pytest.raises(SourceError, match="no server answers there") as err:
        update([tmp_path / "dead"])
    assert cri.is_mute(err.value)


def test_where_nothing_has_cri_another_way_is_to_be_taken(serve: Serve) -> None:
    for servers in [], [serve(served=False).path]:
        with pytest.raises(cri.NoRuntime):
            update(servers)


def test_the_configured_socket_is_the_only_one(tmp_path: Path) -> None:
    first, second = tmp_path / "containerd.sock", tmp_path / "crio.sock"
    defaults = first, second
    assert cri.sockets(None, defaults) == []
    second.touch()
    assert cri.sockets(None, defaults) == [second]
    assert cri.sockets(first, defaults) == []
    first.touch()
    assert cri.sockets(None, defaults) == [first, second]
    assert cri.sockets(second, defaults) == [second]


def test_the_pods_that_run_are_those_of_every_runtime(serve: Serve) -> None:
    docker, first, second = serve("docker.sock", served=False), serve("first.sock"), serve("second.sock")
    first.pods = {"a": True, "b": False}
    second.pods = {"c": True}
    servers = [docker.path, first.path, second.path]
    assert ready_pods(servers) == {"a", "c"}
    # One that does not answer may run any pod.
    second.failure = grpc.StatusCode.UNKNOWN, "not now"
    with pytest.raises(SourceError, match="ListPodSandbox: unknown"):
        ready_pods(servers)
    with pytest.raises(cri.NoRuntime):
        ready_pods([docker.path])
    with pytest.raises(cri.NoRuntime):
        ready_pods([])


def test_calls_that_follow_one_another_use_one_connection(serve: Serve) -> None:
    server = serve()
    with cri.connected([server.path]) as servers:
        cri.update_cpus(servers, C1, CPUS, PATIENCE)
        server.path.unlink()
        cri.update_cpus(servers, C1, CPUS, PATIENCE)
    assert server.updates == [("c1", "2-3")] * 2


def test_a_call_that_runs_at_the_end_is_not_cancelled(serve: Serve) -> None:
    server = serve()
    server.mute = True
    with ThreadPoolExecutor(1) as pool:
        with cri.connected([server.path]) as servers:
            call = pool.submit(cri.update_cpus, servers, C1, CPUS, PATIENCE)
            assert server.called.wait(PATIENCE)
        server.answer_all()
        call.result()
