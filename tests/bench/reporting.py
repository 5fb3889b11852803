"""The reporter beside a real watcher and a real API server: what it takes on a full node, and how soon a pod's
condition shows that its mask was changed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_node import Bundle, Node, Watcher, cpu_seconds, cpus, resident_mib, write_kata
from measure import CannotMeasure, Figure, environment, median, process_ms, progress
from processes import hook_command
from vms import Machine, stand_ins

sys.path += [str(Path(__file__).parents[1] / name) for name in (".", "unit", "features/cluster")]

from cluster.build import programs
from cluster.reporter_node import CLIENTS, PINNINGS, package, prepare
from cluster.server import MERGE, ApiServer, Watch
from lab.errors import LabError

from vmpin.cpuset import CpuSet

NODE = "bench-node"
PODS = "/api/v1/namespaces/default/pods"
CONDITION = "vmpin.io/CPUsPinned"
#: Seconds until something that has to come has failed.
PATIENCE = 300.0


@dataclass
class Full:
    """A node whose pods run in stand-ins, at an API server. `names` are the pods', in the machines' order."""

    made: Node
    server: ApiServer
    machines: Sequence[Machine]
    names: list[str]
    bundle: Bundle

    def shown(self) -> int:
        """Pods whose condition is there."""
        items = self.server.get(PODS, fieldSelector=f"spec.nodeName={NODE}").body["items"]
        return sum(any(each["type"] == CONDITION for each in item["status"].get("conditions") or ()) for item in items)


def api_server(stack: contextlib.ExitStack) -> ApiServer:
    """With what the chart makes. :raises CannotMeasure: without the cluster's programs."""
    try:
        server = stack.enter_context(ApiServer(stack.enter_context(programs())))
    except LabError as err:
        raise CannotMeasure(f"needs the API server of tests/cluster: {err}") from err
    prepare(server)
    return server


@contextlib.contextmanager
def full(made: Node, build: Path, count: int) -> Iterator[Full]:
    """:raises CannotMeasure: without the cluster's programs."""
    made.forget()
    made.forget_kata()
    with contextlib.ExitStack() as stack:
        server = api_server(stack)
        server.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        machines = stack.enter_context(stand_ins(count, build))
        names = [f"server-{number}" for number in range(count)]
        uids = [_pod(server, name) for name in names]
        by_sandbox = dict(zip((machine.sandbox for machine in machines), uids, strict=True))
        write_kata(made, machines[1:], by_sandbox)
        stack.callback(made.forget_kata)
        bundle = Bundle(made, machines[0], uids[0])
        stack.enter_context(Watcher(made))
        found = Full(made, server, machines, names, bundle)
        update(found, str(cpus()[0]))
        yield found


def _pod(server: ApiServer, name: str) -> str:
    """A pod as large as most are, 8 kB. :returns: its uid."""
    variables = [{"name": f"VARIABLE_{number}", "value": "some value of a variable " * 2} for number in range(40)]
    volumes = [{"name": f"volume-{number}", "configMap": {"name": f"config-of-something-{number}"}}
               for number in range(12)]
    mounts = [{"name": each["name"], "mountPath": f"/var/lib/{each['name']}"} for each in volumes]
    made = server.create(PODS, {"metadata": {"name": name, "labels": {"app": name}}, "spec": {
        "nodeName": NODE, "volumes": volumes, "containers": [
            {"name": "server", "image": "registry.example.org/shop/server:1.18.2", "env": variables,
             "volumeMounts": mounts}]}})
    if made.code != 201:
        raise CannotMeasure(f"pod {name}: {made.body}")
    return str(made.body["metadata"]["uid"])


def update(node: Full, cpu_list: str) -> None:
    """The first sandbox's container has other CPUs, as the hook reports it."""
    node.bundle.write(cpu_list)
    process_ms(hook_command(node.made), environment(), node.bundle.state())


@contextlib.contextmanager
def reporter(node: Full, modules: Path) -> Iterator[int]:
    """Its process, once it has written all. :returns: its pid."""
    token = node.server.service_account("vmpin", "reporter", node=NODE)
    env = environment(PYTHONPATH=modules, HOME=node.made.path, VMPIN_KUBERNETES_NODE=NODE,
                      VMPIN_KUBERNETES_KUBECONFIG=node.server.kubeconfig(token))
    log = node.made.path / "reporter.log"
    with log.open("wb") as out:
        process = subprocess.Popen(node.made.command_line("reporter"), env=env, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=out)
    try:
        _until(lambda: node.shown() == len(node.names) and node.server.get(f"{PINNINGS}/{NODE}").code == 200,
               lambda: f"{node.shown()} of {len(node.names)} conditions: {log.read_text()[-500:]}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def floor(node: Full, modules: Path) -> Iterator[int]:
    argv = [sys.executable, str(Path(__file__).with_name("reporter_floor.py")), str(node.server.kubeconfig()), NODE]
    process = subprocess.Popen(argv, env=environment(PYTHONPATH=modules, HOME=node.made.path), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline() != b"%d\n" % len(node.names):
                raise CannotMeasure("the floor did not list the pods")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def reporting(made: Node, build: Path, count: int, seconds: float, rounds: int) -> list[Figure]:
    """Memory and CPU at rest, of both generations of the package kubernetes: the larger counts. And how long it takes
    from a changed mask to the condition, with the newest."""
    found: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        try:
            packages = {version: stack.enter_context(package(version)) for version in CLIENTS}
        except LabError as err:
            raise CannotMeasure(str(err)) from err
        node = stack.enter_context(full(made, build, count))
        for version, modules in packages.items():
            with reporter(node, modules) as pid, floor(node, modules) as bare:
                _churn(node)
                found[version] = _at_rest(node, pid, bare, seconds)
                if version == CLIENTS[-1]:
                    times, floors = _changes(node, rounds)
    more = {"pods": count, "seconds": seconds, "by_client": found}
    rss = max(found.values(), key=lambda each: each["rss"])
    cpu = max(found.values(), key=lambda each: each["cpu"])
    return [Figure("report_rss", rss["rss"], "MiB", rss["rss_floor"], 100, "value", more),
            Figure("report_idle_cpu", cpu["cpu"], "% of a CPU", cpu["cpu_floor"], 0.1, "value", more),
            Figure("change_to_condition", median(times), "ms", median(floors), 1000, "value",
                   {"pods": count, "rounds": rounds, "slowest": round(max(times), 1)})]


def _churn(node: Full) -> None:
    """Each pod changes in what is not the reporter's, and is listed and watched with it."""
    for phase in "Pending", "Running":
        for name in node.names:
            node.server.request("PATCH", f"{PODS}/{name}/status", {"status": {"phase": phase}}, kind=MERGE)


def _at_rest(node: Full, pid: int, bare: int, seconds: float) -> dict[str, float]:
    """MiB, and % of a CPU; and how many requests came meanwhile, which the two did not begin with."""
    # By then the Events are written, one in two seconds after the first hundred, and NodePinning once more.
    _until_calm(node, 12.0 if seconds >= 10 else 0.0)
    progress(f"reporter at rest for {seconds:g} s")
    pids = (pid, bare)
    begin, served = time.monotonic(), len(node.server.served())
    before = [cpu_seconds(each) for each in pids]
    time.sleep(seconds)
    spent = time.monotonic() - begin
    used, least = (100 * (cpu_seconds(each) - was) / spent for each, was in zip(pids, before, strict=True))
    return {"rss": round(resident_mib(pid), 2), "peak": round(resident_mib(pid, "VmHWM"), 2),
            "rss_floor": round(resident_mib(bare), 2), "cpu": round(used, 4), "cpu_floor": round(least, 4),
            "requests": len(node.server.served()) - served}


def _until_calm(node: Full, seconds: float) -> None:
    """Until for so long no request came."""
    end = time.monotonic() + PATIENCE
    count, since = -1, time.monotonic()
    while time.monotonic() - since < seconds or count < 0:
        if (now := len(node.server.served())) != count:
            count, since = now, time.monotonic()
        if time.monotonic() > end:
            raise CannotMeasure("the reporter does not come to rest")
        time.sleep(0.25)


def _changes(node: Full, rounds: int) -> tuple[list[float], list[float]]:
    """From the first thread's new mask to the event of a watch that shows it in the condition; and beside it from
    sending another condition to its event. In ms."""
    pool, other = cpus()
    tid, path = node.machines[0].pid, f"{PODS}/{node.names[0]}"
    times, floors = [], []
    version = node.server.get(path).body["metadata"]["resourceVersion"]
    with node.server.watch(PODS, fieldSelector=f"metadata.name={node.names[0]}", resourceVersion=version) as watch:
        for number in range(rounds):
            wanted = CpuSet({other} if number % 2 == 0 else {pool, other})
            changed: list[float] = []
            polling = threading.Thread(target=_poll, args=(tid, wanted, changed))
            polling.start()
            update(node, str(wanted))
            polling.join()
            if not changed:
                raise CannotMeasure(f"the mask did not become {wanted}")
            times.append((_shown(watch, CONDITION, rf"CPUs {wanted}(;|$)") - changed[0]) * 1000)
            began = time.perf_counter()
            node.server.apply(f"{path}/status", {"apiVersion": "v1", "kind": "Pod", "status": {"conditions": [
                {"type": "Bench", "status": "True", "message": f"{number}."}]}}, manager="bench")
            floors.append((_shown(watch, "Bench", rf"^{number}\.") - began) * 1000)
            time.sleep(0.5)  # more changes at once would be written at a pace
    return times, floors


def _shown(watch: Watch, condition: str, message: str) -> float:
    """When the event came that has such a condition."""
    while (event := watch.next()) is not None:
        for each in event["object"].get("status", {}).get("conditions") or ():
            if each["type"] == condition and re.search(message, each["message"]):
                return time.perf_counter()
    raise CannotMeasure("the watch ended")


def _poll(tid: int, wanted: CpuSet, changed: list[float]) -> None:
    end = time.monotonic() + PATIENCE
    while not changed and time.monotonic() < end:
        if os.sched_getaffinity(tid) == set(wanted):
            changed.append(time.perf_counter())
        time.sleep(0.0005)


def _until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise CannotMeasure(what())
        time.sleep(0.25)
