"""NRI plugins as processes: vmpin's watcher, and other programs in an enclosure with directories of their own.

balloons, topology-aware and dra-driver-cpu are binaries that the user built, of versions whose options are those here
(nri-plugins of 2026, dra-driver-cpu of 2026)."""

from __future__ import annotations

import contextlib
import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_node import Node, cpus
from measure import CannotMeasure, environment

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "integration")]

from enclosure import Enclosure

from peers.figures import VMPIN

FOLLOWING = "vmpin, following"
#: The options by which a user names the binaries, and the peers' names in the figures.
BINARIES = ("balloons", "topology-aware", "dra-driver-cpu")
_PATIENCE = 120.0
#: A balloon of one CPU; all else shares the reserved CPU, and what is idle.
_BALLOONS = """apiVersion: config.nri/v1alpha1
kind: BalloonsPolicy
metadata: {{name: default}}
spec:
  reservedResources: {{cpu: "cpuset:{pool}"}}
  availableResources: {{cpu: "cpuset:{all}"}}
  pinCPU: true
  pinMemory: false
  balloonTypes:
  - {{name: own, minCPUs: 1, maxCPUs: 1, preferNewBalloons: true}}
  - {{name: reserved, namespaces: ["*"], shareIdleCPUsInSame: system}}
"""
_TOPOLOGY_AWARE = """apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {{name: default}}
spec:
  reservedResources: {{cpu: "cpuset:{pool}"}}
  availableResources: {{cpu: "cpuset:{all}"}}
  pinCPU: true
  pinMemory: false
"""


@dataclass
class Site:
    """Where plugins run: directories below `top`; `node` is vmpin's, `binaries` are the peers' by name.

    :ivar cri: the runtime's socket, if it is a real one.
    """

    node: Node
    top: Path
    enclosure: Enclosure
    binaries: Mapping[str, Path]
    cri: Path | None = None
    #: Put before vmpin's command line: into the enclosure, where its containers are there.
    wrap: Sequence[str] = ()

    def log(self, name: str) -> Path:
        return self.top / f"{name.replace(', ', '-')}.log"

    def tail(self, name: str) -> str:
        return self.log(name).read_text("utf-8", "replace")[-500:]


#: A pod's annotations for a CPU of its own, where that can be had on two CPUs without claims.
OWN: Mapping[str, Mapping[str, str]] = {
    VMPIN: {"cpu-policy.vmpin.io": "exclusive"},
    "balloons": {"balloon.balloons.resource-policy.nri.io": "own"},
    "none": {}}
#: Why the others have none.
WITHOUT_OWN: Mapping[str, str] = {
    "topology-aware": "of two CPUs it gives the unreserved one to all", "dra-driver-cpu": "it needs claims"}


def left_out(binaries: Mapping[str, Path], peers: Sequence[str]) -> list[str]:
    """A sentence for each of the peers that does not take part, or not in all."""
    return [*(f"{name}, whose binary is not given (--{name} PATH)" for name in peers if name not in binaries),
            *(f"{name} for containers with a CPU of their own: {WITHOUT_OWN[name]}" for name in peers
              if name in binaries and name in WITHOUT_OWN)]


def names(binaries: Mapping[str, Path]) -> list[str]:
    return [VMPIN, FOLLOWING, *binaries]


@contextlib.contextmanager
def started(site: Site, name: str, socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The plugin's process, which connects to the socket; it is ended at the end."""
    with contextlib.ExitStack() as stack, site.log(name).open("ab") as log:
        if name in (VMPIN, FOLLOWING):
            with site.enclosure.inside() if site.wrap else contextlib.nullcontext():
                process = subprocess.Popen([*site.wrap, *_vmpin(site, name, socket)], env=environment(),
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        else:
            argv = {"balloons": _resource_policy, "topology-aware": _resource_policy,
                    "dra-driver-cpu": _dra}[name](site, name, socket, stack)
            process = site.enclosure.popen(argv, env=environment(NODE_NAME="bench", HOME=site.top), stdout=log,
                                           stderr=log, cwd="/")
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _vmpin(site: Site, name: str, socket: Path) -> list[str]:
    run = site.node.path / name.replace(", ", "-")
    flags: dict[str, object] = {"paths.run": run, "paths.nri": socket, "watch.nri": "on"}
    if site.wrap:
        flags["watch.only"] = "*"  # all that the enclosure has are the benchmark's
    if name == VMPIN:
        flags |= {"allocate.mode": "on", "allocate.reserved": cpus()[0]}
        # Without a runtime's CRI the pool cannot grow back but by a new list, for which the plugin connects again.
        flags |= {"allocate.grow_delay_seconds": 3600} if site.cri is None else {"paths.cri": site.cri}
    return site.node.command_line("watch", *[f"--set={key}={value}" for key, value in flags.items()])


def _resource_policy(site: Site, name: str, socket: Path, _: contextlib.ExitStack) -> list[str]:
    """A plugin of nri-plugins. It makes mounts below its state directory, which have to propagate."""
    state = site.top / f"{name}-state"
    if not state.exists():
        state.mkdir()
        _in(site, "mount", "--bind", str(state), str(state))
        _in(site, "mount", "--make-rshared", str(state))
    pool, other = cpus()
    config = site.top / f"{name}.yaml"
    text = _BALLOONS if name == "balloons" else _TOPOLOGY_AWARE
    config.write_text(text.format(pool=pool, all=f"{pool},{other}"))
    return [str(site.binaries[name]), "-config-file", str(config), "-nri-socket", str(socket), "-state-dir",
            str(state), "-pid-file", str(site.top / f"{name}.pid"), "-nri-plugin-name", name]


def _dra(site: Site, name: str, socket: Path, stack: contextlib.ExitStack) -> list[str]:
    """The driver wants a kubelet that registers it, an API server, and its NRI socket at a fixed place."""
    kubelet = site.top / "kubelet"
    for directory in ("plugins_registry", "plugins"):
        (kubelet / directory).mkdir(parents=True, exist_ok=True)
    _in(site, "mkdir", "-p", "/run/nri")
    _in(site, "ln", "-sfn", str(socket), "/run/nri/nri.sock")
    address = stack.enter_context(_api_server())
    kubeconfig = site.top / "kubeconfig"
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench", "clusters": [
            {"name": "bench", "cluster": {"server": address}}], "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}]}))
    threading.Thread(target=_register, args=(kubelet / "plugins_registry",), daemon=True).start()
    return [str(site.binaries[name]), "--kubeconfig", str(kubeconfig), "--kubelet-root-dir", str(kubelet),
            "--hostname-override", "bench", "--reserved-cpus", str(cpus()[0]), "--bind-address", "127.0.0.1:0"]


def _in(site: Site, *argv: str) -> None:
    process = site.enclosure.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, error = process.communicate()
    if process.returncode:
        raise CannotMeasure(f"{' '.join(argv)}: {error.decode()}")


@contextlib.contextmanager
def _api_server() -> Iterator[str]:
    """An API server that has nothing and takes nothing: what the driver publishes is not measured."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def _answer(self) -> None:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(status).encode()
            with contextlib.suppress(ConnectionError):  # of a driver that has ended
                self.send_response(404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _register(registry: Path) -> None:
    """As a kubelet does at a plugin's registration socket (pluginregistration.v1): report that it is registered."""
    import grpc

    deadline = time.monotonic() + _PATIENCE
    while not (sockets := list(registry.glob("*.sock"))):
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
    with grpc.insecure_channel(f"unix:{sockets[0]}", options=[("grpc.default_authority", "localhost")]) as channel:
        for method, raw in (("GetInfo", b""), ("NotifyRegistrationStatus", b"\x08\x01")):  # plugin_registered = true
            call: Any = channel.unary_unary(f"/pluginregistration.Registration/{method}")
            call(raw, timeout=_PATIENCE, wait_for_ready=True)
