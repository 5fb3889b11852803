"""Changed annotations, from a request on the status socket to the ledger: how often, of which pods, if at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from newcomers import Machine

from vmpin.cpuset import CpuSet
from vmpin.daemon.control import Control
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.feature import WatcherPart
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.live_annotations import HANDED_KEPT, PAUSE, LiveAnnotations
from vmpin.features.allocator.vm_size import VmSize
from vmpin.features.cluster.kube.watched_annotations import MAX_REQUEST, encode
from vmpin.features.cluster.reporter_requests import ReporterRequests
from vmpin.host import sockets
from vmpin.status.health import SourceHealth

pytest_plugins = ["given_unit"]

MACHINE = Topology.build(CpuSet(range(8)), nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))})
POLICY = "cpu-policy.vmpin.io"
EXCLUSIVE, FIXED, NONE = ({POLICY: policy} for policy in ("exclusive", "fixed", "none"))


class Node:
    """Pods with a container of two CPUs each that runs on the pool, and a clock that a test moves."""

    def __init__(self, directory: Path, *pods: str, mode: AllocationMode = AllocationMode.ON) -> None:
        self.path, self.mode, self.time = directory / "ledger.json", mode, 1000.0
        self.listed = Listed(frozenset(map(SandboxId, pods)), tuple(RequestedContainer(
            ContainerId(f"c-{pod}"), SandboxId(pod), "main", "shop", pod, f"uid-{pod}", shares=2048, quota=200_000,
            period=100_000, state=ContainerState.RUNNING) for pod in pods))
        self.decided = 0
        self.on_decision: Callable[[], None] = lambda: None
        self.start()

    def start(self) -> None:
        """vmpin starts, or starts again."""
        self.allocator = CpuAllocator(MACHINE, AllocationOptions(self.mode, CpuSet((0,))),
                                      LedgerFile(self.path, "boot"), lambda pod: VmSize())
        self.allocator.synchronize(self.listed)
        self.live = LiveAnnotations(self.allocator, self._count, now=lambda: self.time)

    def _count(self) -> None:
        self.decided += 1
        self.on_decision()

    def hand(self, **pods: dict[str, str]) -> int:
        """:returns: how many decisions follow at once."""
        self.live.take({f"uid-{pod}": annotations for pod, annotations in pods.items()})
        return self.steps()

    def steps(self) -> int:
        before = self.decided
        while self.live.step():
            pass
        return self.decided - before

    def has(self, pod: str = "a") -> tuple[str, str]:
        ledger = self.allocator.ledger()
        assert ledger is not None
        grant = ledger.grants[ContainerId(f"c-{pod}")]
        return str(grant.policy), str(grant.cpus)


def test_a_change_is_decided_on_once_and_its_updates_are_due_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, "a")
    assert node.hand(a={}) == 0
    assert node.hand(a=EXCLUSIVE) == 1
    assert node.has() == ("exclusive", "1-2")
    assert node.allocator.pause() == 0.0
    node.time += PAUSE
    assert node.hand(a=EXCLUSIVE) == 0
    node.start()
    assert node.hand(a=EXCLUSIVE) == 0, "nor after a restart"
    assert node.hand(a={}) == 1
    assert node.has() == ("none", "")


def test_of_ten_thousand_changes_the_last_one_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = Node(tmp_path, "a", "b")
    assert sum(node.hand(a=(EXCLUSIVE, {POLICY: f"bad-{number}"}, FIXED)[number % 3]) for number in range(10_000)) == 1
    assert node.has() == ("exclusive", "1-2")
    assert node.live.pause() is None  # as it is by now
    node.hand(a=NONE)
    assert node.live.pause() == PAUSE
    # Another pod's change does not wait for it.
    assert node.hand(a=NONE, b=FIXED) == 1
    node.time += PAUSE - 1
    assert (node.steps(), node.live.pause()) == (0, 1.0)
    node.time += 1
    assert node.steps() == 1
    assert (node.has(), node.has("b")) == (("none", ""), ("fixed", "4-5"))
    assert caplog.text.count("becomes") == 3


def test_a_refusal_is_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = Node(tmp_path, "a")
    for _ in range(5):
        node.hand(a={POLICY: "infra"})
        node.time += PAUSE
    assert caplog.text.count("is refused") == 1
    assert node.allocator.refusals == {"request": 1}
    assert node.has() == ("none", "")
    assert node.allocator.pause() is None


def test_pods_of_other_nodes_and_pods_made_again_change_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, "a")
    before = node.allocator.ledger()
    node.live.take({uid: EXCLUSIVE for uid in ("uid-of-another-node", "a", "c-a", "", "uid-a2", "UID-A")})
    assert node.steps() == 0
    assert node.allocator.ledger() == before


def test_what_a_silent_reporter_handed_over_is_forgotten(tmp_path: Path) -> None:
    node = Node(tmp_path, "a")
    node.live.take({"uid-a": EXCLUSIVE})
    node.time += HANDED_KEPT
    assert node.steps() == 0
    assert node.has() == ("none", "")


def test_while_nothing_is_given_out_a_change_waits(tmp_path: Path) -> None:
    node = Node(tmp_path, "a")
    node.allocator.suspend("the kubelet does")
    assert node.hand(a=EXCLUSIVE) == 0
    assert node.live.pause() is None
    node.allocator.suspend("")
    node.allocator.synchronize(node.listed)
    assert node.steps() == 1


def test_observing_shows_what_would_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = Node(tmp_path, "a", mode=AllocationMode.OBSERVE)
    assert node.hand(a=EXCLUSIVE) == 1
    assert "would be: shop/a/main: none becomes exclusive 1-2: its annotations were changed" in caplog.text
    assert node.has() == ("exclusive", "1-2")
    assert node.allocator.pause() is None
    assert not node.path.exists()


@pytest.mark.parametrize("member", [[], "x", 1, None, {"u": []}, {"u": {"k": 1}}, {"u": {"k": "x" * 5000}},
                                    {str(number): {} for number in range(257)}])
def test_a_member_that_no_reporter_makes_leaves_what_was_there(
        tmp_path: Path, machine: Machine, member: object) -> None:
    node = Node(tmp_path, "a")
    node.live.take({"uid-a": EXCLUSIVE})
    request = json.dumps({"op": "pods", "version": 1, "pods": member}).encode() + b"\n"
    assert "pods" in on_the_socket(tmp_path / "s", Watched(machine, node.live, deciding=False), request)["error"]
    assert node.steps() == 1


class Watched:
    """As much of a watcher as the status socket takes; its reconciler and its allocator are real."""

    about, stopping = None, False
    def __init__(self, machine: Machine, live: LiveAnnotations | None, deciding: bool = True) -> None:
        self.reconciler, self.view, self.guests = machine.reconciler, machine.reconciler.view, self
        self.resynced = 0.0
        self.live, self.deciding = live, deciding and live is not None
        self.parts = {"cluster": ReporterRequests(self, pause=0.0).part()}
        if live is not None:
            self.parts["allocator"] = WatcherPart(take_annotations=live.take)

    def data(self, sandbox: SandboxId) -> None:
        return None

    def source_health(self) -> tuple[SourceHealth, ...]:
        return ()


def on_the_socket(path: Path, watched: Watched, request: bytes, deciding: Node | None = None) -> Any:
    """Send a request to a status socket. :param deciding: wait for a decision of it."""
    async def main() -> Any:
        decided = asyncio.Event()
        if deciding is not None:
            deciding.on_decision = decided.set
        made = sockets.listen(path)
        control = Control(watched, reading=True)  # type: ignore[arg-type]
        tasks = [asyncio.create_task(sockets.serve(made, MAX_REQUEST, control.answer, True, 120.0))]
        if watched.deciding:
            assert watched.live is not None
            tasks.append(asyncio.create_task(watched.live.run()))
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(request)
            found = await reader.read()
            writer.close()
            if deciding is not None:
                await decided.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return json.loads(found)

    return asyncio.run(main())


def test_a_request_on_the_status_socket_reaches_the_ledger(tmp_path: Path, machine: Machine) -> None:
    node = Node(tmp_path, "a")
    request = encode({"uid-a": EXCLUSIVE})
    assert on_the_socket(tmp_path / "s", Watched(machine, node.live), request, node) == {"pods": 1}
    assert node.has() == ("exclusive", "1-2")


def test_switched_off_the_same_request_changes_nothing(tmp_path: Path, machine: Machine) -> None:
    node = Node(tmp_path, "a")
    before = node.allocator.ledger()
    request = encode({"uid-a": EXCLUSIVE})
    assert "does not follow annotations" in on_the_socket(tmp_path / "s", Watched(machine, None), request)["error"]
    assert node.steps() == 0
    assert node.allocator.ledger() == before
    assert "pods" in on_the_socket(tmp_path / "t", Watched(machine, node.live),
                                   b'{"op":"pods","version":1,"pods":[]}\n')["error"]


def test_a_refusal_stands_until_the_annotation_is_another_or_the_pod_is_gone(tmp_path: Path) -> None:
    node = Node(tmp_path, "a", "b")
    node.hand(a={POLICY: "nonsense"}, b=EXCLUSIVE)
    (found,) = node.live.refused()
    assert (found["uid"], found["container"]) == ("uid-a", "main")
    assert "nonsense" in found["why"]
    node.time += PAUSE
    node.hand(a=EXCLUSIVE, b=EXCLUSIVE)
    assert node.live.refused() == []
    node.time += PAUSE
    node.hand(a={POLICY: "nonsense"}, b=EXCLUSIVE)
    assert len(node.live.refused()) == 1
    node.hand(b=EXCLUSIVE)
    assert node.live.refused() == []
