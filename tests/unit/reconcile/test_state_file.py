"""The state file: carried whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_states import BOOT, SAMPLE

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId, VcpuId, VcpuThreads
from vmpin.domain.sandbox_placement import Previous
from vmpin.errors import StateFileError
from vmpin.host import boottime
from vmpin.pinning.original_masks import OriginalMasks, ProcessMasks
from vmpin.reconcile import state_file, state_format
from vmpin.reconcile.state_format import SavedState

T = TypeVar("T")
DATA = Path(__file__).parents[2] / "data"

numbers = st.integers(0, 1 << 62)
cpus = st.frozensets(st.integers(0, 300), max_size=8).map(CpuSet)
threads = st.builds(ThreadId, st.integers(1, 1 << 22), numbers)
ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+:@-]{0,20}", fullmatch=True)
#: CLOCK_BOOTTIME ns: in the first second after boot.
moments = st.integers(0, 10**9)
#: Names come from annotations: anything.
names = st.text(st.characters(), max_size=12)


@st.composite
def known(draw: st.DrawFn, name: ContainerId) -> ContainerRecord:
    said = draw(st.dictionaries(st.sampled_from(Source), st.builds(
        CpusetReport, cpus, moments, st.lists(cpus, max_size=3).map(tuple)), max_size=3))
    source = draw(st.sampled_from(list(said) or list(Source)))
    container = Container(name, draw(names), said[source].cpuset if said else None, draw(st.none() | st.booleans()),
                          draw(st.sampled_from(ContainerState)), draw(st.booleans()), creating=draw(st.booleans()),
                          requested_cpuset=draw(st.none() | cpus))
    return ContainerRecord(container, source, draw(moments), draw(names), draw(st.none() | threads), said,
                           draw(st.booleans()))


@st.composite
def states(draw: st.DrawFn, name: SandboxId) -> SandboxState:
    containers = {ContainerId(each): draw(known(ContainerId(each)))
                  for each in draw(st.lists(ids, unique=True, max_size=3))}
    return SandboxState(name, draw(st.sampled_from(["oci", "vmm", "kata-go"])),
                        draw(st.none() | st.builds(Pod, names, names, names)), containers, draw(st.booleans()),
                        draw(st.none() | threads), draw(names), draw(st.booleans()))


previous = st.builds(Previous, cpus, st.dictionaries(
    st.integers(0, 4096).map(VcpuId), st.tuples(st.none() | cpus, st.none() | ids.map(ContainerId)), max_size=4),
    st.dictionaries(st.integers(0, 4096).map(VcpuId), st.integers(0, 300), max_size=4))
befores = st.builds(OriginalMasks, st.dictionaries(
    threads, st.builds(ProcessMasks, cpus, st.dictionaries(threads, cpus, max_size=3)), max_size=3))

vcpus = st.builds(VcpuThreads, threads, st.dictionaries(threads, st.integers(0, 4096).map(VcpuId), max_size=3),
                  st.frozensets(st.integers(0, 4096).map(VcpuId), max_size=3), st.sampled_from(["kvm_run", "qmp"]))


@st.composite
def checkpoints(draw: st.DrawFn) -> CpuManagerState:
    entries = draw(st.dictionaries(st.tuples(ids, ids), cpus, max_size=3))
    return CpuManagerState("static", draw(cpus), entries, draw(st.dictionaries(ids, cpus, max_size=2)),
                           draw(st.integers(2, 4)),
                           since={key: draw(st.integers(0, 10**9)) for key in entries}, written=draw(numbers))


@st.composite
def kept(draw: st.DrawFn) -> SavedState:
    sandboxes = [SandboxId(each) for each in draw(st.lists(ids, unique=True, max_size=3))]
    return SavedState(DesiredState({each: draw(states(each)) for each in sandboxes if draw(st.booleans())}),
                {each: draw(previous) for each in sandboxes if draw(st.booleans())},
                {each: draw(befores) for each in sandboxes if draw(st.booleans())},
                {each: draw(vcpus) for each in sandboxes if draw(st.booleans())}, draw(st.none() | checkpoints()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept())
def test_what_is_saved_is_loaded_the_same(tmp_path: Path, what: SavedState) -> None:
    path = tmp_path / "state.json"
    state_file.save(path, BOOT, what)
    assert state_file.load(path, BOOT) == (what, "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["state.json"]


def test_the_file_is_roots_alone_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state_file.save(path, BOOT, SAMPLE)
    first = path.stat()
    assert first.st_mode & 0o777 == 0o600
    state_file.save(path, BOOT, SavedState())
    assert path.stat().st_ino != first.st_ino
    assert state_file.load(path, BOOT) == (SavedState(), "")


def reported_at(time: int) -> SavedState:
    """A container that was reported then."""
    word = {Source.NRI: CpusetReport(CpuSet([2]), time)}
    known = ContainerRecord(Container(ContainerId("main"), "app", CpuSet([2])), Source.NRI, time, reports=word)
    return SavedState(DesiredState({SandboxId("pod-a"): SandboxState(SandboxId("pod-a"), containers={
        ContainerId("main"): known})}))


def times(kept: SavedState) -> set[int]:
    known = kept.state.sandboxes[SandboxId("pod-a")].containers[ContainerId("main")]
    return {known.time, known.reports[Source.NRI].time}


def test_a_time_that_is_yet_to_come_counts_as_now(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state_file.save(path, BOOT, reported_at(1 << 62))
    before = boottime.now()
    (found,) = times(state_file.load(path, BOOT)[0])
    assert before <= found <= boottime.now()


def test_no_file_is_nothing_kept(tmp_path: Path) -> None:
    assert state_file.load(tmp_path / "state.json", BOOT) == (SavedState(), "")


def test_what_is_of_another_boot_is_not_used_and_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state_file.save(path, BOOT, SAMPLE)
    assert state_file.load(path, "another") == (SavedState(), "")
    assert state_file.load(path, BOOT) == (SAMPLE, "")


@given(st.lists(st.sampled_from(["a", "b", "c", 'd"\\']), min_size=1, max_size=8), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_written_before_makes_no_difference(tmp_path: Path, names_: list[str], data: st.DataObject) -> None:
    """One sandbox after the other comes, changes or goes; the file is as if written anew each time."""
    written: state_format.Written = {}
    kept = SavedState()
    for each in names_:
        name = SandboxId(each)
        state = data.draw(st.none() | states(name))
        before = data.draw(st.none() | befores)
        last = data.draw(st.none() | previous)
        kept = SavedState(DesiredState(_with(kept.state.sandboxes, name, state)), _with(kept.previous, name, last),
                    _with(kept.originals, name, before))
        state_file.save(tmp_path / "one", BOOT, kept, written)
        state_file.save(tmp_path / "two", BOOT, kept)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
        found, trouble = state_file.load(tmp_path / "one", BOOT)
        assert trouble == ""
        assert found.originals == kept.originals
        assert written.keys() == kept.state.sandboxes.keys() | kept.previous.keys() | kept.originals.keys()


def _with(table: Mapping[SandboxId, T], name: SandboxId, value: T | None) -> dict[SandboxId, T]:
    return {**{key: known for key, known in table.items() if key != name}, **({} if value is None else {name: value})}


# Notes: what is to outlive a kill before the whole file is written


def test_a_note_is_taken_into_what_the_file_holds(tmp_path: Path) -> None:
    path, main, other = tmp_path / "notes", ThreadId(7, 100), ThreadId(8, 100)
    state_file.note(path, BOOT, SandboxId("a"), main, CpuSet.parse("0-3"))
    state_file.note(path, BOOT, SandboxId("a"), other, CpuSet.parse("1"))
    state_file.note(path, BOOT, SandboxId("b"), main, CpuSet.parse("2"))
    known = OriginalMasks({main: ProcessMasks(CpuSet.parse("0-7"))})
    kept = state_file.with_notes(path, BOOT, SavedState(originals={SandboxId("a"): known}))
    assert kept.originals == {
        SandboxId("a"): OriginalMasks({main: ProcessMasks(CpuSet.parse("0-7")),
                                       other: ProcessMasks(CpuSet.parse("1"))}),
        SandboxId("b"): OriginalMasks({main: ProcessMasks(CpuSet.parse("2"))})}
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_notes_of_another_boot_and_torn_ones_count_for_nothing(tmp_path: Path) -> None:
    path, main = tmp_path / "notes", ThreadId(7, 100)
    state_file.note(path, "another", SandboxId("a"), main, CpuSet.parse("0-3"))
    state_file.note(path, BOOT, SandboxId("b"), main, CpuSet.parse("1"))
    raw = path.read_bytes()
    for line in (b"{}", b"[]", b"[1,2,3,4,5]", f'["{BOOT}","c",true,1,"1"]'.encode(), b"\xff\xff", b"[" * 5000,
                 f'["{BOOT}","c",1,1,""]'.encode(), f'["{BOOT}","c",5000000,1,"1"]'.encode(),
                 f'["{BOOT}","c",1,-1,"1"]'.encode(), f'["{BOOT}","c",1,{2**63},"1"]'.encode(), raw[-20:-5]):
        path.write_bytes(line + b"\n" + raw + line)
        kept = state_file.with_notes(path, BOOT, SavedState())
        assert kept.originals == {SandboxId("b"): OriginalMasks({main: ProcessMasks(CpuSet.parse("1"))})}


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_notes_may_be_anything(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "notes").write_bytes(raw)
    assert state_file.with_notes(tmp_path / "notes", BOOT, SavedState()) == SavedState()


def test_no_notes_are_no_trouble(tmp_path: Path) -> None:
    kept = SavedState(originals={SandboxId("a"): OriginalMasks()})
    assert state_file.with_notes(tmp_path / "notes", BOOT, kept) is kept
    (tmp_path / "notes").mkdir()
    assert state_file.with_notes(tmp_path / "notes", BOOT, kept) is kept
    with pytest.raises(StateFileError):
        state_file.note(tmp_path / "notes", BOOT, SandboxId("a"), ThreadId(7, 1), CpuSet.parse("0"))


def test_a_recorded_state_file_is_read_and_written_the_same(tmp_path: Path) -> None:
    """The state file of the watcher before an update: a change of the format needs a new VERSION."""
    shutil.copy(DATA / "state.json", tmp_path / "state.json")
    kept, trouble = state_file.load(tmp_path / "state.json", BOOT)
    assert trouble == ""
    web, vmm = SandboxId("pod-c"), ThreadId(11, 12)
    app = ContainerRecord(
        Container(ContainerId("app"), "app", CpuSet.parse("4-5")), Source.NRI, 19, "/run/c", vmm,
        {Source.NRI: CpusetReport(CpuSet.parse("4-5"), 19, (CpuSet.parse("4"),)),
         Source.CGROUP: CpusetReport(CpuSet.parse("4-6"), 21)})
    assert kept == SAMPLE._replace(
        state=DesiredState({**SAMPLE.state.sandboxes, web: SandboxState(
            web, "nri", Pod("ns", "web", "u2"), {ContainerId("app"): app}, handler="kata-qemu", pod_by_nri=True)}),
        vcpus={web: VcpuThreads(vmm, {ThreadId(13, 14): VcpuId(0)}, frozenset({VcpuId(3)}), "kvm_run")},
        kubelet=CpuManagerState("static", CpuSet.parse("0-1"), {("u2", "app"): CpuSet.parse("4-5")}))
    state_file.save(tmp_path / "again.json", BOOT, kept)
    assert (tmp_path / "again.json").read_bytes() == (DATA / "state.json").read_bytes()
