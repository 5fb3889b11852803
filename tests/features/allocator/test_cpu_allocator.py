"""The owner of the ledger, beside a model of a runtime: what is in the file when an answer goes out, and that a kill
between any two steps leaves no CPU to two containers, and none without an owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from ledger_runtime import MACHINE, ONLINE, POLICY, Box, Runtime, options, pod

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationMode
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.vm_size import VmSize
from vmpin.sources.nri.nri_events import CpuAnswer
from vmpin.wire.nri_enums import Verb


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
