"""NRI's messages as events: with real processes, and a state that has some of it already."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from effort import effort
from nri_events import C1, C2, KEY, POD, PROC, after, container, pod, translated
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, reduce
from vmpin.domain.events import ContainerSeen, ContainerStopped, SandboxGone, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, PodEvent, Synced
from vmpin.wire.nri_enums import Verb


@contextlib.contextmanager
def running(argv: list[str], executable: str | None = None) -> Iterator[int]:
    """A process, once /proc has its arguments: an exec that has succeeded may still be setting them up."""
    with subprocess.Popen(argv, executable=executable) as made:
        wait(lambda: PROC.cmdline(made.pid) == argv, "the process has no arguments")
        yield made.pid
        made.kill()


@pytest.fixture
def process() -> Iterator[int]:
    """A process that is no VMM."""
    with running(["sleep", "600"]) as pid:
        yield pid


@pytest.fixture
def vmm() -> Iterator[int]:
    """A process with the command line of a sandbox's VMM, which is all that is looked at."""
    with running(["qemu-system-x86_64", "-c", "import time; time.sleep(600)", "-name", "sandbox-pod1"],
                 sys.executable) as pid:
        yield pid


def started(pid: int) -> int:
    stat = PROC.stat(pid)
    assert stat is not None
    return stat.starttime


def test_a_pod_is_a_sandbox_with_its_handler() -> None:
    assert translated(PodEvent(Verb.RUN_POD, pod(handler="kata-qemu"), 5)) == [
        SandboxSeen(POD, "nri", Pod("default", "web", "u-1"), None, "kata-qemu")]


def test_the_pid_of_a_pod_is_a_vmm_or_a_process_that_does_nothing(vmm: int, process: int) -> None:
    found = [translated(PodEvent(Verb.RUN_POD, pod(pid), 5))[0] for pid in (vmm, process, 0, 4194300)]
    assert [item.vmm for item in found if isinstance(item, SandboxSeen)] == [
        ThreadId(vmm, started(vmm)), None, None, None]


def test_a_start_is_a_running_container_with_its_process(process: int) -> None:
    event = ContainerEvent(Verb.POST_START, pod(),
                           container(cpus="2-3", state=1, pid=process, annotations={KEY: "true"}), 7)
    sandbox, seen = translated(event)
    assert isinstance(sandbox, SandboxSeen)
    assert seen == ContainerSeen(
        POD, Container(C1, "name-c1", CpuSet.parse("2-3"), True, ContainerState.RUNNING), Source.NRI, 7,
        init=ThreadId(process, started(process)))


def test_a_pods_annotation_declares_its_containers_unless_they_have_it_themselves() -> None:
    """containerd's NRI has a pod's annotations with the pod alone (internal/cri/nri: GetAnnotations)."""
    annotated, undeclared = pod(annotations={KEY: "true"}), container(C2, annotations={KEY: "false"})
    found = [*translated(ContainerEvent(Verb.POST_CREATE, annotated, container(), 7)),
             *translated(ContainerEvent(Verb.POST_CREATE, annotated, undeclared, 7)),
             *translated(ContainerEvent(Verb.POST_CREATE, None, container(), 7)),
             *translated(Synced((annotated,), (container(), undeclared, container("c3", pod_="pod2")), 7))]
    declared = [event.container.exclusive for event in found if isinstance(event, ContainerSeen)]
    assert declared == [True, False, None, True, False, None]


@pytest.mark.parametrize("of_the_guest", [False, True])
def test_a_container_in_a_vm_has_no_process_on_the_host(vmm: int, process: int, of_the_guest: bool) -> None:
    """Kata reports the pid of the VMM, Kuasar that of a process in the guest, which another one has here."""
    pid = process if of_the_guest else vmm
    seen = translated(ContainerEvent(Verb.POST_START, pod(vmm), container(pid=pid), 7))[1]
    assert isinstance(seen, ContainerSeen)
    assert seen.init is None
    assert seen.container.cpuset is None
    assert seen.container.exclusive is None


def test_a_container_that_was_created_is_no_running_one() -> None:
    for event, state in ((ContainerEvent(Verb.POST_CREATE, None, container(state=1), 7), ContainerState.CREATED),
                         (ContainerEvent(Verb.POST_UPDATE, None, container(state=1), 7), ContainerState.CREATED),
                         (ContainerEvent(Verb.POST_UPDATE, None, container(state=2), 7), ContainerState.RUNNING)):
        seen, = translated(event)
        assert isinstance(seen, ContainerSeen)
        assert seen.container.state is state


def test_an_update_is_the_new_cpuset() -> None:
    state = after([ContainerEvent(Verb.POST_START, pod(), container(cpus="2-3"), 7),
                   ContainerEvent(Verb.POST_UPDATE, pod(), container(cpus="4-5"), 8)])
    known = state.sandboxes[POD].containers[C1]
    assert (known.container.cpuset, known.source, known.reports[Source.NRI].time) == (CpuSet.parse("4-5"), Source.NRI,
                                                                                      8)


def test_an_update_after_the_end_makes_no_pass() -> None:
    begun = [ContainerEvent(Verb.POST_START, pod(), container(cpus="2-3"), 7),
             ContainerEvent(Verb.STOP, pod(), container(), 8)]
    state = after(begun)
    assert translated(ContainerEvent(Verb.POST_UPDATE, pod(), container(cpus="4-5"), 9), state) == []
    assert translated(ContainerEvent(Verb.POST_UPDATE, pod(), container(cpus="4-5", state=4), 9)) == []
    assert state.sandboxes[POD].live() == ()


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.REMOVE])
def test_a_stop_is_an_end(verb: Verb) -> None:
    assert translated(ContainerEvent(verb, None, container(), 9)) == [ContainerStopped(POD, C1, 9)]


def test_a_pod_that_stops_takes_its_containers_with_it() -> None:
    state = after([ContainerEvent(Verb.POST_START, pod(), container(cpus="2"), 7)])
    state = reduce(state, ContainerSeen(POD, Container(C2, cpuset=CpuSet([3])), Source.BUNDLE, 7))
    assert translated(PodEvent(Verb.STOP_POD, pod(), 9), state) == [ContainerStopped(POD, C1, 9)]
    assert translated(PodEvent(Verb.STOP_POD, pod(), 9)) == []
    assert translated(PodEvent(Verb.REMOVE_POD, pod(), 10), state) == [SandboxGone(POD)]


def test_what_is_not_facts_is_no_event() -> None:
    assert translated(Disconnected()) == []


def test_a_list_reports_all_that_is_there() -> None:
    events = translated(Synced((pod(handler="kata"),), (
        container(C1, "2-3"), container(C2, state=4), container("c3", state=1), container("c4", "5", pod_="pod2")), 7))
    assert events == [
        SandboxSeen(POD, "nri", Pod("default", "web", "u-1"), None, "kata"),
        ContainerSeen(POD, Container(C1, "name-c1", CpuSet.parse("2-3"), None, ContainerState.RUNNING), Source.NRI, 7,
                      from_list=True),
        ContainerStopped(POD, C2, 7),
        ContainerSeen(POD, Container(ContainerId("c3"), "name-c3", None, None, ContainerState.CREATED, creating=True),
                      Source.NRI, 7, from_list=True),
        ContainerSeen(SandboxId("pod2"), Container(ContainerId("c4"), "name-c4", CpuSet([5])), Source.NRI, 7,
                      from_list=True)]


def test_what_a_list_leaves_out_has_ended_while_disconnected() -> None:
    state = after([Synced((pod(), pod(id_="pod2"), pod(id_="pod3")), (
        container(C1, "2"), container(C2, "3", pod_="pod2"), container("c3", "4", pod_="pod2")), 7)])
    # A container that only a hook reported is not the runtime's to end.
    state = reduce(state, ContainerSeen(SandboxId("pod3"), Container(ContainerId("c4"), cpuset=CpuSet([5])),
                                        Source.BUNDLE, 7))
    events = translated(Synced((), (container("c3", "4", pod_="pod2"),), 9), state)
    assert [event for event in events if not isinstance(event, ContainerSeen)] == [
        ContainerStopped(POD, C1, 9), SandboxGone(POD), ContainerStopped(SandboxId("pod2"), C2, 9)]
    state = after([Synced((), (container("c3", "4", pod_="pod2"),), 9)], state)
    assert {name: [item.id for item in sandbox.live()] for name, sandbox in state.sandboxes.items()} == {
        "pod2": ["c3"], "pod3": ["c4"]}


def test_a_sandbox_that_kata_reported_is_not_ended_by_the_runtimes_list() -> None:
    state = after([PodEvent(Verb.RUN_POD, pod(), 7)])
    state = DesiredState({POD: state.sandboxes[POD]._replace(runtime="kata-go")})
    assert translated(Synced((), (), 9), state) == []


def test_the_same_list_again_changes_nothing(process: int) -> None:
    listed = Synced((pod(process, "kata"),), (container(C1, "2-3", pid=process), container(C2)), 7)
    state = after([listed])
    assert after([listed._replace(time_ns=8)], state) is state


def test_five_hundred_containers_cost_little() -> None:
    """With a pid to look up for each, and again when they are known."""
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    listed = Synced(
        tuple(pod(pids[number % len(pids)], id_=f"p{number}") for number in range(250)),
        tuple(container(f"c{number}", "2-3", pid=pids[number % len(pids)], pod_=f"p{number // 2}")
              for number in range(500)), 7)
    assert len(translated(listed)) == 750
    assert effort(lambda: translated(listed)) < 200  # 50 ms are ten
