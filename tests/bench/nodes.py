"""Every node of a large cluster at one glance: `vmpin status|verify --all-nodes`, from a real API server.

The nodes are simulated: their objects are those that reporters write, of 128 CPUs and 50 sandboxes each. Beside it a
process that reads the same list with the same package."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench_node import Node
from measure import CannotMeasure, Figure, environment, in_turn, median, process_ms, progress
from reporting import api_server

sys.path += [str(Path(__file__).parents[1] / name) for name in (".", "unit", "features/cluster")]

from cluster.reporter_node import CLIENTS, DAEMON_SETS, NODES, package
from cluster.server import ApiServer
from kube_given import NODE, entry, reported
from lab.errors import LabError

from vmpin.features.cluster.fleet.fleet_reading import PAGES
from vmpin.features.cluster.kube.node_pinning import node_pinning, pinning_update

#: What is timed, and all forms whose memory is counted.
TIMED = ("status", "verify")
COMMANDS = {**{name: [name] for name in TIMED}, "wide": ["status", "-o", "wide"], "json": ["status", "-o", "json"]}
SANDBOXES, CPUS, LABEL = 50, 128, "katacontainers.io/kata-runtime"
FLOOR = str(Path(__file__).with_name("nodes_floor.py"))
_VMPIN = "import sys; from vmpin.cli.__main__ import main; main(sys.argv[1:])"
_FLOOR = f"import runpy, sys; sys.argv[0] = {FLOOR!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
#: Ends with the most memory that the process had (proc(5), VmHWM); getrusage's would be its parent's, too.
_HIGH = "; sys.stdout.flush(); print(open('/proc/self/status').read(), file=sys.stderr)"


@contextlib.contextmanager
def cluster(count: int) -> Iterator[ApiServer]:
    """:raises CannotMeasure: without the cluster's programs."""
    with contextlib.ExitStack() as stack:
        server = api_server(stack)
        labels = {"app.kubernetes.io/name": "vmpin", "app.kubernetes.io/component": "reporter"}
        _made(server, DAEMON_SETS, {"metadata": {"name": "vmpin-reporter", "labels": labels}, "spec": {
            "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
                "nodeSelector": {LABEL: "true"}, "containers": [{"name": "reporter", "image": "vmpin"}]}}}})
        progress(f"filling {count} nodes with {SANDBOXES} sandboxes each")
        for number in range(count):
            _node(server, number)
        yield server


def _node(server: ApiServer, number: int) -> None:
    """As large as nodes are: most of a Node is the list of its images, some 10 kB."""
    name, labels = f"node-{number}", {LABEL: "true", "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    _made(server, NODES, {"metadata": {"name": name, "labels": labels}})
    images = [{"names": [f"registry.example.org/shop/server-{each}@sha256:{each:064}"], "sizeBytes": 10_000_000}
              for each in range(50)]
    server.request("PATCH", f"{NODES}/{name}/status", {"status": {"images": images}},
                   kind="application/merge-patch+json")
    found = reported(*(_sandbox(number, each) for each in range(SANDBOXES)), online=f"0-{CPUS - 1}",
                     exclusive=f"4-{3 + 2 * SANDBOXES}", shared_pool="0-3", topology=_topology())
    request = pinning_update(node_pinning(NODE._replace(name=name, labels=labels), found, True), time.time())
    made = server.request(request.method, request.path, request.body, kind=request.content_type,
                          query=dict(request.query))
    if made.code not in (200, 201):
        raise CannotMeasure(f"{name}: {made.body}")


def _sandbox(node: int, number: int) -> dict[str, Any]:
    """One in 25 is degraded."""
    own, identifier = f"{4 + 2 * number}-{5 + 2 * number}", f"{node * 1000 + number:064x}"
    bad = {"verdict": "degraded", "reasons": ["1 vCPU for 2 exclusive CPUs"]} if number % 25 == 0 else {}
    return entry(f"server-7d4b9c6f8-{number:05}", id=identifier, mask=f"0-3,{own}",
                 vcpus={"0": "0-3", "1": str(4 + 2 * number), "2": str(5 + 2 * number)}, containers=[
                     {"name": "server", "cpus": own, "exclusive": True, "vcpus": "1-2", "guest": "applied"},
                     {"name": "logs", "cpus": "0-3", "exclusive": False, "vcpus": "0", "guest": "applied"}], **bad)


def _topology() -> dict[str, Any]:
    half = CPUS // 2
    return {"cores": half, "threads_per_core": 2, "caches": [f"{cpu}-{cpu + 7}" for cpu in range(0, CPUS, 8)],
            "nodes": {"0": f"0-{half - 1}", "1": f"{half}-{CPUS - 1}"}, "isolated": ""}


def _made(server: ApiServer, path: str, content: dict[str, Any]) -> None:
    if (made := server.create(path, content)).code != 201:
        raise CannotMeasure(f"{path}: {made.body}")


def all_nodes(made: Node, count: int, rounds: int) -> list[Figure]:
    """The slowest of the three verbs beside the floor, in seconds; and the most memory that any form of them takes.
    With both generations of the package kubernetes: the larger counts."""
    with contextlib.ExitStack() as stack:
        try:
            packages = {version: stack.enter_context(package(version)) for version in CLIENTS}
        except LabError as err:
            raise CannotMeasure(str(err)) from err
        kubeconfig = stack.enter_context(cluster(count)).kubeconfig()
        bare = [str(kubeconfig), str(PAGES[0])]
        times: dict[str, dict[str, float]] = {}
        peaks: dict[str, dict[str, float]] = {}
        for version, modules in packages.items():
            env = environment(PYTHONPATH=modules, HOME=made.path, KUBECONFIG=kubeconfig)
            times[version] = _times(made, bare, env, rounds)
            peaks[version] = {name: _peak(_VMPIN, [*words, "--all-nodes"], env, count)
                              for name, words in COMMANDS.items()} | {"floor": _peak(_FLOOR, bare, env, count)}
    more = {"nodes": count, "sandboxes": SANDBOXES}
    spent, memory = _largest(times), _largest(peaks)
    return [Figure("all_nodes_200", spent[0], "s", spent[1], 2, "value",
                   {**more, "rounds": rounds, "by_client": times}),
            Figure("all_nodes_rss", memory[0], "MiB", memory[1], 150, "value", {**more, "by_client": peaks})]


def _times(made: Node, bare: list[str], env: dict[str, str], rounds: int) -> dict[str, float]:
    """Seconds by verb, and of the floor."""
    found, floors = {}, []
    for name in TIMED:
        argv = made.command_line(name, "--all-nodes")
        spent, least = in_turn(rounds, partial(process_ms, argv, env),
                               partial(process_ms, [sys.executable, FLOOR, *bare], env))
        found[name] = round(median(spent) / 1000, 3)
        floors += least
    return {**found, "floor": round(median(floors) / 1000, 3)}


def _largest(found: dict[str, dict[str, float]]) -> tuple[float, float]:
    """The largest value, and the floor beside it."""
    return max((max(value for name, value in each.items() if name != "floor"), each["floor"])
               for each in found.values())


def _peak(code: str, arguments: list[str], env: dict[str, str], count: int) -> float:
    """The most memory of a process, in MiB. :raises CannotMeasure: where it does not show every node."""
    done = subprocess.run([sys.executable, "-c", code + _HIGH, *arguments], env=env, capture_output=True, text=True,
                          check=False)
    found = re.search(r"^VmHWM:\s+(\d+) kB$", done.stderr, re.MULTILINE)
    if found is None or (str(count) not in done.stdout and f"node-{count - 1}" not in done.stdout):
        raise CannotMeasure(f"{' '.join(arguments)}: {done.stdout[-300:]}{done.stderr[-500:]}")
    return round(int(found[1]) / 1024, 2)
