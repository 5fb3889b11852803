"""The owner of the ledger, beside a model of a runtime: what is in the file when an answer goes out, and that a kill
between any two steps leaves no CPU to two containers, and none without an owner."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.vm_size import VmSize
from vmpin.reconcile.state_file import MAX_BYTES
from vmpin.sources.nri.nri_events import ContainerEvent, CpuAnswer, NriContainer, NriPod, PodEvent
from vmpin.wire.nri_enums import RUNNING, Verb

ONLINE = CpuSet(range(8))
RESERVED = CpuSet((0,))
MACHINE = Topology.build(ONLINE, cores=[CpuSet((cpu, cpu + 1)) for cpu in range(0, 8, 2)], caches=[ONLINE],
                         nodes={0: ONLINE})
POLICY = "cpu-policy.vmpin.io"


def options(mode: AllocationMode = AllocationMode.ON, delay: float = 0.0, headroom: int = 0) -> AllocationOptions:
    return AllocationOptions(mode, RESERVED, grow_delay_seconds=delay, pool_headroom=headroom)


class Box(NamedTuple):
    """A container as the runtime has it."""

    asked: RequestedContainer
    exclusive: bool
    cpus: CpuSet | None = None
    exists: bool = False


class Runtime:
    """Pods and containers, and what a runtime does with answers."""

    def __init__(self, directory: Path, headroom: int = 0) -> None:
        self.path, self.headroom = directory / "ledger.json", headroom
        self.boxes: dict[ContainerId, Box] = {}
        self.sandboxes: set[SandboxId] = set()
        self.allocator = self.made()

    def made(self, mode: AllocationMode = AllocationMode.ON, boot_id: str = "boot") -> CpuAllocator:
        chosen = options(mode, headroom=self.headroom)
        return CpuAllocator(MACHINE, chosen, LedgerFile(self.path, boot_id), lambda pod: VmSize())

    def box(self, name: str, size: int = 0) -> RequestedContainer:
        """A container of a pod of its own; `size`: CPUs for it alone."""
        self.sandboxes.add(SandboxId(f"pod-{name}"))
        found = RequestedContainer(
            ContainerId(name), SandboxId(f"pod-{name}"), "main", "default", name, f"uid-{name}",
            pod_annotations={POLICY: "exclusive"} if size else {}, shares=1024 * (size or 1),
            quota=100_000 * size or None, period=100_000 if size else None)
        self.boxes[found.id] = Box(found, bool(size))
        return found

    def list(self) -> None:
        """A new connection."""
        listed = Listed(frozenset(self.sandboxes), tuple(
            box.asked._replace(cpuset=box.cpus) for box in self.boxes.values() if box.exists))
        for _ in self.applied(self.allocator.synchronize(listed)):
            pass

    def applied(self, answer: CpuAnswer) -> Iterator[str]:
        """Its updates, one after the other."""
        for container, cpus in answer.updates:
            if container in self.boxes and self.boxes[container].exists:
                self.boxes[container] = self.boxes[container]._replace(cpus=cpus)
                self.check()
            yield f"{container} updated"

    def create(self, name: str, size: int = 0) -> Iterator[str]:
        """From the request to the report that it runs, step by step."""
        asked = self.box(name, size)
        yield "asked"
        answer = self.allocator.decide(Verb.CREATE, asked)
        assert not answer.refusal
        yield "answered"
        yield from self.applied(answer)
        adjusted = answer.adjustment
        if adjusted is not None:
            asked = asked._replace(annotations={**asked.annotations, **adjusted.annotations})
        self.boxes[asked.id] = Box(asked, bool(size), None if adjusted is None else adjusted.cpus, exists=True)
        yield "created"
        self.boxes[asked.id] = self.boxes[asked.id]._replace(asked=asked._replace(state=ContainerState.RUNNING))
        self.event(Verb.POST_START, asked)
        yield "started"

    def remove(self, name: str) -> Iterator[str]:
        box = self.boxes[ContainerId(name)]
        asked = box.asked._replace(state=ContainerState.STOPPED)
        answer = self.allocator.decide(Verb.STOP, asked)
        del self.boxes[ContainerId(name)]
        yield "stopped"
        yield from self.applied(answer)
        self.event(Verb.REMOVE, asked)
        yield "removed"
        self.sandboxes.discard(asked.sandbox)
        self.allocator.record(PodEvent(Verb.REMOVE_POD, pod(asked.sandbox), 1))
        yield "ended"
        yield from self.by_cri()

    def by_cri(self) -> Iterator[str]:
        """What the loop's task gives by CRI calls, each of which comes back as an update."""
        while (update := self.allocator.next_update(())) is not None:
            container, cpus = update
            yield f"{container} begun"
            box = self.boxes[container]
            answer = self.allocator.decide(Verb.UPDATE, box.asked._replace(cpuset=cpus, shares=None))
            self.boxes[container] = box._replace(cpus=dict(answer.updates).get(container, cpus))
            yield from self.applied(answer)
            self.check()
            yield f"{container} given"
            self.allocator.given(update)

    def event(self, verb: Verb, asked: RequestedContainer) -> None:
        self.allocator.record(ContainerEvent(verb, pod(asked.sandbox), NriContainer(
            asked.id, asked.sandbox, asked.name, RUNNING, None, {}, 0), 1))

    # What has to be so at any moment

    def check(self) -> None:
        """No CPU of one container's own is another's."""
        for box in self.boxes.values():
            if box.exists and box.exclusive and box.cpus:
                assert RESERVED.isdisjoint(box.cpus)
                for other in self.boxes.values():
                    if other.exists and other is not box and other.cpus is not None:
                        assert box.cpus.isdisjoint(other.cpus), (box, other)

    def settled(self) -> None:
        """After a list, and what is due after it: everything that runs has its CPUs, and every CPU has an owner."""
        for _ in self.by_cri():
            pass
        self.check()
        ledger, granted = self.allocator.ledger(), self.allocator.assignments()
        assert ledger is not None
        assert granted is not None
        # A pod keeps the CPUs of its stopped containers.
        assert {grant.sandbox for grant in ledger.grants.values()} <= self.sandboxes
        held = ledger.out_of_pool()
        own = union(box.cpus or EMPTY for box in self.boxes.values() if box.exists and box.exclusive)
        assert own <= held
        for box in self.boxes.values():
            if box.exists and box.exclusive:
                assert len(box.cpus or EMPTY) == (box.asked.quota or 0) // 100_000
            elif box.exists:
                assert box.cpus == ledger.shared
        assert union(granted.exclusive.values()) == own
        assert granted.pool == ledger.shared
        assert len(ONLINE - held - ledger.shared) == min(self.headroom, len(ONLINE - held - RESERVED))


def pod(sandbox: SandboxId) -> NriPod:
    return NriPod(sandbox, sandbox, "default", f"uid-{sandbox}", "", 0, {}, "")


def story(runtime: Runtime) -> Iterator[str]:
    runtime.list()
    yield "listed"
    for name, size in (("shared", 0), ("one", 2), ("side", 0), ("two", 3)):
        yield from runtime.create(name, size)
    yield from runtime.remove("one")
    yield from runtime.create("three", 3)
    yield from runtime.remove("two")


def test_without_a_kill_everything_is_given_and_comes_back(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    for _ in story(runtime):
        runtime.check()
    runtime.settled()


def kept(path: Path) -> None:
    """The file as it is."""


def torn(path: Path) -> None:
    if path.exists():
        path.write_bytes(path.read_bytes()[:-20])


def gone(path: Path) -> None:
    path.unlink(missing_ok=True)


def test_with_headroom_an_answer_updates_no_other_container(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path, headroom=2)
    runtime.list()
    list(runtime.create("shared"))
    assert not runtime.allocator.decide(Verb.CREATE, runtime.box("one", 2)).updates
    assert list(runtime.by_cri()) == ["shared begun", "shared given"], "headroom returns in the background"
    assert runtime.boxes[ContainerId("shared")].cpus == CpuSet((0, 1, 6, 7))


@pytest.mark.parametrize(("file", "every", "headroom"), [(kept, 1, 0), (torn, 4, 0), (gone, 3, 0), (kept, 1, 2),
                                                         (gone, 3, 1)])
def test_a_kill_at_any_step_leaves_no_overlap_and_no_leak(tmp_path: Path, file: Callable[[Path], None],
                                                          every: int, headroom: int) -> None:
    (tmp_path / "all").mkdir()
    steps = list(story(Runtime(tmp_path / "all", headroom)))
    assert len(steps) > 25
    for number in range(0, len(steps), every):
        (tmp_path / str(number)).mkdir()
        killed_at(number, Runtime(tmp_path / str(number), headroom), file)


def killed_at(step: int, runtime: Runtime, file: Callable[[Path], None]) -> None:
    steps = story(runtime)
    for _ in range(step + 1):
        next(steps)
    file(runtime.path)
    runtime.allocator = runtime.made()  # the runtime goes on without it until it is back
    runtime.list()
    runtime.settled()
    before = {name: box.cpus for name, box in runtime.boxes.items()}
    runtime.allocator = runtime.made()
    runtime.list()
    assert {name: box.cpus for name, box in runtime.boxes.items()} == before, "a restart moves nothing"
    for name, box in list(runtime.boxes.items()):
        if box.exists:
            list(runtime.remove(name))
        else:
            del runtime.boxes[name]
    runtime.sandboxes.clear()
    runtime.list()
    assert runtime.allocator.assignments() is not None
    list(runtime.create("all", 6))
    list(runtime.create("last"))
    runtime.settled()


def test_the_grant_is_in_the_file_before_the_answer(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.list()
    asked = runtime.box("one", 2)
    answer = runtime.allocator.decide(Verb.CREATE, asked)
    assert answer.adjustment is not None
    body = json.loads(runtime.path.read_bytes())["body"]
    assert body["boot_id"] == "boot"
    found = LedgerFile(runtime.path, "boot").load()
    assert found is not None
    assert found.grants[asked.id].cpus == answer.adjustment.cpus
    assert LedgerFile(runtime.path, "another boot").load() is None


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.json"
    path.write_text('{"crc32":1,"body":{}}')
    assert LedgerFile(path, "boot").load() is None
    assert (tmp_path / "ledger.json.bad").exists()
    assert "the checksum is wrong: set aside as ledger.json.bad" in caplog.text


def test_a_file_that_is_no_file_or_too_large_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, aside = tmp_path / "ledger.json", tmp_path / "ledger.json.bad"
    path.touch()
    os.truncate(path, MAX_BYTES + 1)  # without a block of the disk
    assert LedgerFile(path, "boot").load() is None
    assert (path.exists(), aside.stat().st_size) == (False, MAX_BYTES + 1)
    assert f"is larger than {MAX_BYTES} bytes: set aside" in caplog.text
    path.symlink_to("/etc/hostname")
    assert LedgerFile(path, "boot").load() is None
    assert aside.is_symlink()


def test_a_file_that_cannot_be_written_is_said_once_and_cpus_are_given(tmp_path: Path,
                                                                      caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(tmp_path / "none")
    runtime.list()
    list(runtime.create("one", 2))
    list(runtime.create("two", 2))
    assert caplog.text.count("the ledger cannot be saved") == 1
    runtime.settled()


def test_where_the_file_cannot_be_written_an_older_one_takes_nothing_back(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.list()
    for name in ("one", "shared"):
        list(runtime.create(name, 2 * (name == "one")))
    (tmp_path / ".ledger.json.new" / "full").mkdir(parents=True)
    one = runtime.boxes[ContainerId("one")]
    resized = one.asked._replace(shares=4096, quota=400_000)
    answer = runtime.allocator.decide(Verb.UPDATE, resized)
    runtime.boxes[resized.id] = one._replace(asked=resized, cpus=dict(answer.updates)[resized.id])
    list(runtime.applied(answer))
    runtime.allocator = runtime.made()
    runtime.list()
    runtime.settled()


def test_a_refusal_leaves_the_grants_as_they_were(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.list()
    list(runtime.create("one", 4))
    before = runtime.allocator.ledger()
    answer = runtime.allocator.decide(Verb.CREATE, runtime.box("two", 4))
    after = runtime.allocator.ledger()
    assert (answer.adjustment, answer.updates, "4" in answer.refusal) == (None, (), True)
    assert before is not None
    assert after is not None
    assert (after.grants, after.shared) == (before.grants, before.shared)
    assert runtime.allocator.refusals == {"cpus": 1}


def test_each_refusal_of_a_list_is_counted_once(tmp_path: Path) -> None:
    """Containers that were created while vmpin was away; before, all of them counted as one refusal."""
    runtime = Runtime(tmp_path)
    for name in ("one", "two", "three"):
        runtime.boxes[ContainerId(name)] = Box(runtime.box(name, 8), exclusive=False, exists=True)
    runtime.list()
    assert runtime.allocator.refusals == {"cpus": 3}
    runtime.list()
    assert runtime.allocator.refusals == {"cpus": 3}


def test_the_devices_of_a_creation_and_of_a_list_are_resolved_and_kept(tmp_path: Path) -> None:
    asked_for: list[set[str]] = []

    def nodes_of(names: Collection[str]) -> dict[str, int]:
        asked_for.append(set(names))
        return {"c226:128": 1}

    two = MACHINE._replace(nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))})
    runtime = Runtime(tmp_path)
    runtime.allocator = CpuAllocator(two, options(), LedgerFile(runtime.path, "boot"), lambda pod: VmSize(),
                                     nodes_of)
    runtime.list()
    near = {POLICY: "exclusive", "cpu-near.vmpin.io/container.main": " devices"}
    asked = runtime.box("one", 2)._replace(pod_annotations=near, devices={"c226:128": "/dev/gpu", "c1:3": "/dev/null"})
    answer = runtime.allocator.decide(Verb.CREATE, asked)
    assert answer.adjustment is not None
    assert asked_for == [{"c226:128", "c1:3", "devices"}]
    kept = LedgerFile(runtime.path, "boot").load()
    assert kept is not None
    assert (kept.grants[asked.id].near, kept.grants[asked.id].cpus) == (CpuSet((1,)), CpuSet((4, 5)))
    # Another container was created without vmpin: the list shows it, and its devices.
    missed = runtime.box("two", 2)._replace(pod_annotations=near, devices={"c226:128": "/dev/gpu"})
    runtime.allocator.synchronize(Listed(frozenset(runtime.sandboxes), (
        asked._replace(cpuset=answer.adjustment.cpus, devices={}), missed)))
    ledger = runtime.allocator.ledger()
    assert ledger is not None
    assert (ledger.grants[asked.id].near, ledger.grants[missed.id].cpus) == (CpuSet((1,)), CpuSet((6, 7)))


@pytest.mark.parametrize("key", ["near", "cpu-near", "cpu-near.vmpin.io"])
def test_a_device_in_a_changed_wish_is_resolved(tmp_path: Path, key: str) -> None:
    two = MACHINE._replace(nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))})
    runtime = Runtime(tmp_path)
    runtime.allocator = CpuAllocator(two, options(), LedgerFile(runtime.path, "boot"), lambda pod: VmSize(),
                                     lambda names: {name: 1 for name in names if name == "eth1"})
    runtime.list()
    list(runtime.create("one", 2))
    answer = runtime.allocator.change(ContainerId("one"), {key: "eth1"}, dry_run=True)
    assert answer.ledger.grants[ContainerId("one")].cpus == CpuSet((4, 5))


def test_growth_rides_in_the_answer_to_the_next_stop(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.list()
    for name, size in (("shared", 0), ("side", 0), ("one", 2)):
        list(runtime.create(name, size))
    steps = runtime.remove("one")
    while next(steps) != "ended":
        pass
    assert runtime.allocator.pause() == 0.0
    answer = runtime.allocator.decide(Verb.STOP, runtime.box("side"))
    assert dict(answer.updates) == {"shared": ONLINE}
    assert runtime.allocator.pause() is None


def test_a_cri_update_of_its_own_is_corrected_when_its_cpus_are_given_away_meanwhile(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.list()
    list(runtime.create("shared"))
    list(runtime.create("one", 2))
    steps = runtime.remove("one")
    while not next(steps).endswith("begun"):
        pass
    list(runtime.create("two", 2))
    assert list(steps)[-1] == "shared given"
    runtime.settled()


def test_observing_decides_and_answers_nothing(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.allocator = runtime.made(AllocationMode.OBSERVE)
    runtime.list()
    asked = runtime.box("one", 2)
    assert runtime.allocator.decide(Verb.CREATE, asked) == CpuAnswer()
    assert runtime.allocator.decide(Verb.CREATE, runtime.box("two", 7)) == CpuAnswer()
    ledger = runtime.allocator.ledger()
    assert ledger is not None
    assert len(ledger.grants[asked.id].cpus) == 2
    assert runtime.allocator.assignments() is None
    assert (runtime.allocator.expected(), runtime.allocator.pause()) == ({}, None)
    assert not runtime.path.exists()


def test_suspended_it_answers_nothing_until_the_next_list(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.list()
    runtime.allocator.suspend("the kubelet does")
    assert runtime.allocator.decide(Verb.CREATE, runtime.box("one", 2)) == CpuAnswer()
    assert runtime.allocator.assignments() is None
    runtime.allocator.suspend("")
    assert runtime.allocator.decide(Verb.CREATE, runtime.box("two", 2)) == CpuAnswer()
    runtime.list()
    assert runtime.allocator.decide(Verb.CREATE, runtime.box("three", 2)).adjustment is not None


def test_a_cpu_that_goes_offline_and_comes_back_is_still_its_containers(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.list()
    list(runtime.create("shared"))
    list(runtime.create("one", 2))
    own = runtime.boxes[ContainerId("one")].cpus
    assert own is not None
    runtime.allocator.renew(MACHINE._replace(online=ONLINE - CpuSet((own.first, 7))))
    list(runtime.by_cri())
    assert [str(runtime.boxes[ContainerId(name)].cpus) for name in ("one", "shared")] == [
        str(own - CpuSet((own.first,))), str(ONLINE - own - CpuSet((7,)))]
    runtime.allocator.renew(MACHINE)
    list(runtime.by_cri())
    assert runtime.boxes[ContainerId("one")].cpus == own
    runtime.settled()


def test_a_request_has_the_size_of_its_pods_vm(tmp_path: Path) -> None:
    allocator = CpuAllocator(MACHINE, options(), LedgerFile(tmp_path / "ledger.json", "boot"),
                             lambda pod: VmSize(True, 1, 9, 200))
    sandbox = SandboxId("pod-vm")
    asked = RequestedContainer(ContainerId("old"), sandbox, "old", state=ContainerState.RUNNING)
    allocator.synchronize(Listed(frozenset((sandbox,)), (asked,)), [pod(sandbox)])
    allocator.decide(Verb.CREATE, asked._replace(id=ContainerId("new"), name="new"), pod(sandbox))
    ledger = allocator.ledger()
    assert ledger is not None
    assert {(grant.vm, grant.vm_vcpus, grant.vm_most, grant.vm_part) for grant in ledger.grants.values()} == {
        (True, 1, 9, 200)}
    assert len(ledger.grants) == 2
