"""What is exported: read back from the kernel here and now, over a real reconciler and threads of this process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from metered import WEB, Node, metered

from vmpin.config import loading as settings
from vmpin.domain.counters import Histogram
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.guest_report import ContainerReport, GuestReport
from vmpin.domain.model import Pod, SandboxId, ThreadRole
from vmpin.domain.sandbox_placement import Verdict
from vmpin.errors import ConfigError
from vmpin.features.metrics import exporter
from vmpin.features.metrics.exporter import Exporter, HttpReply, HttpTimes
from vmpin.features.metrics.prometheus import Headcount
from vmpin.pinning.apply import Outcome
from vmpin.placement.ownership import CpuClaims, ownership
from vmpin.reconcile.view import NodeView
from vmpin.status.health import SourceHealth

#: A pod's name that is no Unicode, and quotes: it comes from the caller of the hook.
ODD = 'po"d\n\udcff'


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    with metered(tmp_path, **getattr(request, "param", {})) as made:
        yield made


per_sandbox = pytest.mark.parametrize("node", [{"metrics_per_sandbox": "true"}], indirect=True)


def test_threads_are_counted_by_what_the_kernel_says_of_them(node: Node) -> None:
    counted = {key: number for key, number in node.values("vmpin_threads").items() if number}
    assert counted == {("placed", "vcpu"): 1, ("elsewhere", "vcpu"): 1, ("placed", "emulator"): 1,
                       ("trimmed", "emulator"): 1, ("unasked", "iothread"): 1}
    assert node.values("vmpin_sandboxes") == {
        ("pinned",): 0, ("floating",): 0, ("waiting",): 0, ("degraded",): 1, ("unmanaged",): 0, ("off",): 0}
    astray = next(thread for thread in node.node_state.inventory.vms[node.id].threads() if thread.vcpu == 1)
    os.sched_setaffinity(astray.id.tid, node.first)
    trimmed = next(thread for thread in node.node_state.inventory.vms[node.id].threads()
                   if thread.role is ThreadRole.EMULATOR)
    os.sched_setaffinity(trimmed.id.tid, node.first | node.second)
    assert node.values("vmpin_threads")["elsewhere", "vcpu"] == 0
    assert node.values("vmpin_sandboxes")["pinned",] == 1


def test_how_late_the_loop_is_is_measured() -> None:
    """By a loop whose clock stands still but for what its tasks say that they took."""
    now = 100.0
    found = Histogram()

    async def scenario() -> None:
        nonlocal now
        loop = asyncio.get_running_loop()
        loop.time = lambda: now  # type: ignore[method-assign]
        measuring = asyncio.create_task(exporter.measure_lag(found, 10.0))
        for total, late in enumerate((0.0, 3.0, 0.03)):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            now += 10.0 + late  # something holds the loop up
            while found.total == total:  # noqa: ASYNC110
                await asyncio.sleep(0)
        measuring.cancel()

    asyncio.run(scenario())
    assert found.total == 3
    assert found.sum == pytest.approx(3.03)


def test_a_mask_smaller_than_what_the_cgroup_has_was_narrowed_by_another_hand(node: Node) -> None:
    assert node.values("vmpin_threads")["trimmed", "emulator"] == 1
    node.cgroup(node.small, node.first | node.second)
    assert node.values("vmpin_threads")["trimmed", "emulator"] == 0
    assert node.values("vmpin_threads")["elsewhere", "emulator"] == 1  # of which the alert VmpinThreadsElsewhere is


def test_a_thread_on_the_cpus_of_another_container_is_a_collision(node: Node) -> None:
    assert node.values("vmpin_collisions") == {(): 0}
    other = SandboxId("other")
    node.node_state.placement_cache.own = ownership({other: CpuClaims(((WEB, node.second),), ())},
                                                    node.view.node)
    assert node.values("vmpin_collisions") == {(): 1}
    assert node.values("vmpin_cpus")["exclusive",] == 1


@per_sandbox
def test_each_sandbox_of_a_collision_is_named_when_asked_for(node: Node) -> None:
    """With a VM or without; what has no state of its own, as a pod that only the kubelet reports, has no series."""
    node.pod("shop")
    assert node.values("vmpin_sandbox_collisions") == {}
    runc, unseen = SandboxId("runc"), SandboxId("uid-1")
    states = node.node_state.state.sandboxes
    node.node_state.state = DesiredState({**states, runc: SandboxState(runc, pod=Pod("tests", "db"))})
    node.node_state.placement_cache.own = ownership(
        {each: CpuClaims(((WEB, node.second),), ()) for each in (runc, unseen)}, node.view.node)
    assert node.values("vmpin_collisions") == {(): 2}  # two owners, and the VM's threads on their CPU
    assert node.values("vmpin_sandbox_collisions") == {("tests", "shop", node.id): 1, ("tests", "db", runc): 2}


@per_sandbox
def test_what_was_counted_by_sandbox_names_the_pod_and_ends_with_it(node: Node) -> None:
    """With a VM or without; none before the first event."""
    node.pod("shop")
    series = {name: f"vmpin_sandbox_{name}" for name in (
        "disputed_annotations_total", "pins_refused_total", "contentions_total", "disagreements")}
    assert [node.values(name) for name in series.values()] == [{}] * 4
    node.fill()
    assert [node.values(name) for name in series.values()] == [{("tests", "shop", node.id): 1}] * 4
    counters = node.node_state.counters
    counters.dispute(SandboxId("gone"))
    assert len(node.values(series["disputed_annotations_total"])) == 1
    counters.keep_only([node.id])
    assert counters.disputed_by.keys() == {node.id}
    assert counters.disputed == 2


def test_a_vm_that_ends_while_it_is_counted_is_off(node: Node) -> None:
    count = Headcount()
    steps = count.take(node.view)
    next(steps)
    del node.node_state.inventory.vms[node.id]
    for _ in steps:
        pass
    assert count.verdicts() == {Verdict.OFF: 1}
    node.node_state.state = DesiredState()
    assert node.values("vmpin_sandboxes")["off",] == 0


def test_what_was_counted_is_reported(node: Node) -> None:
    counters = node.node_state.counters
    counters.pins[ThreadRole.VHOST, Outcome.REFUSED.value] += 3
    counters.new_thread_latency.observe(0.0004)
    counters.new_thread_latency.observe(99.0)
    counters.passes["hook"] += 2
    node.restarts["nri"] += 1
    node.report = GuestReport("vmpin-agent", "up", {WEB: ContainerReport("applied")})
    assert node.values("vmpin_pins_total")["refused", "vhost"] == 3
    assert sum(node.values("vmpin_pins_total").values()) == 3
    births = node.values("vmpin_new_thread_latency_seconds_bucket")
    assert [births[(bound,)] for bound in ("0.00025", "0.0005", "30.0", "+Inf")] == [0, 1, 1, 2]
    assert node.values("vmpin_new_thread_latency_seconds_count") == {(): 2}
    assert node.values("vmpin_new_thread_latency_seconds_sum") == {(): pytest.approx(99.0004)}
    assert node.values("vmpin_passes_total") == {("hook",): 2}
    assert node.values("vmpin_source_restarts_total") == {("nri",): 1}
    assert node.values("vmpin_source_up") == {("hook",): 1}
    assert node.values("vmpin_guest_containers")["applied",] == 1
    assert node.values("vmpin_state_saved") == {(): 1}
    assert abs(node.values("vmpin_last_resync_timestamp_seconds")[()] - time.time()) < 600


def test_a_state_that_no_guest_may_have_counts_as_unknown(node: Node) -> None:
    node.report = GuestReport("vmpin-agent", "up", {WEB: ContainerReport('any"thing')})
    assert node.values("vmpin_guest_containers")["unknown",] == 1
    assert ('any"thing',) not in node.values("vmpin_guest_containers")


@per_sandbox
def test_each_sandboxs_containers_are_counted_by_their_state_in_the_guest(node: Node) -> None:
    node.pod("shop")
    assert node.values("vmpin_sandbox_guest_containers") == {}  # no map is sent to it
    for state, shown in (("error", "error"), ('any"thing', "unknown")):
        node.report = GuestReport("vmpin-agent", "up", {WEB: ContainerReport(state)})
        assert node.values("vmpin_sandbox_guest_containers") == {("tests", "shop", node.id, shown): 1}
        assert node.values("vmpin_guest_containers")[shown,] == 1


def test_no_label_names_a_pod_or_sandbox_unless_asked_for(node: Node) -> None:
    node.pod("shop")
    text = node.scrape()
    assert "shop" not in text
    assert node.id not in text
    assert "vmpin_sandbox_" not in text


@per_sandbox
def test_each_sandbox_has_its_own_figures_when_asked_for(node: Node) -> None:
    node.pod(ODD)
    name = ODD.encode("utf-8", "replace").decode()
    assert node.values("vmpin_sandbox_verdict") == {("tests", name, node.id, "degraded"): 1}
    threads = node.values("vmpin_sandbox_threads")
    assert threads["tests", "placed", name, "vcpu", node.id] == 1
    assert len(threads) == 5


def test_a_second_request_at_once_has_the_same_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    class Counting(Headcount):
        def take(self, view: NodeView) -> Iterator[None]:
            nonlocal counted
            counted += 1
            return super().take(view)

    monkeypatch.setattr("vmpin.features.metrics.prometheus.Headcount", Counting)
    async def main() -> None:
        made = Exporter(node, HttpTimes(page_age=600.0))
        first = await asyncio.gather(*(made.metrics() for _ in range(20)))
        assert (counted, len(set(first))) == (1, 1)
        made = Exporter(node, HttpTimes(page_age=0.01))
        await made.metrics()
        await asyncio.sleep(0.02)
        await made.metrics()
        assert counted == 3

    asyncio.run(main())


def test_the_loop_goes_on_while_metrics_are_made(node: Node) -> None:
    turns = 0

    async def main() -> None:
        nonlocal turns
        task = asyncio.create_task(Exporter(node, HttpTimes(turn=0.0)).metrics())
        while not task.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(main())
    assert turns > 20


def ask(node: Node, path: str) -> HttpReply:
    return asyncio.run(Exporter(node).answer(path))


def test_probes(node: Node) -> None:
    assert ask(node, "/healthz").status == ask(node, "/readyz").status == HTTPStatus.OK
    assert b"[+]hook ok" in ask(node, "/readyz").body
    node.sources = [SourceHealth("nri", False, True, "not connected"), SourceHealth("podresources", False, False)]
    assert ask(node, "/healthz").status == HTTPStatus.OK
    assert ask(node, "/readyz").status == HTTPStatus.SERVICE_UNAVAILABLE
    node.resynced = time.monotonic() - 3600
    assert ask(node, "/healthz").status == HTTPStatus.SERVICE_UNAVAILABLE
    node.sources = []
    assert ask(node, "/readyz").status == HTTPStatus.SERVICE_UNAVAILABLE
    assert ask(node, "/").status == HTTPStatus.NOT_FOUND


def test_a_watcher_without_metrics_loads_nothing_for_them() -> None:
    code = "import sys, vmpin.daemon.watcher; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "asyncio" in loaded
    assert "prometheus_client" not in loaded


# Where it listens


async def _run_until(made: Exporter, path: Path) -> asyncio.Task[None]:
    task = asyncio.create_task(made.run())
    while not task.done():
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            return task
        await asyncio.sleep(0.01)
    return task


def test_a_socket_is_roots_own_and_goes_with_the_watcher(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.root / "metrics.sock"
    node.node_state.config = settings.load(None, {}, {"metrics.address": f"unix:{path}"})

    async def main() -> None:
        for _ in range(2):  # what a killed watcher leaves is replaced
            task = await _run_until(Exporter(node), path)
            assert not task.done()
            assert path.stat().st_mode & 0o777 == 0o600
            monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            monkeypatch.undo()
            assert path.is_socket()
        task = await _run_until(Exporter(node), path)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not path.exists()

    asyncio.run(main())


def test_no_file_of_another_owner_is_replaced(node: Node) -> None:
    file, busy = node.root / "passwd", node.root / "containerd.sock"
    file.write_text("root\n")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(busy))
        other.listen()
        for path in (file, busy):
            node.node_state.config = settings.load(None, {}, {"metrics.address": f"unix:{path}"})
            with pytest.raises(ConfigError, match="another program's"):
                asyncio.run(Exporter(node).run())
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(busy))
    assert file.read_text() == "root\n"
