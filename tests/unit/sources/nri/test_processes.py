"""The processes that the runtime reports: each is looked up once, and no later than it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from nri_events import C1, POD, PROC, container, pod
from system_calls import system_calls
from waiting import wait

from vmpin.domain.desired_state import DesiredState, reduce
from vmpin.domain.events import Event
from vmpin.domain.model import ThreadId
from vmpin.host import boottime
from vmpin.sources.nri.nri_events import ContainerEvent, NriEvent, PodEvent
from vmpin.sources.nri.processes import NriProcesses
from vmpin.sources.nri.translation import events_of
from vmpin.wire.nri_enums import Verb


@pytest.fixture
def process() -> Iterator[ThreadId]:
    with subprocess.Popen(["sleep", "600"]) as made:
        wait(lambda: PROC.cmdline(made.pid) == ["sleep", "600"], "the process has no arguments")
        stat = PROC.stat(made.pid)
        assert stat is not None
        yield ThreadId(made.pid, stat.starttime)
        made.kill()


class Node:
    """A state that events change, with the processes of a watcher."""

    def __init__(self) -> None:
        self.state, self.processes = DesiredState(), NriProcesses(PROC)

    def take(self, event: NriEvent) -> None:
        self._apply(events_of(event, self.state, self.processes, ""))

    def resync(self) -> None:
        self._apply(self.processes.postponed(self.state))

    def _apply(self, events: Iterator[Event] | list[Event]) -> None:
        for event in events:
            self.state = reduce(self.state, event)

    def init(self) -> ThreadId | None:
        return self.state.sandboxes[POD].containers[C1].init


def test_a_shared_containers_events_open_no_file_and_the_next_resync_looks_its_process_up(process: ThreadId) -> None:
    node, pid = Node(), process.tid
    node.take(PodEvent(Verb.RUN_POD, pod(pid), 1))
    now = boottime.now()
    for at, (verb, of) in enumerate(((Verb.CREATE, 0), (Verb.POST_CREATE, 0), (Verb.START, pid),
                                     (Verb.POST_START, pid), (Verb.POST_UPDATE, pid)), start=now):
        event = ContainerEvent(verb, pod(pid), container(pid=of), at)
        assert not system_calls(partial(node.take, event)), verb
    assert node.init() is None
    node.resync()
    assert node.init() == process
    update = ContainerEvent(Verb.POST_UPDATE, pod(pid), container(pid=pid), now + 9)
    assert not system_calls(lambda: node.take(update))
    assert not system_calls(node.resync)
    assert node.init() == process


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.REMOVE])
def test_the_process_of_a_container_that_has_ended_is_not_looked_up(process: ThreadId, verb: Verb) -> None:
    node = Node()
    node.take(PodEvent(Verb.RUN_POD, pod(process.tid), 1))
    for at, each in enumerate((Verb.POST_START, verb), start=2):
        node.take(ContainerEvent(each, pod(process.tid), container(pid=process.tid), at))
    assert not system_calls(node.resync)
    assert node.init() is None


def test_a_process_that_began_after_the_report_is_another_one(process: ThreadId) -> None:
    node, long_ago = Node(), 3
    node.take(PodEvent(Verb.RUN_POD, pod(process.tid), 1))
    node.take(ContainerEvent(Verb.POST_START, pod(process.tid), container(pid=process.tid), long_ago))
    node.resync()
    assert node.init() is None


def test_the_process_of_a_container_with_a_cpuset_is_looked_up_at_once(process: ThreadId) -> None:
    node = Node()
    node.take(PodEvent(Verb.RUN_POD, pod(process.tid), 1))
    node.take(ContainerEvent(Verb.START, pod(process.tid), container(cpus="2-3", pid=process.tid), 2))
    assert node.init() == process


def test_a_vmm_is_looked_up_once_for_its_pod_and_all_containers() -> None:
    with subprocess.Popen(["qemu-system-x86_64", "-c", "import time; time.sleep(600)", "-name", f"sandbox-{POD}"],
                          executable=sys.executable) as vmm:
        wait(lambda: len(PROC.cmdline(vmm.pid)) > 1, "the process has no arguments")
        node = Node()
        node.take(PodEvent(Verb.RUN_POD, pod(vmm.pid), 1))
        claimed = node.state.sandboxes[POD].vmm
        event = ContainerEvent(Verb.POST_START, pod(vmm.pid), container(cpus="1", pid=vmm.pid), 2)
        assert not system_calls(lambda: node.take(event))
        vmm.kill()
    assert claimed is not None
    assert (claimed.tid, node.init()) == (vmm.pid, None)


def test_a_pod_that_is_gone_is_forgotten(process: ThreadId) -> None:
    node = Node()
    for verb in (Verb.RUN_POD, Verb.REMOVE_POD):
        node.take(PodEvent(verb, pod(process.tid), 1))
    assert system_calls(lambda: node.take(PodEvent(Verb.RUN_POD, pod(process.tid), 2)))
