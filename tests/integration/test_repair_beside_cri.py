"""Repairs of runc containers beside CRI updates and creations, with real containerds: none hangs, and nothing but
registrations is asked of it over NRI. Up to NRI 0.12.0 an unsolicited UpdateContainers hangs it within seconds
(containerd#13733)."""

from __future__ import annotations

import contextlib
import itertools
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from need import lacking
from nri_peer import delivering
from nri_tap import Tap
from process_masks import two_cpus
from real_containerd import Container, Containerd, Pod
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.features.common import cri
from vmpin.sources.nri.connection import connect_to
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced
from vmpin.sources.nri.plugin import NriPlugin

pytestmark = pytest.mark.root

#: Each loop does so much, at the least: where updates were unsolicited, containerd hung after 0.6 to 3.4 s, a few of
#: each.
ROUNDS = 5
#: A call that takes longer (s) has hung: they take some 10 ms, a hundred times that on a slow machine.
PATIENCE = 300.0


class Drive:
    """One containerd under load: each loop is a thread, and counts what it has done."""

    def __init__(self, containerd: Containerd, cpus: tuple[str, str]) -> None:
        self.containerd = containerd
        self.cpus = cpus
        self.done: Counter[str] = Counter()
        self.tap = Tap(connect_to(containerd.nri_socket))
        self._events: queue.Queue[NriEvent] = queue.Queue()
        self._running: list[Future[None]] = []
        self._plugin = NriPlugin(self.tap.connect, delivering(self._events.put))

    def run(self, rounds: int, seconds: float) -> None:
        """Until each loop has done so much for so long."""
        pods = [self.containerd.pod(name) for name in ("drifted", "moved", "updated", "created")]
        drifted, moved, updated = (pod.container("main", cpus=self.cpus[0]) for pod in pods[:3])
        self._plugin.start()
        assert isinstance(self._events.get(timeout=PATIENCE), Synced)
        end = time.monotonic() + seconds
        loops = [lambda: self._by_cri(drifted), lambda: self._by_nri(moved), lambda: self._update(updated),
                 lambda: self._create(pods[3])]
        try:
            with ThreadPoolExecutor(len(loops)) as pool:
                self._running = [pool.submit(self._until, rounds, end, each) for each in loops]
                for loop in self._running:
                    loop.result()
        finally:
            self._plugin.stop(PATIENCE)
            self.tap.close()
        for pod in pods:
            pod.remove()

    def _until(self, rounds: int, end: float, step: Callable[[], Iterator[str]]) -> None:
        """All loops go on until the slowest has done enough, or one has failed."""
        for what in step():
            self.done[what] += 1
            if self.failed or (len(self.done) == 4 and min(self.done.values()) >= rounds and time.monotonic() > end):
                return

    @property
    def failed(self) -> bool:
        return any(loop.done() and loop.exception() is not None for loop in self._running)

    def _by_cri(self, container: Container) -> Iterator[str]:
        """Over CRI, as the feature runc_repair does it."""
        own, other = self.cpus
        while True:
            (container.cgroup / "cpuset.cpus").write_text(other)
            with cri.connected([self.containerd.top / "cri.sock"]) as servers:
                cri.update_cpus(servers, ContainerId(container.id), CpuSet.parse(own), PATIENCE)
            assert container.cgroup_cpus() == own
            yield "repaired over CRI"

    def _by_nri(self, container: Container) -> Iterator[str]:
        """In the answer to the list of a new connection."""
        own, other = self.cpus
        identity = ContainerId(container.id)
        while True:
            (container.cgroup / "cpuset.cpus").write_text(other)
            self._plugin.reconnect({identity: NriUpdate(CpuSet.parse(own), CpuSet.parse(own))})
            while True:
                event = self._events.get(timeout=PATIENCE)
                if isinstance(event, Synced):
                    break
            assert event.updated == (identity,)
            wait(lambda: container.cgroup_cpus() == own, lambda: f"not repaired: {container.cgroup_cpus()}")
            yield "repaired over NRI"

    def _update(self, container: Container) -> Iterator[str]:
        """As the kubelet's CPU manager does."""
        for cpus in itertools.cycle(reversed(self.cpus)):
            container.update(cpus=cpus)
            assert container.cgroup_cpus() == cpus
            yield "updated"

    def _create(self, pod: Pod) -> Iterator[str]:
        for number in itertools.count():
            pod.container(f"c{number}", cpus=self.cpus[number % 2]).remove()
            yield "created"


@pytest.mark.parametrize("seconds", [
    pytest.param(0.0, id="until enough has happened"), pytest.param(60.0, id="a minute", marks=pytest.mark.release)])
def test_no_containerd_hangs_while_runc_containers_are_repaired(seconds: float) -> None:
    """Both at the same time."""
    with contextlib.ExitStack() as stack:
        missing, drives = "", []
        for suite in ("trixie", "sid"):
            try:
                drives.append(Drive(stack.enter_context(Containerd(suite)), two_cpus()))
            except pytest.skip.Exception as err:  # sid moves, and is not always to be had
                missing = str(err)
        if not drives:
            lacking(missing)
        with ThreadPoolExecutor(len(drives)) as pool:
            for ended in [pool.submit(each.run, ROUNDS, seconds) for each in drives]:
                ended.result()
        for drive in drives:
            print(drive.containerd.version, dict(drive.done), dict(drive.tap.asked))
            assert drive.done.keys() == {"repaired over CRI", "repaired over NRI", "updated", "created"}
            # One for each connection: that of the start, and one for each repair over NRI.
            assert drive.tap.asked.keys() == {"RegisterPlugin"}
            assert drive.tap.asked["RegisterPlugin"] > drive.done["repaired over NRI"]
        if missing:
            pytest.skip(f"one containerd only: {missing}")
