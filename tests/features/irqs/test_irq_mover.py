"""Moving interrupts in a tree of /proc/irq: kept originals, drift and contention, what the kernel refuses, and that
in any order of events, killed at any point, no mask is lost."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from irq_tree import IrqTree

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.contention import ContentionRules, OnContention
from vmpin.features.common import sealed_file
from vmpin.features.irqs import irqbalance
from vmpin.features.irqs.irq_files import DEFAULT, IrqFiles
from vmpin.features.irqs.irq_mover import FIXED, RESTING, STUCK, IrqMover, Moved, give_back
from vmpin.features.irqs.irq_plan import IrqRoom
from vmpin.features.irqs.originals_file import OriginalsFile

cpus = CpuSet.parse
NODES = {0: cpus("0-3"), 1: cpus("4-7")}


class Node:
    """A machine whose interrupts are moved; `clock` in seconds."""

    def __init__(self, root: Path, **rules: object) -> None:
        self.tree, self.file, self.clock = IrqTree(root), root / "irqs.json", 0.0
        self.rules = ContentionRules(**rules)  # type: ignore[arg-type]
        self.sockets: list[str] = []
        self.start()

    def start(self, files: IrqFiles | None = None) -> None:
        """Another watcher."""
        self.mover = IrqMover(files or self.tree.files, OriginalsFile(self.file, "boot"), self.rules,
                              lambda: self.clock, lambda: self.sockets)

    def move(self, exclusive: str, **more: CpuSet) -> Moved:
        self.clock += 10.0
        return self.mover.move(self.tree.rows(), IrqRoom(cpus("0-7"), cpus(exclusive), cpus("0-7") - cpus(exclusive),
                                                      NODES, more))

    def give_back(self) -> bool:
        return give_back(self.tree.files, OriginalsFile(self.file, "boot"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_interrupts_leave_exclusive_cpus_and_come_back(node: Node) -> None:
    node.tree.add(1, "eth0", "0-7", node=1)
    node.tree.add(2, "ttyS0", "0-1")
    node.tree.add(3, "arch_timer", "0-7")
    assert node.move("2-3").moved == 2
    assert node.tree.masks() == {1: "4-7", 2: "0-1", 3: "0-7", DEFAULT: "0-1,4-7"}
    assert node.move("2-3").due == ()
    node.move("")
    assert node.tree.masks() == {1: "0-7", 2: "0-1", 3: "0-7", DEFAULT: "0-7"}
    assert node.move("").moved == 0
    assert not node.file.exists()


def test_an_interrupt_that_begins_under_vmpins_default_mask_is_given_back_too(node: Node) -> None:
    node.tree.add(1, "eth0", "0-7")
    node.move("2-3")
    node.tree.add(5, "eth1-0", "0-1,4-7")
    node.tree.add(6, "eth1-1", "4-7", node=1)
    node.tree.add(7, "eth2", "5")
    node.move("2-3")
    assert node.give_back()
    assert node.tree.masks() == {1: "0-7", 5: "0-7", 6: "4-7", 7: "5", DEFAULT: "0-7"}


def test_an_interrupt_that_begins_while_no_watcher_runs_is_given_back_too(node: Node) -> None:
    """An interrupt that had such a mask before keeps it."""
    node.tree.add(1, "eth0", "0-7")
    node.tree.add(2, "eth1", "0-1,4-7")
    node.tree.add(3, "eth2", "4-7", node=1)
    node.move("2-3")
    node.tree.add(5, "eth3", "0-1,4-7")
    node.tree.add(6, "eth4", "4-7", node=1)
    node.start()
    node.move("2-3")
    assert node.give_back()
    assert node.tree.masks() == {1: "0-7", 2: "0-1,4-7", 3: "4-7", 5: "0-7", 6: "4-7", DEFAULT: "0-7"}


def test_a_number_that_is_used_again_under_vmpins_default_mask_is_given_back_too(node: Node) -> None:
    node.tree.add(5, "eth0", "2-4")
    node.move("2-3")
    node.tree.remove(5)
    node.tree.add(5, "eth1", "0-1,4-7")
    node.move("2-3")
    assert node.give_back()
    assert node.tree.masks() == {5: "0-7", DEFAULT: "0-7"}


def test_an_interrupt_whose_driver_has_just_freed_it_is_given_back(node: Node) -> None:
    node.tree.add(1, "eth0", "0-7")
    node.move("2-3")
    node.tree.rename(1, "")
    assert node.give_back()
    assert node.tree.masks() == {1: "0-7", DEFAULT: "0-7"}


def test_what_is_fixed_is_left_and_listed(node: Node) -> None:
    node.tree.add(1, "nvme0q3", "3", fixed=True)
    node.tree.add(2, "nvme0q4", "4", fixed=True)
    node.tree.add(9, "", "0-7", fixed=True)
    kept = node.move("2-3").kept
    assert [(each.irq.name, str(each.cpus), each.why) for each in kept] == [("nvme0q3", "3", FIXED)]
    assert [each.why for each in node.move("0-7").kept] == [STUCK, FIXED, FIXED]


class Refusing(IrqFiles):
    """A kernel that refuses to set the masks of some interrupts. :ivar asked: how often one was to be set."""

    def __init__(self, files: IrqFiles, number: int, error: int) -> None:
        super().__init__(files.proc, files.sys)
        self.number, self.error, self.asked = number, error, 0

    def write(self, number: int, cpus: CpuSet) -> None:
        if number == self.number:
            self.asked += 1
            raise OSError(self.error, os.strerror(self.error))
        super().write(number, cpus)


@pytest.mark.parametrize(("error", "times", "why"), [
    (5, 1, FIXED), (1, 1, FIXED), (28, 3, "the kernel refuses the mask: No space left on device")])
def test_what_the_kernel_refuses_for_good_is_tried_once(node: Node, error: int, times: int, why: str) -> None:
    node.tree.add(1, "a")
    node.tree.add(2, "b")
    files = Refusing(node.tree.files, 1, error)
    node.start(files)
    for _ in range(3):
        assert [(each.irq.number, each.why) for each in node.move("2-3").kept] == [(1, why)]
    assert files.asked == times
    assert node.tree.masks()[2] == "0-1,4-7"
    assert node.give_back()
    assert set(node.tree.masks().values()) == {"0-7"}


def test_a_reason_is_logged_again_once_the_interrupts_that_had_it_are_gone(
        node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.start(Refusing(node.tree.files, 1, errno.ENOSPC))
    for name in "ab":
        node.tree.add(1, name)
        node.move("2-3")
        node.move("2-3")
        node.tree.remove(1)
        node.move("2-3")
    assert caplog.text.count("No space left on device") == 2


def test_drift_is_repaired_until_another_program_contends(tmp_path: Path) -> None:
    node = Node(tmp_path, on_contention=OnContention.REST, repairs=3, rest=300.0)
    node.tree.add(1, "eth0")
    node.move("2-3")
    for _ in range(3):
        node.tree.set(1, "2")
        node.move("2-3")
        assert node.tree.masks()[1] == "0-1,4-7"
    node.tree.set(1, "2")
    assert [(each.irq.number, each.why) for each in node.move("2-3").kept] == [(1, RESTING)]
    assert node.tree.masks()[1] == "2"
    node.clock += 300.0
    assert node.move("2-3").kept == ()
    assert node.tree.masks()[1] == "0-1,4-7"


def test_irqbalance_may_move_interrupts_among_the_other_cpus(node: Node) -> None:
    node.tree.add(1, "eth0")
    node.move("2-3")
    for cpu in itertools.chain("0145", "0145"):
        node.tree.set(1, cpu)
        assert node.move("2-3").due == ()
        assert node.tree.masks()[1] == cpu


def test_a_passed_through_device_follows_its_vm(node: Node) -> None:
    node.tree.add(1, "vfio-msix[0](0000:3b:00.0)", "0-7", node=0)
    device = {"0000:3b:00.0": cpus("2-3,6")}
    node.move("2-3", **device)
    assert node.tree.masks()[1] == "6"
    node.move("2-3,6", **device)
    assert node.tree.masks()[1] == "0-1", "the pool on its node"


def test_originals_are_of_this_boot_and_a_damaged_file_moves_on(node: Node, tmp_path: Path) -> None:
    node.tree.add(1, "eth0")
    node.move("2-3")
    assert OriginalsFile(node.file, "boot").load().irqs.keys() == {1, DEFAULT}
    assert OriginalsFile(node.file, "another").load().irqs == {}
    node.file.write_bytes(node.file.read_bytes().replace(b"eth0", b"eth1"))
    assert OriginalsFile(node.file, "boot").load().irqs == {}
    assert (tmp_path / "irqs.json.bad").exists()
    for _ in range(2):
        assert not node.give_back(), "what it had is not given back"
    (tmp_path / "irqs.json.bad").unlink()
    assert node.give_back()


def test_an_originals_file_that_cannot_be_read_is_read_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tree.add(1, "eth0")
    node.move("2-3")
    with monkeypatch.context() as patch:
        patch.setattr(sealed_file, "read_regular", refuse_to_read)
        node.start()
        with pytest.raises(OSError, match="Too many open files"):
            node.move("2-4")
        assert not node.give_back()
    node.move("2-4")
    assert node.give_back()
    assert set(node.tree.masks().values()) == {"0-7"}


@pytest.mark.parametrize("name", ["listdir", "open"])
def test_what_cannot_be_read_is_given_back_later(node: Node, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    node.tree.add(1, "eth0")
    node.move("2-3")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse_to_read)
        assert not node.give_back()
    assert node.give_back()
    assert set(node.tree.masks().values()) == {"0-7"}


def refuse_to_read(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_file_that_was_removed_is_saved_again(node: Node) -> None:
    node.tree.add(1, "eth0")
    node.move("2-3")
    node.file.unlink()
    node.move("2-3")
    node.start()
    assert node.give_back()
    assert set(node.tree.masks().values()) == {"0-7"}


@pytest.mark.parametrize("error", [errno.EIO, errno.EPERM])
def test_a_moved_interrupt_whose_mask_is_refused_once_is_given_back(node: Node, error: int) -> None:
    node.tree.add(1, "eth0")
    node.move("2")
    node.start(Refusing(node.tree.files, 1, error))
    for _ in range(2):
        assert [kept.irq.number for kept in node.move("1-2").kept] == [1]
    assert node.give_back()
    assert set(node.tree.masks().values()) == {"0-7"}


def test_interrupts_whose_masks_are_not_set_do_not_count_as_moved(node: Node) -> None:
    node.tree.add(1, "eth0")
    node.tree.add(2, "eth1")
    node.start(Refusing(node.tree.files, 1, errno.EROFS))
    assert [node.move("2-3").moved for _ in range(2)] == [2, 2], "eth1 and the default mask"


class Irqbalance:
    """The irqbalances of a node, in place of their sockets: by path, what each leaves alone."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch, **own: str) -> None:
        self.banned, self.failing = {path: cpus(mask) for path, mask in own.items()}, False
        monkeypatch.setattr(irqbalance, "banned_cpus", lambda path: None if self.failing else self.banned.get(path))
        monkeypatch.setattr(irqbalance, "ban_cpus", self._ban)
        node.sockets = [*own]
        node.start()

    def _ban(self, path: str, mask: CpuSet) -> None:
        if self.failing:
            raise TimeoutError
        if path not in self.banned:
            raise FileNotFoundError(path)
        self.banned[path] = mask


def test_irqbalance_has_its_own_list_again_at_the_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = Irqbalance(node, monkeypatch, one="7", two="")
    node.move("2-3")
    assert daemons.banned == {"one": cpus("2-3,7"), "two": cpus("2-3")}
    daemons.failing = True
    assert not node.give_back()
    daemons.failing = False
    del daemons.banned["two"]  # it has ended
    assert node.give_back()
    assert daemons.banned == {"one": cpus("7")}
    assert not node.file.exists()


def test_an_irqbalance_that_does_not_answer_once_keeps_its_own_list(
        node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    socket = str(tmp_path / "irqbalance7.sock")
    Path(socket).touch()
    daemons = Irqbalance(node, monkeypatch, **{socket: "7"})
    for failing in (False, True, False):
        daemons.failing = failing
        node.move("2-3")
    assert node.give_back()
    assert daemons.banned == {socket: cpus("7")}


def test_irqbalance_is_told_nothing_before_its_own_list_is_saved(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = Irqbalance(node, monkeypatch, one="7")
    monkeypatch.setattr(sealed_file, "replace", refuse_to_read)
    with pytest.raises(OSError, match="Too many open files"):
        node.move("2-3")
    assert daemons.banned == {"one": cpus("7")}


class Killed(BaseException):
    """SIGKILL."""


class KilledFiles(IrqFiles):
    """Ends the watcher before, or after, so many masks were set."""

    def __init__(self, files: IrqFiles, left: int, after: bool) -> None:
        super().__init__(files.proc, files.sys)
        self.left, self.after = left, after

    def write(self, number: int, cpus: CpuSet) -> None:
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Killed
        super().write(number, cpus)
        if self.left < 0:
            raise Killed


class Failing(IrqFiles):
    """A kernel that may refuse to set each mask, or to have files read. :ivar full: sets no masks. :ivar unread: the
    reads until one fails, below 0 none does."""

    full, unread = False, -1

    def write(self, number: int, cpus: CpuSet) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))
        super().write(number, cpus)

    def mask(self, number: int) -> CpuSet | None:
        self.unread -= 1
        if self.unread == -1:
            raise OSError(24, os.strerror(24))
        return super().mask(number)


SETS = st.sets(st.integers(0, 7)).map(CpuSet)
SOME = st.sets(st.integers(0, 7), min_size=1).map(lambda found: str(CpuSet(found)))
#: (the event, its CPUs, which interrupt, how many masks until a kill, whether after one was set)
EVENTS = st.lists(st.tuples(
    st.sampled_from(["own", "own", "own", "kill", "restart", "set", "born", "gone", "freed", "shared", "again", "full",
                     "unread"]),
    SETS, SOME, st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=12)


@contextlib.contextmanager
def made(masks: list[str], nodes: list[int]) -> Iterator[Node]:
    with TemporaryDirectory() as root:
        node = Node(Path(root))
        for number, (mask, near) in enumerate(zip(masks, nodes, strict=True)):
            node.tree.add(number, f"dev{number}", mask, near)
        yield node


@given(st.lists(SOME, min_size=6, max_size=6), st.lists(st.integers(-1, 1), min_size=6, max_size=6), EVENTS,
       st.booleans())
def test_in_any_order_of_events_no_mask_is_empty_on_exclusive_cpus_or_lost(
        masks: list[str], nodes: list[int], events: list[tuple[str, CpuSet, str, int, int, bool]],
        by_hand: bool) -> None:
    with made(masks, nodes) as node:
        originals = {**dict(enumerate(masks)), DEFAULT: "0-7"}
        touched, numbers = set[int](), itertools.count(6)
        exclusive = EMPTY
        failing = Failing(node.tree.files.proc, node.tree.files.sys)
        node.start(failing)
        for kind, own, mask, which, left, after in events:
            exclusive = own if kind in ("own", "kill") else exclusive
            if kind == "kill":
                node.start(KilledFiles(node.tree.files, left, after))
                with contextlib.suppress(Killed):
                    node.move(str(exclusive))
                node.start(failing)
            elif kind == "restart":
                node.start(failing)
            elif kind == "full":
                failing.full = True
                node.move(str(exclusive := own))
                node.move(str(exclusive := cpus(mask)))
                failing.full = False
            elif kind == "unread":
                failing.unread = left
                with contextlib.suppress(OSError):
                    node.move(str(exclusive := own))
                failing.unread = -1
            elif kind in ("freed", "shared") and which in node.tree.names:
                node.tree.rename(which, "" if kind == "freed" else f"dev{which}, dev{mask}")
            elif kind == "again" and which in node.tree.names:
                node.tree.remove(which)
                now = cpus(node.tree.masks()[DEFAULT])
                part = now & NODES.get(nodes[which], EMPTY)
                node.tree.add(which, f"new{next(numbers)}", str(part or now), nodes[which])
                originals[which] = str(NODES[nodes[which]]) if part else "0-7"
                touched.discard(which)
            elif kind == "set" and which in node.tree.names:
                node.tree.set(which, mask)
                touched.add(which)
            elif kind == "born":
                number = next(numbers)
                node.tree.add(number, f"dev{number}", mask)
                originals[number] = mask
            elif kind == "gone" and which in node.tree.names:
                node.tree.remove(which)
            moved = node.move(str(exclusive))
            resting = {kept.irq.number for kept in moved.kept}
            for number, mask_now in node.tree.masks().items():
                assert mask_now
                unused = node.tree.names.get(number) == ""
                assert cpus(mask_now).isdisjoint(exclusive) or number in resting or unused
            assert node.move(str(exclusive)).due == moved.due, "converged"
        if by_hand:
            assert node.give_back()
        else:
            node.move("")
            node.move("")
        assert not node.file.exists()
        assert {number: mask for number, mask in node.tree.masks().items() if number not in touched
                and number < 6} == {number: originals[number] for number in (*node.tree.names, DEFAULT)
                                    if number not in touched and number < 6}
