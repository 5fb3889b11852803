"""The calls that CPUs may be given with, over a connection of the test's own: what the decider gets of them, and what
the runtime gets of its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import pytest
from nri_connected import Connected, begun
from nri_peer import PATIENCE, NriRuntimes, container, pod

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Adjustment, Listed, RequestedContainer, SideUpdate
from vmpin.log import pod_of_line
from vmpin.sources.nri.call_codec import POD_VERBS
from vmpin.sources.nri.nri_events import (
    CallFacts,
    ContainerEvent,
    CpuAnswer,
    CpusGiven,
    Disconnected,
    NriCounters,
    NriPod,
    PodEvent,
    Synced,
)
from vmpin.sources.nri.session import DECIDED, EVENTS, HANDLED, NriSession
from vmpin.wire import ttrpc
from vmpin.wire.nri_enums import CREATED, METHODS, STOPPED, Verb, mask
from vmpin.wire.nri_messages import MESSAGES, PLUGIN_SERVICE

pytest_plugins = ["given_nri"]


class Decider:
    """Answers with what a test has put there, and keeps the calls."""

    def __init__(self) -> None:
        self.asked_for: list[tuple[Verb, RequestedContainer]] = []
        self.pods: list[NriPod | None] = []
        self.lists: list[Listed] = []
        self.events: list[PodEvent | ContainerEvent] = []
        self.answer: Callable[[RequestedContainer], CpuAnswer] = lambda asked: CpuAnswer()
        self.at_list = CpuAnswer()
        self.records: AbstractSet[Verb] = frozenset(Verb) - DECIDED - {Verb.START}

    def decide(self, verb: Verb, container: RequestedContainer, pod: NriPod | None) -> CpuAnswer:
        self.asked_for.append((verb, container))
        self.pods.append(pod)
        return self.answer(container)

    def synchronize(self, listed: Listed, pods: Sequence[NriPod]) -> CpuAnswer:
        self.lists.append(listed)
        self.pods += pods
        return self.at_list

    def record(self, event: PodEvent | ContainerEvent) -> None:
        self.events.append(event)


class Deciding(Connected):
    """A plugin with such an allocator."""

    def __init__(self, runtimes: NriRuntimes) -> None:
        self.decided = Decider()
        super().__init__(runtimes, decider=self.decided)


@pytest.fixture
def deciding(runtimes: NriRuntimes) -> Iterator[Deciding]:
    made = Deciding(runtimes)
    made.plugin.start()
    yield made
    made.plugin.stop(PATIENCE)


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def updates(sent: Any) -> list[tuple[str, str, bool]]:
    return [(each.container_id, each.linux.resources.cpu.cpus, each.ignore_failure) for each in sent]


OTHERS = (SideUpdate(ContainerId("c7"), CpuSet((0,))), SideUpdate(ContainerId("c8"), CpuSet((0, 1))))
SENT = [("c7", "0", True), ("c8", "0-1", True)]


def limited(**more: Any) -> Any:
    made = container("c1", **more)
    cpu = made.linux.resources.cpu
    cpu.shares.value, cpu.quota.value, cpu.period.value = 2048, 200000, 100000
    return made


def test_a_creation_shows_the_containers_devices(runtimes: NriRuntimes, deciding: Deciding) -> None:
    runtime = begun(runtimes, deciding)
    made = limited(state=CREATED, env=[b"PATH=/bin", b"ODD=\xff", b"PCIDEVICE_X=0000:3b:00.0"])
    for path, kind, major, minor in ((b"/dev/gpu", b"c", 226, 128), (b"/dev/\xff", b"b", 8, 0), (b"p", b"p", 0, 0)):
        made.linux.devices.add(path=path, type=kind, major=major, minor=minor)
    runtime.call("CreateContainer", MESSAGES["CreateContainerRequest"](pod=pod(), container=made))
    [(_, asked)] = deciding.decided.asked_for
    assert asked.devices == {"0000:3b:00.0": "PCIDEVICE_X", "c226:128": "/dev/gpu",
                             "b8:0": "/dev/\N{REPLACEMENT CHARACTER}"}
    assert (asked.shares, asked.quota) == (2048, 200000)


def test_a_creation_is_decided_on_before_it_is_answered(runtimes: NriRuntimes, deciding: Deciding) -> None:
    runtime = begun(runtimes, deciding)
    deciding.decided.answer = lambda asked: CpuAnswer(
        Adjustment(cpus("2-3"), cpus("1"), {"granted": "2-3"}, {"CMK_CPUS_ASSIGNED": "2-3"}), OTHERS)
    kata = pod(runtime_handler="kata", annotations={"a": "pod's"})
    kata.linux.cgroup_parent = "/kubepods/burstable/pod-u-1"
    kata.linux.pod_overhead.cpu.shares.value = 2500
    reply = runtime.call("CreateContainer", MESSAGES["CreateContainerRequest"](
        pod=kata, container=limited(state=CREATED, annotations={"a": "its own"})))
    made = MESSAGES.decode("CreateContainerResponse", reply.payload)
    assert dict(made.adjust.annotations) == {"granted": "2-3"}
    assert [(each.key, each.value) for each in made.adjust.env] == [("CMK_CPUS_ASSIGNED", "2-3")]
    assert (made.adjust.linux.resources.cpu.cpus, made.adjust.linux.resources.cpu.mems) == ("2-3", "1")
    assert not made.adjust.linux.resources.cpu.HasField("quota")
    assert updates(made.update) == SENT
    [(verb, asked)] = deciding.decided.asked_for
    assert verb is Verb.CREATE
    assert (asked.id, asked.sandbox, asked.name, asked.namespace, asked.pod, asked.pod_uid) == (
        "c1", "pod1", "app", "default", "web", "u-1")
    assert (asked.annotations, asked.pod_annotations) == ({"a": "its own"}, {"a": "pod's"})
    assert (asked.shares, asked.quota, asked.period, asked.cpuset, asked.mems) == (2048, 200000, 100000, None, None)
    assert (asked.vm_overhead, asked.guaranteed) == (2, False)
    assert deciding.decided.pods[-1] is not None
    assert (deciding.decided.pods[-1].id, deciding.decided.pods[-1].handler) == ("pod1", "kata")
    assert (asked.state, asked.time_ns > 0) == (ContainerState.CREATED, True)
    event = deciding.fact()
    assert isinstance(event, ContainerEvent)
    assert (event.verb, event.container.cpus) == (Verb.CREATE, cpus("2-3"))
    given = deciding.fact()
    assert isinstance(given, CpusGiven)
    assert given.cpus == {"c7": cpus("0"), "c8": cpus("0-1")}


def test_a_refusal_is_the_runtimes_error_and_no_event(runtimes: NriRuntimes, deciding: Deciding) -> None:
    runtime = begun(runtimes, deciding)
    deciding.decided.answer = lambda asked: CpuAnswer(refusal="no 4 CPUs of one cache are free; the most is 2")
    reply = runtime.call("CreateContainer", MESSAGES["CreateContainerRequest"](pod=pod(), container=container()))
    assert (reply.code, reply.message, reply.payload) == (2, "no 4 CPUs of one cache are free; the most is 2", b"")
    deciding.decided.answer = lambda asked: CpuAnswer()
    assert runtime.call("StopContainer", MESSAGES["EventRequest"](pod=pod(), container=container())).code == 0
    event = deciding.fact()
    assert isinstance(event, ContainerEvent)
    assert event.verb is Verb.STOP


def test_an_update_has_what_is_asked_for_alone(runtimes: NriRuntimes, deciding: Deciding) -> None:
    runtime = begun(runtimes, deciding)
    deciding.decided.answer = lambda asked: CpuAnswer(updates=(SideUpdate(ContainerId("c1"), cpus("2-4")), *OTHERS))
    request = MESSAGES["UpdateContainerRequest"](pod=pod(), container=limited(cpus="2-3"))
    request.linux_resources.cpu.quota.value = 300000
    reply = runtime.call("UpdateContainer", request)
    assert updates(MESSAGES.decode("UpdateContainerResponse", reply.payload).update) == [("c1", "2-4", True), *SENT]
    [(verb, asked)] = deciding.decided.asked_for
    assert (verb, asked.shares, asked.quota, asked.period, asked.cpuset) == (
        Verb.UPDATE, None, 300000, None, None)
    event = deciding.fact()
    assert isinstance(event, ContainerEvent)
    assert (event.verb, event.container.cpus, event.requested) == (Verb.UPDATE, cpus("2-3"), cpus("2-4"))
    given = deciding.fact()
    assert isinstance(given, CpusGiven)
    assert given.cpus.keys() == {"c7", "c8"}


def test_a_stop_may_carry_updates(runtimes: NriRuntimes, deciding: Deciding) -> None:
    runtime = begun(runtimes, deciding)
    deciding.decided.answer = lambda asked: CpuAnswer(updates=OTHERS)
    reply = runtime.call("StopContainer", MESSAGES["EventRequest"](pod=pod(), container=container(state=STOPPED)))
    assert updates(MESSAGES.decode("StopContainerResponse", reply.payload).update) == SENT
    assert deciding.decided.asked_for[0][1].state is ContainerState.STOPPED


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainer", "StopContainer"])
def test_a_decision_for_nothing_is_the_empty_answer(runtimes: NriRuntimes, deciding: Deciding, method: str) -> None:
    runtime = begun(runtimes, deciding)
    reply = runtime.call(method, MESSAGES["EventRequest"](pod=pod(), container=container()))
    assert (reply.code, reply.payload) == (0, b"")


def test_an_update_to_no_cpu_is_left_out(runtimes: NriRuntimes, deciding: Deciding) -> None:
    """It would mean no change, and the container would stay on CPUs that are another's by now."""
    runtime = begun(runtimes, deciding)
    deciding.decided.answer = lambda asked: CpuAnswer(updates=(SideUpdate(ContainerId("c7"), CpuSet()),))
    reply = runtime.call("CreateContainer", MESSAGES["CreateContainerRequest"](pod=pod(), container=container()))
    assert reply.payload == b""


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainer", "StopContainer"])
def test_an_allocator_that_fails_lets_everything_through(runtimes: NriRuntimes, deciding: Deciding, method: str,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    runtime = begun(runtimes, deciding)

    def failing(asked: RequestedContainer) -> CpuAnswer:
        raise RuntimeError("a mistake")

    deciding.decided.answer = failing
    reply = runtime.call(method, MESSAGES["EventRequest"](pod=pod(), container=container()))
    assert (reply.code, reply.payload) == (0, b"")
    assert isinstance(deciding.fact(), ContainerEvent)
    assert "failed sandbox=pod1 container=c1 name=app: its CPUs are left as they are" in caplog.text
    assert "a mistake" in caplog.text


def test_an_answer_that_cannot_be_encoded_lets_the_call_through(runtimes: NriRuntimes, deciding: Deciding) -> None:
    runtime = begun(runtimes, deciding)
    deciding.decided.answer = lambda asked: CpuAnswer(Adjustment(cpus("2-3"), None, {"granted": "\ud800"}, {}), OTHERS)
    reply = runtime.call("CreateContainer", MESSAGES["CreateContainerRequest"](pod=pod(), container=container()))
    assert (reply.code, reply.payload) == (0, b"")
    event = deciding.fact()
    assert isinstance(event, ContainerEvent)
    assert event.container.cpus is None
    assert runtime.state_change(Verb.RUN_POD, pod()).code == 0, "the connection goes on"
    assert isinstance(deciding.fact(), PodEvent), "no CPUs were given to others"


def test_a_record_that_fails_lets_everything_through(runtimes: NriRuntimes, deciding: Deciding,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = begun(runtimes, deciding)
    monkeypatch.setattr(deciding.decided, "record", None)
    assert runtime.call("RemoveContainer", MESSAGES["EventRequest"](pod=pod(), container=container())).code == 0
    assert isinstance(deciding.fact(), ContainerEvent)


@pytest.mark.parametrize("verb", sorted(HANDLED))
def test_a_line_for_each_call_names_its_container(runtimes: NriRuntimes, deciding: Deciding, verb: Verb,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    runtime = begun(runtimes, deciding)
    caplog.set_level(logging.DEBUG, "vmpin.sources.nri")
    caplog.clear()
    method = next(name for name, number in METHODS.items() if number is verb)
    runtime.call(method, MESSAGES["EventRequest"](pod=pod(), container=None if verb in POD_VERBS else container()))
    deciding.fact()
    subject = "sandbox=pod1" + ("" if verb in POD_VERBS else " container=c1 name=app")
    [record] = [record for record in caplog.records if record.getMessage().startswith("nri: ")]
    assert record.getMessage().startswith(f"nri: {verb.name} {subject}")
    assert pod_of_line(record) == "default/web"


def test_every_event_that_is_asked_for_has_a_method() -> None:
    assert mask(*HANDLED) == EVENTS
    assert {METHODS[name] for name in METHODS} >= HANDLED >= DECIDED


def test_a_list_is_answered_with_what_the_allocator_gives(runtimes: NriRuntimes, deciding: Deciding) -> None:
    deciding.decided.at_list = CpuAnswer(updates=OTHERS)
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    first = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](
        pods=[pod(runtime_handler="kata")], containers=[container("c7", cpus="0-3")], more=True))
    assert not MESSAGES.decode("SynchronizeResponse", first.payload).update
    assert not deciding.decided.lists
    last = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](containers=[container("c8", state=CREATED)]))
    assert updates(MESSAGES.decode("SynchronizeResponse", last.payload).update) == SENT
    [listed] = deciding.decided.lists
    assert listed.sandboxes == {"pod1"}
    assert [(each.id, each.pod, each.cpuset, each.state) for each in listed.containers] == [
        ("c7", "web", cpus("0-3"), ContainerState.RUNNING), ("c8", "web", None, ContainerState.CREATED)]
    assert [(each.id, each.handler) for each in deciding.decided.pods if each is not None] == [("pod1", "kata")]
    assert isinstance(deciding.fact(), Synced)
    given = deciding.fact()
    assert isinstance(given, CpusGiven)


def test_nothing_is_decided_before_the_list(runtimes: NriRuntimes, deciding: Deciding) -> None:
    """The ledger does not know yet what runs."""
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    reply = runtime.call("CreateContainer", MESSAGES["CreateContainerRequest"](pod=pod(), container=container()))
    assert reply.payload == b""
    runtime.state_change(Verb.REMOVE, pod(), container())
    assert (deciding.decided.asked_for, deciding.decided.events) == ([], [])


def test_what_needs_no_answer_is_taken_in_once(runtimes: NriRuntimes, deciding: Deciding) -> None:
    runtime = begun(runtimes, deciding)
    for event in range(1, 12):
        pods_own = event in (Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD)
        runtime.state_change(event, pod(), None if pods_own else container())
        deciding.fact()
    assert [each.verb for each in deciding.decided.events] == [
        Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD, Verb.POST_CREATE, Verb.POST_START, Verb.POST_UPDATE, Verb.REMOVE]


def test_no_update_is_ever_sent_unasked(runtimes: NriRuntimes, deciding: Deciding) -> None:
    """NRI's UpdateContainers hangs runtimes (containerd#13733): RegisterPlugin is the only call, whatever is decided.
    """
    deciding.decided.at_list = CpuAnswer(updates=OTHERS)
    deciding.decided.answer = lambda asked: CpuAnswer(updates=OTHERS)
    runtime = begun(runtimes, deciding, container("c7"))
    assert isinstance(deciding.fact(), CpusGiven)
    for method in ("CreateContainer", "UpdateContainer", "StopContainer", "RemoveContainer", "RemovePodSandbox"):
        assert runtime.call(method, MESSAGES["EventRequest"](pod=pod(), container=container())).code == 0
    deciding.plugin.reconnect()
    assert runtime.closed()
    while not isinstance(deciding.fact(), Disconnected):
        pass
    second = begun(runtimes, deciding, container("c7"))
    assert second.state_change(Verb.RUN_POD, pod()).code == 0
    assert (runtime.asked, second.asked) == ([], [])


def call(method: str, message: Any) -> bytes:
    """A call of the runtime's, as bytes."""
    raw = ttrpc.encode(ttrpc.Call(1, PLUGIN_SERVICE, method, message.SerializeToString()))
    return ttrpc.frames(ttrpc.PLUGIN, raw)


def event(cpus: str = "", requested: str | None = None) -> Any:
    """The message of a call about a container. :param requested: the CPUs of an update."""
    if requested is None:
        return MESSAGES["EventRequest"](pod=pod(runtime_handler="h"), container=container(cpus=cpus))
    made = MESSAGES["UpdateContainerRequest"](pod=pod(runtime_handler="h"), container=container(cpus=cpus))
    made.linux_resources.cpu.cpus = requested
    return made


OF_POD = MESSAGES["EventRequest"](pod=pod(runtime_handler="h"))


@pytest.mark.parametrize("permitted", [False, True])
@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize(("method", "message", "container_id", "cpus"), [
    ("RunPodSandbox", OF_POD, "", None), ("StopPodSandbox", OF_POD, "", None), ("RemovePodSandbox", OF_POD, "", None),
    ("CreateContainer", event("2-3"), "c1", "2-3"), ("PostStartContainer", event(), "c1", None),
    ("StopContainer", event("2"), "c1", "2"), ("UpdateContainer", event("2-3", requested=""), "c1", "2-3"),
    ("UpdateContainer", event("2-3", requested="4"), None, None), ("CreateContainer", event("x"), None, None),
    ("Synchronize", MESSAGES["SynchronizeRequest"](), None, None)])
def test_an_event_may_wait_where_it_requests_no_cpus_and_the_node_permits_it(
        method: str, message: Any, container_id: str | None, cpus: str | None, decides: bool, permitted: bool) -> None:
    """One whose CPUs cannot be read is not delayed; a decider's is decoded before, and is one without CPUs.
    :param container_id: None where the node is not asked."""
    if decides and message == event("x"):
        container_id = "c1"
    questions: list[CallFacts] = []

    def can_wait(facts: CallFacts) -> bool:
        questions.append(facts)
        return permitted

    session = NriSession("vmpin", "90", NriCounters(), set(), {}, 0, Decider() if decides else None, can_wait)
    [_] = session.feed(call("Synchronize", MESSAGES["SynchronizeRequest"]()))
    [(_, outcome, _)] = session.feed(call(method, message))
    asked = [] if container_id is None else [CallFacts(METHODS[method], SandboxId("pod1"), ContainerId(container_id),
                                                       "h", None if cpus is None else CpuSet.parse(cpus))]
    assert questions == asked
    assert outcome.waits is (bool(asked) and permitted)


@pytest.mark.parametrize(("answer", "waits"), [
    (CpuAnswer(), True), (CpuAnswer(Adjustment(CpuSet((2,)), None, {}, {})), True), (CpuAnswer(updates=OTHERS), False),
    (CpuAnswer(refusal="no"), False)])
def test_an_event_that_changes_others_cpus_does_not_wait(answer: CpuAnswer, waits: bool) -> None:
    decided = Decider()
    decided.answer = lambda asked: answer
    session = NriSession("vmpin", "90", NriCounters(), set(), {}, 0, decided, lambda facts: True)
    [_] = session.feed(call("Synchronize", MESSAGES["SynchronizeRequest"]()))
    [(_, outcome, _)] = session.feed(call("CreateContainer", event()))
    assert outcome.waits is waits
