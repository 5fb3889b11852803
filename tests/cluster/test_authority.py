"""An API server whose authority lacks the extensions that Python 3.13 asks for: vmpin's client takes it as kubectl
does, and still verifies. Python 3.12 and 3.13 are tried where the machine has them; everywhere the flag of 3.13 is
set in this Python."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cluster.authority import write_authority
from cluster.build import Programs
from cluster.reporter_node import CLIENTS, ReporterNode, client, prepare, until
from cluster.reporter_node import package as package_of
from cluster.server import DEADLINE, ApiServer

pytestmark = pytest.mark.cluster

#: As sitecustomize.py: each context begins as one of Python 3.13's.
_STRICT = """\
import ssl
_new = ssl.SSLContext.__new__
def _strict(cls, *arguments, **more):
    context = _new(cls, *arguments, **more)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context
ssl.SSLContext.__new__ = _strict
"""
_ASK = """\
import sys
from pathlib import Path
from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.reporter.api_server import ApiServer
try:
    print(ApiServer(Path(sys.argv[1])).get("/api/v1/nodes")["kind"])
except ClusterError as err:
    print(err)
"""


@pytest.fixture(scope="module", params=CLIENTS)
def package(request: pytest.FixtureRequest) -> Iterator[Path]:
    with client(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def plain(built: Programs) -> Iterator[ApiServer]:
    with ApiServer(built, authority=write_authority) as started:
        prepare(started)
        yield started


@pytest.fixture
def strict(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(_STRICT)
    return tmp_path


def ask(kubeconfig: Path, package: Path, *first: Path, python: str = sys.executable) -> str:
    modules = os.pathsep.join(map(str, [*first, package, Path(__file__).parents[2]]))
    done = subprocess.run([python, "-c", _ASK, kubeconfig], capture_output=True, text=True, timeout=DEADLINE,
                          env={"PATH": os.environ["PATH"], "PYTHONPATH": modules}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_python_refuses_this_authority_by_that_flag(plain: ApiServer) -> None:
    context = ssl.create_default_context(cafile=plain.ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with pytest.raises(ssl.SSLCertVerificationError, match="Key"), \
            context.wrap_socket(socket.create_connection(("127.0.0.1", plain.port)), server_hostname="127.0.0.1"):
        pass


def test_kubectl_and_vmpin_take_this_authority(plain: ApiServer, package: Path, strict: Path) -> None:
    assert plain.kubectl("get", "nodes").returncode == 0
    assert ask(plain.kubeconfig(), package, strict) == "NodeList"
    # Of all nodes: kubectl vmpin is the same program.
    done = subprocess.run([sys.executable, "-m", "vmpin.cli.main", "status", "--all-nodes"], capture_output=True,
                          env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{strict}{os.pathsep}{package}",
                               "KUBECONFIG": str(plain.kubeconfig())}, timeout=DEADLINE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_reporter_writes_under_this_authority(plain: ApiServer, package: Path, strict: Path) -> None:
    name = f"strict-{package.name.rpartition('-')[2]}"
    token = plain.service_account("vmpin", "reporter", node=name)
    with ReporterNode(plain, name, package, token, first=strict) as node:
        node.pod(name)
        node.peer.report(node.entry(name))
        node.start()
        until(partial(node.shows, name, "Pinned"), node.log())
        assert node.end() == 0


def test_another_authority_and_another_name_are_refused(built: Programs, plain: ApiServer, package: Path,
                                                        tmp_path: Path) -> None:
    kept = plain.kubeconfig()
    other = tmp_path / "other"
    other.mkdir()
    write_authority(other)
    wrong = tmp_path / "wrong"
    wrong.write_text(kept.read_text().replace(str(plain.ca), str(other / "tls.crt")))
    assert "certificate verify failed" in ask(wrong, package)
    wrong.write_text(kept.read_text().replace("https://127.0.0.1", "https://localhost"))
    assert "localhost" in ask(wrong, package)


@pytest.mark.parametrize("minor", [12, 13])
def test_newer_pythons_take_this_authority(plain: ApiServer, minor: int) -> None:
    command = shutil.which(f"python3.{minor}")
    where = "import pip, sys; print(sys.executable)"  # a command may only lead to it
    python = "" if command is None else subprocess.run([command, "-c", where], capture_output=True, text=True,
                                                       check=False).stdout.strip()
    if not python:
        pytest.skip(f"needs Python 3.{minor} with pip")
    for version in CLIENTS:
        with package_of(version, (3, minor), python) as package:
            assert ask(plain.kubeconfig(), package, python=python) == "NodeList"
