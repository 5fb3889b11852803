"""Who is placed again, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin import config, places
from vmpin.cpuset import CpuSet
from vmpin.model import SandboxId, ThreadId, ThreadRole, VmmType
from vmpin.observe import Process, Vm
from vmpin.placement import Placement, Request, place
from vmpin.places import Places
from vmpin.state import DesiredState, SandboxState
from vmpin.topology import Topology

ONE, TWO = SandboxId("one"), SandboxId("two")


def vm(sandbox: SandboxId, pid: int) -> Vm:
    return Vm(sandbox, VmmType.QEMU, Process(pid, ThreadId(pid, 1), ThreadRole.EMULATOR, ["qemu-system-x86_64"]))


@pytest.fixture
def known(tmp_path: Path) -> Places:
    made = Places(config.load(None, {}, {"paths.run": str(tmp_path)}), Topology.build(CpuSet(range(4))), None, {})
    made.dirty = {ONE, TWO}
    return made


STATE = DesiredState({sandbox: SandboxState(sandbox) for sandbox in (ONE, TWO)})
VMS = {ONE: vm(ONE, 10), TWO: vm(TWO, 20)}


def test_nobody_is_placed_again_for_whom_nothing_changed(known: Places) -> None:
    moved: list[SandboxId] = []
    assert known.place(STATE, VMS, moved.append) == {ONE, TWO}
    assert (set(moved), known.learned) == ({ONE, TWO}, True)
    known.learned = False
    assert known.place(STATE, VMS, moved.append) == set()
    known.dirty = {ONE}
    assert known.place(STATE, VMS, moved.append) == set()  # it is where it was
    assert (len(moved), known.learned) == (2, False)


def test_who_has_been_placed_is_told_of_though_the_next_one_fails(known: Places,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SandboxId] = []

    def failing(request: Request, *args: object) -> Placement:
        asked.append(request.id)
        if len(asked) == 2:
            raise ZeroDivisionError
        return place(request, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "place", failing)
    moved: list[SandboxId] = []
    with pytest.raises(ZeroDivisionError):
        known.place(STATE, VMS, moved.append)
    assert moved == asked[:1] == list(known.placements)
