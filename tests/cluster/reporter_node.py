"""A node of the tests' cluster with a reporter: its Node and pods in the API server, the status socket, the process.

The watcher's side of the socket is scripted, line by line as features.cluster.followers writes them, unless a test
brings a real watcher; everything else is real."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import yaml
from kube_given import entry, line, node_part
from lab import cache
from lab.errors import LabError
from need import lacking

from cluster.server import DEADLINE, ApiServer
from vmpin.install import data_files

#: The oldest and the newest of the package kubernetes; between them its generator changed.
CLIENTS = ("29.0.0", "37.0.2")
NODES, PINNINGS = "/api/v1/nodes", "/apis/vmpin.io/v1alpha1/nodepinnings"
DAEMON_SETS = "/apis/apps/v1/namespaces/vmpin/daemonsets"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
TAINT = "vmpin.io/starting"
#: What `vmpin reporter --help` lists; with `withdraw` what --withdraw takes besides.
RULES: list[dict[str, object]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["vmpin.io"], "resources": ["nodepinnings"], "verbs": ["create", "patch"]}]
WITHDRAW: list[dict[str, object]] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    {"apiGroups": ["vmpin.io"], "resources": ["nodepinnings"], "verbs": ["list", "delete"]}]


def until(holds: Callable[[], object], what: str = "it did not come to that") -> Any:
    """What it returns as soon as that is true."""
    end = time.monotonic() + DEADLINE
    while not (found := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def package(version: str, python: tuple[int, int] = sys.version_info[:2],
            interpreter: str = sys.executable) -> Iterator[Path]:
    """The directory of the package kubernetes with what it needs, from PyPI. :param python: the version of the
    interpreter, for which some parts are compiled. :raises LabError: without an index."""
    def make(path: Path, log: Path) -> None:
        with log.open("ab") as output:
            done = subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                                   "--target", path, f"kubernetes=={version}"], stdout=output, stderr=output,
                                  check=False)
        if done.returncode:
            raise LabError(f"needs a package index with kubernetes {version}: {log}")
    recipe = {"kubernetes": version, "python": python}
    own = "" if python == sys.version_info[:2] else f"-python{python[0]}.{python[1]}"
    with cache.entry(f"kubernetes-{version}{own}", recipe, make) as path:  # a kind each: of a kind few are kept
        yield path


@contextlib.contextmanager
def client(version: str) -> Iterator[Path]:
    """The same for a test."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(package(version))
        except LabError as err:
            lacking(str(err))
        yield found


def prepare(server: ApiServer) -> None:
    """Install the CRD, make the namespace, and give the service accounts their rights."""
    crd = yaml.safe_load(data_files.path("config/helm/vmpin/crds/nodepinnings.yaml").read_text())
    made = server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert made.code in (201, 409), made.body
    until(lambda: server.get(PINNINGS).code == 200)
    for namespace in ("vmpin", "default"):
        server.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    for name, rules in (("reporter", RULES), ("withdraw", [*RULES, *WITHDRAW])):
        server.create(f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        server.create(f"{_RBAC}/clusterrolebindings", {
            "metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                                                    "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "vmpin"}]})


class StatusPeer:
    """What a watcher answers to `follow`: everything at first, then each change. It takes pods' data, too."""

    def __init__(self, run: Path) -> None:
        self.path = run / "status" / "vmpin.sock"
        self.path.parent.mkdir(parents=True)
        self._lock = threading.Lock()
        self._clients: list[socket.socket] = []
        self._entries: dict[str, dict[str, Any]] = {}
        self._node = node_part()
        self.clock: Callable[[], float] = time.time
        self._made: socket.socket | None = None
        self.trouble = ""  #: Why the reporter does not reach the API server, as it sent it last.

    def start(self) -> None:
        self._made = made = socket.socket(socket.AF_UNIX)
        made.bind(str(self.path))
        made.listen()
        threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def stop(self) -> None:
        """As a watcher that ends."""
        with self._lock:
            if self._made is not None:
                self._made.shutdown(socket.SHUT_RDWR)
                self._made.close()
                self.path.unlink(missing_ok=True)
                self._made = None
            for each in self._clients:
                each.close()
            self._clients.clear()

    def _serve(self, made: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = made.accept()
                request = json.loads(connection.makefile().readline())
                if request["op"] == "pods":
                    with connection:
                        connection.sendall(b'{"pods":%d}\n' % len(request["pods"]))
                    continue
                if request["op"] == "reporter":
                    with connection:
                        connection.sendall(b'{"reporter":"taken"}\n')
                    self.trouble = request["trouble"]
                    continue
                assert request["op"] == "follow"
                with self._lock:
                    raw = line("all", *self._entries.values(), time=self.clock(), node=self._node)
                    connection.sendall(raw + b"\n")
                    self._clients.append(connection)

    def report(self, *entries: dict[str, Any], gone: tuple[str, ...] = (), **node: Any) -> None:
        """A change, whether or not a client is there."""
        with self._lock:
            self._entries = {key: each for key, each in self._entries.items() if key not in gone}
            self._entries |= {each["id"]: each for each in entries}
            self._node |= node
            raw = line("change", *entries, gone=gone, time=self.clock(), node=self._node) + b"\n"
            for each in self._clients:
                with contextlib.suppress(OSError):
                    each.sendall(raw)


class ReporterNode:
    """A node, and its reporter while it runs. :param client: the directory of the package kubernetes.
    :param first: a directory of modules that come before all others.
    :param run: of a real watcher; None for one whose side of the status socket is scripted, `peer`."""

    def __init__(self, server: ApiServer, name: str, client: Path, token: str, first: Path | None = None,
                 run: Path | None = None) -> None:
        self.server, self.name = server, name
        self._modules = os.pathsep.join(str(each) for each in (first, client) if each is not None)
        self.token = token
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._uids: dict[str, str] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.directory = Path(stack.enter_context(TemporaryDirectory(prefix="vmpin-reporter-", dir="/tmp")))
            self.ready = self.directory / "ready"
            if self._run is None:
                self.peer = StatusPeer(self.directory)
                self.peer.start()
                stack.callback(self.peer.stop)
            stack.callback(self.kill)
            made = self.server.create(NODES, {"metadata": {"name": self.name}, "spec": {"taints": [
                {"key": "other", "effect": "NoExecute"}, {"key": TAINT, "effect": "NoSchedule"}]}})
            assert made.code == 201, made.body
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # What the API server has.

    def pod(self, name: str, runtime_class: str | None = None, **metadata: object) -> str:
        """Make a pod of this node. :returns: its uid."""
        made = self.server.create("/api/v1/namespaces/default/pods", {
            "metadata": {"name": name, **metadata}, "spec": {
                "nodeName": self.name, "runtimeClassName": runtime_class,
                "containers": [{"name": "main", "image": "none"}]}})
        assert made.code == 201, made.body
        self._uids[name] = made.body["metadata"]["uid"]
        return self._uids[name]

    def delete_pod(self, name: str) -> None:
        """As the kubelet does it once the containers have ended."""
        reply = self.server.request("DELETE", f"/api/v1/namespaces/default/pods/{name}", {
            "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
        assert reply.code == 200, reply.body

    def entry(self, name: str, **changes: Any) -> dict[str, Any]:
        """Of a pod, as its watcher reports it."""
        return entry(name, **{"pod": {"namespace": "default", "name": name, "uid": self._uids[name]}, **changes})

    def condition(self, name: str) -> dict[str, Any] | None:
        status = self.server.get(f"/api/v1/namespaces/default/pods/{name}").body.get("status") or {}
        return next((each for each in status.get("conditions") or () if each["type"] == "vmpin.io/CPUsPinned"), None)

    def shows(self, name: str, reason: str) -> bool:
        found = self.condition(name)
        return found is not None and found["reason"] == reason

    def comes_to(self, name: str, reasons: set[str]) -> bool:
        """Whether a pod's condition has one of these reasons in time."""
        end = time.monotonic() + DEADLINE
        while (self.condition(name) or {}).get("reason") not in reasons:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def events(self, name: str) -> list[str]:
        """Reasons of the pod's Events, by time."""
        items = self.server.get("/api/v1/namespaces/default/events").body["items"]
        return [each["reason"] for each in sorted(items, key=lambda each: each["metadata"]["creationTimestamp"])
                if each["involvedObject"].get("uid") == self._uids[name]]

    def object(self) -> dict[str, Any]:
        return dict(self.server.get(f"{NODES}/{self.name}").body)

    def pinning(self) -> dict[str, Any] | None:
        found = self.server.get(f"{PINNINGS}/{self.name}")
        return dict(found.body) if found.code == 200 else None

    def written(self, name: str) -> dict[str, Any]:
        """What is there of a reporter's of this pod and of the node, by kind; None for nothing."""
        labels = self.object()["metadata"].get("labels") or {}
        return {"condition": (self.condition(name) or {}).get("reason"),
                "pinning": (self.pinning() or {"metadata": {"uid": None}})["metadata"]["uid"],
                "labels": {key: value for key, value in labels.items() if key.startswith("vmpin.io/")} or None}

    # The process.

    def kubeconfig(self) -> Path:
        """With a file for the token, as a service account's, which is another one from time to time."""
        path = self.directory / "kubeconfig"
        config = json.loads(self.server.kubeconfig().read_text())
        config["users"][0]["user"] = {"tokenFile": str(self.directory / "token")}
        path.write_text(json.dumps(config))
        self.set_token(self.token)
        return path

    def set_token(self, token: str) -> None:
        (self.directory / "token").write_text(token)

    def arguments(self, *arguments: str, **keys: str) -> tuple[list[str], dict[str, str]]:
        keys = {"node": self.name, "kubeconfig": str(self.kubeconfig()), "startup_taint": TAINT,
                "ready_file": str(self.ready), **keys}
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": self._modules, "HOME": str(self.directory),
                       "VMPIN_PATHS_RUN": str(self._run or self.directory), "VMPIN_LOG_LEVEL": "debug",
                       **{f"VMPIN_KUBERNETES_{key.upper()}": value for key, value in keys.items()}}
        return [sys.executable, "-m", "vmpin.cli.main", "reporter", *arguments], environment

    def run(self, *arguments: str, token: str = "", **keys: str) -> subprocess.CompletedProcess[str]:
        """Another process. :param token: "" for the reporter's."""
        if token:
            keys["kubeconfig"] = str(self.server.kubeconfig(token))
        argv, environment = self.arguments(*arguments, **keys)
        return subprocess.run(argv, env=environment, cwd=self.directory, capture_output=True, text=True,
                              timeout=DEADLINE, check=False)

    def start(self, **keys: str) -> None:
        argv, environment = self.arguments(**keys)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, env=environment, cwd=self.directory, stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log)

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def pauses(self, what: str) -> list[float]:
        """Seconds that it waited after each failure. :param what: a regular expression for the failure's log line."""
        return [float(each) for each in re.findall(rf"{what}.*tried again after ([0-9.]+) s$", self.log(),
                                                   re.MULTILINE)]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self) -> int:
        """By SIGTERM. :returns: its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(DEADLINE)

    def ended(self) -> int | None:
        """Its exit code if it has ended."""
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
