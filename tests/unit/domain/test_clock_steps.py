"""The wall clock is stepped (the lab does it for real: node_tests/test_clock.py): no report is lost, none comes first
that came last."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.events import ContainerSeen, ContainerStopped, Event, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId
from vmpin.host import boottime
from vmpin.reconcile.intake import take_hook, take_nri, take_spool
from vmpin.reconcile.reconciler import Reconciler
from vmpin.runtime.oci import parse_hook
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer
from vmpin.sources.spool import Spool
from vmpin.wire.nri_enums import Verb

POD, MAIN = SandboxId("pod"), ContainerId("main")
HOUR = 3600 * 10**9
STEPS = pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "ahead"])


class Clock:
    """The wall clock, which a test steps. Files get its times by `stamp`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0
        real = time.time_ns
        monkeypatch.setattr("time.time_ns", lambda: real() + self.ahead)

    def step(self, nanoseconds: int) -> None:
        self.ahead += nanoseconds

    @staticmethod
    def stamp(path: Path) -> None:
        """As a file that is written now."""
        os.utime(path, ns=(time.time_ns(), time.time_ns()))


class Node:
    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "run").mkdir()
        (top / "bundle").mkdir()
        self.begin()
        self.spool = Spool(self.node_state.config.paths.spool)
        self.spool.prepare()

    def begin(self) -> None:
        """The watcher, new or again."""
        paths = {f"paths.{each}": str(self.top / each) for each in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
        self.reconciler = Reconciler(settings.load(None, {}, {**paths, "watch.only": "none"}))
        self.node_state = self.reconciler.node_state

    def restart(self) -> None:
        assert self.node_state.save()
        self.begin()

    def message(self, stage: str, cpus: str = "2") -> bytes:
        """What a hook sends now."""
        (self.top / "bundle/config.json").write_text(json.dumps({"linux": {"resources": {"cpu": {"cpus": cpus}}}}))
        state = {"id": MAIN, "pid": 0, "bundle": str(self.top / "bundle"), "annotations": {
            "io.kubernetes.cri.sandbox-id": POD, "io.kubernetes.cri.container-type": "container"}}
        head = f"vmpin-hook/1 stage={stage} time={time.time_ns()} boot={boottime.now()}\n"
        return head.encode() + json.dumps(state).encode()

    def hook(self, stage: str, cpus: str = "2") -> None:
        assert take_hook(self.reconciler.node_state, parse_hook(self.message(stage, cpus))) == {POD}

    def keep(self, raw: bytes, when: int) -> None:
        assert self.spool.keep(raw, when)

    def nri(self, cpus: str) -> None:
        """An update, as the runtime reports it now."""
        made = NriContainer(MAIN, POD, "main", 3, CpuSet.parse(cpus), {}, 0)
        take_nri(self.reconciler.node_state, [ContainerEvent(Verb.POST_UPDATE, None, made, boottime.now())])

    def kata(self, cpus: str, *stopped: str) -> Path:
        """Kata writes its files."""
        at = self.top / "kata_go/sbs" / POD
        (at / MAIN).mkdir(parents=True, exist_ok=True)
        (at / "persist.json").write_text(json.dumps({"Config": {"ContainerConfigs": [
            {"ID": MAIN, "Annotations": {"io.kubernetes.cri.container-type": "container"},
             "Resources": {"cpu": {"cpus": cpus}}}]}}))
        Clock.stamp(at / "persist.json")
        for name in stopped:
            (at / name / "persist.json").write_text('{"State": "stopped"}')
            Clock.stamp(at / name / "persist.json")
        return at

    def read(self) -> list[Event]:
        reconciler = self.reconciler
        reconciler.node_state.sources.read()
        found = reconciler.node_state.sources.events(reconciler.node_state.state, {POD})
        reconciler.node_state.apply_events(found)
        return found

    def container(self) -> Container:
        return self.node_state.state.sandboxes[POD].containers[MAIN].container

    def cpus(self) -> str:
        return str(self.container().cpuset)

    def lives(self) -> bool:
        return self.container().state is not ContainerState.STOPPED


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@STEPS
@pytest.mark.parametrize("restart", [False, True], ids=["goes on", "restart"])
def test_the_later_report_counts_and_an_end_is_an_end(node: Node, clock: Clock, step: int, restart: bool) -> None:
    node.nri("2")
    for number, cpus in enumerate(("3", "4")):
        clock.step(step)
        if restart:
            node.restart()
        node.nri(cpus)
        assert node.cpus() == cpus, number
    clock.step(step)
    if restart:
        node.restart()
    node.hook("poststop")
    assert not node.lives()


@STEPS
def test_hooks_are_taken_on_either_side_of_a_step(node: Node, clock: Clock, step: int) -> None:
    node.hook("createRuntime", "2")
    clock.step(step)
    node.hook("poststart", "3")
    assert node.cpus() == "3"
    clock.step(step)
    node.hook("poststop")
    assert not node.lives()


@STEPS
def test_what_lay_in_the_spool_over_a_step_is_older_than_what_was_reported_since(
        node: Node, clock: Clock, step: int) -> None:
    created = node.message("createRuntime", "2")
    when = boottime.now()
    clock.step(step)
    node.hook("poststop")
    node.hook("createRuntime", "3")  # the same container, started again (podman)
    node.keep(created, when)
    take_spool(node.reconciler.node_state, node.spool, set())
    assert (node.cpus(), node.lives()) == ("3", True)


@STEPS
def test_what_was_spooled_before_and_after_a_step_is_taken_in_order(node: Node, clock: Clock, step: int) -> None:
    node.keep(node.message("createRuntime", "2"), boottime.now())
    clock.step(step)
    node.keep(node.message("poststop"), boottime.now())
    take_spool(node.reconciler.node_state, node.spool, set())
    assert not node.lives()


@STEPS
def test_katas_file_is_as_young_as_its_last_change(node: Node, clock: Clock, step: int) -> None:
    node.kata("2")
    node.read()
    node.nri("3")
    assert node.cpus() == "3"
    node.read()
    assert node.cpus() == "3"  # it is older, and says nothing new
    node.read()
    clock.step(step)
    node.kata("4")
    node.read()
    assert node.cpus() == "4"
    node.nri("5")
    node.read()
    assert node.cpus() == "5"


@STEPS
def test_an_end_in_katas_file_is_taken(node: Node, clock: Clock, step: int) -> None:
    node.kata("2")
    node.read()
    node.nri("3")
    node.read()
    clock.step(step)
    node.kata("3", MAIN)
    node.read()
    assert not node.lives()


def test_a_file_of_the_future_does_not_raise_the_dead(node: Node, clock: Clock) -> None:
    """Stamped before the clock was put back, it is read again and again, as if it were fresh."""
    node.kata("2")
    node.read()
    clock.step(-HOUR)
    node.read()
    node.hook("poststop")
    assert not node.lives()
    node.read()
    node.read()
    assert not node.lives()


def test_reports_with_the_time_of_a_wrong_clock_are_not_ahead_of_later_ones(node: Node) -> None:
    state = node.message("createRuntime", "2").partition(b"\n")[2]
    raw = b"vmpin-hook/1 stage=createRuntime boot=%d\n" % (2 * time.time_ns()) + state
    assert take_hook(node.reconciler.node_state, parse_hook(raw))
    node.node_state.apply_events([SandboxSeen(POD, "nri"), ContainerSeen(
        POD, Container(MAIN, "main", CpuSet([3])), Source.NRI, boottime.now())])
    assert node.cpus() == "3"
    node.node_state.apply_events([ContainerStopped(POD, MAIN, boottime.now())])
    assert not node.lives()
