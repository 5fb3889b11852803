"""Interrupts in a watcher: readings by interval, the status, and that the feature costs nothing while it is off."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from interrupt_files import interrupts
from irq_tree import IrqTree
from irqs_part import DB, SHOP, part
from metered import metered
from trees import make_tree

from vmpin.config.loading import load
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.common import sealed_file
from vmpin.features.irqs import FEATURE, irqs_watcher_part
from vmpin.features.irqs.irq_claims import IrqClaim
from vmpin.features.irqs.irq_files import IrqFiles
from vmpin.features.irqs.irq_mover import FIXED, RESTING
from vmpin.features.irqs.irq_plan import IrqRoom
from vmpin.features.irqs.irqs_watcher_part import IrqReader, NodeIrqs, Owners
from vmpin.sources.nri.nri_events import Synced

NAMES = {142: "eth0-TxRx-3", 150: "vfio-msix[0](0000:3b:00.0)"}


def owners(**more: SandboxId) -> Owners:
    cpus: Mapping[int, SandboxId] = {2: SHOP, 3: SHOP, 6: DB, **{int(cpu[1:]): owner for cpu, owner in more.items()}}
    return Owners(cpus, IrqRoom(CpuSet.parse("0-7"), CpuSet(cpus), CpuSet.parse("0-1")), {SHOP: ThreadId(7, 1)},
                  {SHOP: CpuSet.parse("1-3")})


class Machine:
    """Its interrupts grow by `count`."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree = root, IrqTree(root)
        for number, name in NAMES.items():
            self.tree.add(number, name)
        make_tree(root, "sys/kernel/iommu_groups/12/devices/0000:3b:00.0/vendor = 1\nproc/7/fd/\n"
                  "proc/softirqs =     CPU0\n")
        (root / "proc/7/fd/3").symlink_to("/dev/vfio/12")
        self.counts: dict[tuple[int, int], int] = {}
        self.count()

    def count(self, **grown: int) -> None:
        """:param grown: by interrupt and CPU, as i142_2."""
        for key, count in grown.items():
            number, cpu = map(int, key[1:].split("_"))
            self.counts[number, cpu] = self.counts.get((number, cpu), 0) + count
        (self.root / "proc/interrupts").write_bytes(interrupts(range(8), NAMES, self.counts))


def test_an_interval_has_the_interrupts_of_cpus_that_kept_their_owner(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    reader = IrqReader(machine.tree.files, None)
    assert reader.read(owners()).seconds == 0.0
    machine.count(i142_2=310, i142_6=5, i142_0=7, i150_3=20)
    reading = reader.read(owners(c6=SHOP))
    assert reading.seconds > 0
    assert [(cpu.cpu, [row.name for row, _ in cpu.devices]) for cpu in reading.cpus] == [
        (2, ["eth0-TxRx-3"]), (3, ["vfio-msix[0](0000:3b:00.0)"])]
    assert {(cpu, str(kind)): count for (cpu, kind), count in reading.counts.items()} == {
        (2, "device"): 310, (3, "device"): 20}
    assert reading.owners == {"0000:3b:00.0": SHOP}
    assert [(device.row.irq, device.sandbox, str(device.cpus)) for device in reading.devices] == [(150, SHOP, "0-7")]


def test_the_devices_of_vms_are_looked_for_where_one_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, looked = Machine(tmp_path), list[int]()
    found = machine.tree.files.vfio_devices

    def devices(pid: int) -> Iterator[str]:
        looked.append(pid)
        return found(pid)

    monkeypatch.setattr(machine.tree.files, "vfio_devices", devices)
    reader = IrqReader(machine.tree.files, None)
    for _ in range(3):
        reader.read(owners())
    assert looked == [7]
    reader.read(owners()._replace(vms={DB: ThreadId(7, 5)}))
    assert looked == [7, 7]
    (tmp_path / "proc/7/fd/3").unlink()  # nor again and again where no VM has it
    reader.read(owners())
    looked.clear()
    for _ in range(irqs_watcher_part._SEARCH_EVERY * 2):
        reader.read(owners())
    assert looked == [7, 7]


def test_a_device_that_goes_to_another_vm_is_found_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    reader = IrqReader(machine.tree.files, None)
    both = owners()._replace(vms={SHOP: ThreadId(7, 1), DB: ThreadId(8, 1)})
    assert reader.read(both).owners == {"0000:3b:00.0": SHOP}
    make_tree(tmp_path, "proc/8/fd/\n")
    (tmp_path / "proc/7/fd/3").rename(tmp_path / "proc/8/fd/3")
    assert any(reader.read(both).owners == {"0000:3b:00.0": DB} for _ in range(50))
    (tmp_path / "proc/interrupts").write_bytes(interrupts(range(8), {142: "eth0"}, {}))
    assert reader.read(both).owners == {}


def test_off_it_is_no_part_of_the_watcher_and_gives_back_what_an_earlier_one_moved(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert part(tmp_path, "off") is None
    for policy in ("see", "off"):
        part(tmp_path, "away").tasks["irqs"].__self__._reader.read(owners())
        assert machine.tree.masks() == {142: "0-1,4-5,7", 150: "1", -1: "0-1,4-5,7"}
        part(tmp_path, policy).begin()
        assert set(machine.tree.masks().values()) == {"0-7"}
        assert not (tmp_path / "run/irqs.json").exists()


@pytest.mark.parametrize("name", ["interrupts", "sys/kernel/random/boot_id"])
def test_what_cannot_be_given_back_ends_no_watcher_and_no_departure(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machine = Machine(tmp_path)
    part(tmp_path, "away").tasks["irqs"].__self__._reader.read(owners())
    open_file = os.open

    def refuse(path: str, *more: Any, **options: Any) -> int:
        if str(path).endswith(f"/proc/{name}"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return open_file(path, *more, **options)

    config = load(None, {}, {f"paths.{path}": str(tmp_path / path) for path in ("proc", "sys", "run")})
    assert FEATURE.give_back is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for policy in ("see", "off"):
            part(tmp_path, policy).begin()
        assert not FEATURE.give_back(config)
    assert FEATURE.give_back(config)
    assert set(machine.tree.masks().values()) == {"0-7"}


@pytest.mark.parametrize("policy", ["see", "off"])
def test_what_the_kernel_refused_is_given_back_at_a_later_resync(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: str) -> None:
    machine = Machine(tmp_path)
    part(tmp_path, "away").tasks["irqs"].__self__._reader.read(owners())

    def refuse(self: IrqFiles, number: int, cpus: CpuSet) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    later = part(tmp_path, policy)
    with monkeypatch.context() as patch:
        patch.setattr(IrqFiles, "write", refuse)
        for again in later.begin, later.after_resync, later.after_resync:
            again()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert lines
    assert len(lines) == len(set(lines)), "each refusal is logged once"
    assert machine.tree.masks()[142] == "0-1,4-5,7"
    later.after_resync()
    assert set(machine.tree.masks().values()) == {"0-7"}
    assert not (tmp_path / "run/irqs.json").exists()


@pytest.mark.parametrize("until", ["listed", "resync"])
async def test_nothing_is_moved_until_the_claims_of_pods_may_be_known(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: str) -> None:
    """An interrupt that an earlier watcher moved to the CPUs of the pod that claims it."""
    machine = Machine(tmp_path)
    claimed = owners()._replace(claims=[IrqClaim(SHOP, CpuSet.parse("2-3"), "claim: ['142']")])
    part(tmp_path, "away").tasks["irqs"].__self__._reader.read(claimed)
    assert machine.tree.masks()[142] == "2-3"
    away = part(tmp_path, "away", honour="nri-plugins")
    node: NodeIrqs = away.tasks["irqs"].__self__
    monkeypatch.setattr(irqs_watcher_part, "owners_of", lambda view, annotations: owners())
    machine.tree.set(150, "0-7")
    cast(Any, node._view).list_awaited = True
    away.after_resync()  # as at once for messages of hooks
    await node._read()
    assert (machine.tree.masks()[142], machine.tree.masks()[150]) == ("2-3", "0-7")
    if until == "listed":
        away.after_events([Synced((), (), 0)])
    else:
        cast(Any, node._view).list_awaited = False  # not any more, or none connects
        away.after_resync()
    assert node._changed.is_set()
    await node._read()
    assert (machine.tree.masks()[142], machine.tree.masks()[150]) == ("0-1,4-5,7", "1")


async def test_without_room_for_the_originals_interrupts_are_counted_still(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    away = part(tmp_path, "away")
    node: NodeIrqs = away.tasks["irqs"].__self__
    monkeypatch.setattr(irqs_watcher_part, "owners_of", lambda *_: owners())
    with monkeypatch.context() as patch:
        patch.setattr(sealed_file, "replace", fail)
        for count in (0, 310, 620):
            await node._read()
            assert "No space left on device" in away.status()["trouble"]
            assert sum(node.reading.counts.values()) == count
            machine.count(i142_2=310)
    assert set(machine.tree.masks().values()) == {"0-7"}
    await node._read()
    assert (away.status()["trouble"], away.status()["moved"]) == ("", 3)


async def test_a_cancelled_task_moves_nothing_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a watcher has lost its run directory to another one, and while a thread of it still reads."""
    machine = Machine(tmp_path)
    away, begun, go_on = part(tmp_path, "away"), threading.Event(), threading.Event()
    node: NodeIrqs = away.tasks["irqs"].__self__
    monkeypatch.setattr(irqs_watcher_part, "owners_of", lambda *_: owners())
    cast(Any, node._view).ownership = None
    read = machine.tree.files.softirqs

    def waiting() -> object:
        begun.set()
        go_on.wait()
        return read()

    monkeypatch.setattr(node._reader._files, "softirqs", waiting)
    task = asyncio.create_task(away.tasks["irqs"]())
    await asyncio.to_thread(begun.wait)
    task.cancel()
    threading.Timer(0.1, go_on.set).start()
    with pytest.raises(asyncio.CancelledError):
        await task
    masks = machine.tree.masks()
    machine.tree.set(142, "0-7")
    node._reader.read(owners())
    assert machine.tree.masks() == masks | {142: "0-7"}


async def test_the_rules_for_other_programs_are_those_of_the_configuration_in_force(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, away = Machine(tmp_path), part(tmp_path, "away")
    node: NodeIrqs = away.tasks["irqs"].__self__
    monkeypatch.setattr(irqs_watcher_part, "owners_of", lambda *_: owners())
    cast(Any, node._view).config = load(None, {}, {"drift.on_contention": "persist"})
    for _ in range(6):
        machine.tree.set(142, "2")
        await node._read()
        assert machine.tree.masks()[142] == "0-1,4-5,7"


def test_rests_end_when_an_operator_asks(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    away = part(tmp_path, "away")
    reader: IrqReader = away.tasks["irqs"].__self__._reader
    for _ in range(6):
        reader.read(owners())
        machine.tree.set(142, "2")
    assert [kept.why for kept in reader.read(owners()).moved.kept] == [RESTING]
    away.retry()
    assert reader.read(owners()).moved.kept == ()
    assert machine.tree.masks()[142] == "0-1,4-5,7"


def test_the_status_has_rates_and_what_stays(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.tree.add(7, "nvme0q3", "3", fixed=True)
    names = {**NAMES, 7: "nvme0q3"}
    (tmp_path / "proc/interrupts").write_bytes(interrupts(range(8), names, {}))
    away = part(tmp_path, "away")
    node: NodeIrqs = away.tasks["irqs"].__self__
    assert [str(device.cpus) for device in node._reader.read(owners()).devices] == ["1"], "as they are afterwards"
    (tmp_path / "proc/interrupts").write_bytes(interrupts(range(8), names, {(7, 3): 1000, (150, 2): 10}))
    node.reading = node._reader.read(owners())._replace(seconds=10.0)
    data = away.status()
    assert (data["policy"], data["moved"], data["trouble"]) == ("away", 3, "")
    assert [kept["name"] for kept in data["kept"]] == ["nvme0q3"]
    assert away.planned() == data["due"] == []
    assert [(cpu["cpu"], cpu["interrupts"][0]["name"]) for cpu in data["cpus"]] == [
        (2, "vfio-msix[0](0000:3b:00.0)"), (3, "nvme0q3")]
    cast(Any, node._view).ownership = SimpleNamespace(claims={SHOP: SimpleNamespace(cpus=CpuSet((3,)))})
    members = away.members(SandboxState(SHOP))["interrupts"]
    assert [cpu["cpu"] for cpu in members["cpus"]] == [3]
    assert members["devices"] == [{"irq": 150, "name": NAMES[150], "cpus": "1"}]
    assert away.members(SandboxState(DB))["interrupts"] == {"cpus": [], "devices": [], "claims": []}


def test_the_status_has_claims_and_open_cpus_and_counts_what_it_does_not_list(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    names = {number: f"nvme0q{number}" for number in range(100)}
    for number, name in names.items():
        machine.tree.add(number, name, "3", fixed=True)
    (tmp_path / "proc/interrupts").write_bytes(interrupts(range(8), NAMES | names, {}))
    away = part(tmp_path, "away")
    node: NodeIrqs = away.tasks["irqs"].__self__
    room = owners().room._replace(exclusive=CpuSet.parse("3,6"))
    node.reading = node._reader.read(owners()._replace(room=room, claims=[
        IrqClaim(DB, CpuSet((6,)), "claim: ['*eth0*', '7']")]))
    data = away.status()
    assert (data["claimed"], data["open"], len(data["kept"]), data["more_kept"]) == ([142], "2", 64, 36)
    cast(Any, node._view).ownership = SimpleNamespace(claims={})
    assert away.members(SandboxState(DB))["interrupts"]["claims"] == [
        {"irq": 142, "name": "eth0-TxRx-3", "cpus": "6", "why": ""},
        {"irq": 7, "name": "nvme0q7", "cpus": "", "why": FIXED}]
    assert machine.tree.masks()[142] == "6"


def test_dry_runs_have_what_would_be_moved_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    machine.tree.add(7, "nvme0q3", "3", fixed=True)
    assert FEATURE.planned is not None
    assert FEATURE.giving_back is not None
    away = part(tmp_path, "away")
    view = away.tasks["irqs"].__self__._view
    monkeypatch.setattr(irqs_watcher_part, "owners_of", lambda *_: owners())
    assert (FEATURE.giving_back(view.config), FEATURE.planned(part(tmp_path, "see").tasks["irqs"].__self__._view)) == (
        [], [])
    planned = FEATURE.planned(view)
    assert planned == [f"move {what} to CPUs 0-1,4-5,7, was 0-7" for what in (
        "IRQ 142 (eth0-TxRx-3)", f"IRQ 150 ({NAMES[150]})", "default_smp_affinity")]
    away.tasks["irqs"].__self__._reader.read(owners()._replace(masks={}))
    assert FEATURE.planned(view) == []
    assert FEATURE.giving_back(view.config) == [
        f"move {what} to CPUs 0-7, was {mask}" for what, mask in (
            ("IRQ 142 (eth0-TxRx-3)", "0-1,4-5,7"), (f"IRQ 150 ({NAMES[150]})", "0-1,4-5,7"),
            ("default_smp_affinity", "0-1,4-5,7"))]
    (tmp_path / "proc/interrupts").unlink()
    assert "cannot be read" in FEATURE.giving_back(view.config)[0]
    assert "cannot be read" in FEATURE.planned(view)[0]
    (tmp_path / "run/irqs.json").write_text("damaged")
    assert FEATURE.giving_back(view.config) == []
    assert not (tmp_path / "run/irqs.json.bad").exists(), "a dry run changes nothing"


async def until(node: NodeIrqs, reached: Callable[[object], bool]) -> None:
    """Have it read again and again, until its trouble is as it is to be."""
    while not reached(node.data()["trouble"]):
        node._changed.set()
        await asyncio.sleep(0.01)


async def test_files_that_cannot_be_read_are_reported_and_tried_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "proc/interrupts").unlink()
    with metered(tmp_path / "node") as metered_node:
        node = NodeIrqs(metered_node.view, IrqReader(machine.tree.files, None), "see")
        task = asyncio.create_task(node.run())
        try:
            await until(node, lambda trouble: bool(trouble))
            machine.count()
            await until(node, lambda trouble: not trouble)
        finally:
            task.cancel()
