"""The peers of a unix socket, by the kernel's list: of this socket, not of one with its name."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from vmpin.features.common.socket_peers import peers, sockets_of
from vmpin.host.listening import answers
from vmpin.host.procfs import Procfs


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


def client_of(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


def inode(end: socket.socket) -> int:
    return os.fstat(end.fileno()).st_ino


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose paths fit into an address."""
    return tmp_path_factory.mktemp("s")


def test_the_peers_of_a_socket_are_those_that_are_connected_to_this_file(short: Path) -> None:
    path, other = short / "a/nri.sock", short / "b/nri.sock"
    with listening(path) as server, listening(other) as elsewhere, client_of(path) as client, client_of(
            other) as stranger, server.accept()[0], elsewhere.accept()[0]:
        assert peers([path, short / "missing"]) == {inode(client): path}
        assert peers([path, other]) == {inode(client): path, inode(stranger): other}
        assert inode(client) in set(sockets_of(Procfs(), os.getpid()))
        client.close()
        assert peers([path]) == {}


def test_more_peers_than_one_message_has_are_read(short: Path) -> None:
    path = short / "many.sock"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(listening(path))
        clients = []
        for _ in range(400):
            clients.append(stack.enter_context(client_of(path)))
            stack.enter_context(server.accept()[0])
        assert peers([path]).keys() == set(map(inode, clients))


def test_a_socket_answers_while_its_process_listens_however_long_its_path(short: Path) -> None:
    path = short / "x.sock"
    long = short / ("y" * 120)
    long.symlink_to(path)
    assert not answers(path)
    with listening(path):
        assert (answers(path), answers(long)) == (True, True)
    assert path.exists()
    assert not answers(path)
    (short / "file").touch()
    assert not answers(short / "file")


def test_a_process_without_readable_descriptors_has_no_sockets(tmp_path: Path) -> None:
    assert list(sockets_of(Procfs(tmp_path), 1)) == []


def test_of_very_many_descriptors_the_first_are_read(tmp_path: Path) -> None:
    """A process of any container may have the name of an allocator."""
    (tmp_path / "7/fd").mkdir(parents=True)
    for number in range(5000):
        (tmp_path / f"7/fd/{number}").symlink_to(f"socket:[{number}]")
    assert len(list(sockets_of(Procfs(tmp_path), 7))) == 4096
