"""Which masks of interrupts are to change."""

from __future__ import annotations

import pytest

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.irqs.irq_plan import Irq, IrqOriginal, IrqRoom, MaskWrite, plan, restoring, wanted_mask

cpus = CpuSet.parse
#: CPUs 2-3 are exclusive, and 6 to another pod; two nodes.
ROOM = IrqRoom(cpus("0-7"), cpus("2-3,6"), cpus("0-1,4-5,7"), {0: cpus("0-3"), 1: cpus("4-7")},
            {"0000:3b:00.0": cpus("1,4"), "0000:5e:00.0": EMPTY})


@pytest.mark.parametrize(("mask", "node", "device", "wanted"), [
    ("0-7", None, "", "0-1,4-5,7"), ("0-7", 1, "", "4-5,7"), ("0-3", 1, "", "0-1"), ("2-3", 1, "", "4-5,7"),
    ("2-3", None, "", "0-1,4-5,7"), ("0-1", 1, "", "0-1"), ("2-3,8-15", None, "", "0-1,4-5,7"),
    ("0-7,8-15", None, "", "0-1,4-5,7-15"),
    ("0-7", 0, "0000:3b:00.0", "1,4"), ("0", 0, "0000:3b:00.0", "1,4"), ("0-7", 0, "0000:5e:00.0", "0-1"),
    ("0-7", 5, "0000:5e:00.0", "0-1,4-5,7"), ("2", 0, "0000:99:00.0", "0-1")])
def test_the_mask_of_an_interrupt(mask: str, node: int | None, device: str, wanted: str) -> None:
    assert str(wanted_mask(Irq(1, "x", cpus(mask), node, device), cpus(mask), ROOM)) == wanted


def test_without_a_cpu_that_is_left_an_interrupt_stays() -> None:
    room = ROOM._replace(exclusive=cpus("0-7"))
    irq = Irq(1, "x", cpus("2"))
    assert plan([irq], room, {}) == ((), {}, (irq,))


def test_a_converged_node_gives_the_empty_plan() -> None:
    irqs = [Irq(1, "a", cpus("0-7")), Irq(2, "b", cpus("0-1")), Irq(-1, "default", cpus("0-7"))]
    first = plan(irqs, ROOM, {})
    assert [(write.irq.number, str(write.cpus)) for write in first.writes] == [(1, "0-1,4-5,7"), (-1, "0-1,4-5,7")]
    assert first.writes[0].describe() == "move IRQ 1 (a) to CPUs 0-1,4-5,7, was 0-7"
    assert first.writes[1].describe() == "move default_smp_affinity to CPUs 0-1,4-5,7, was 0-7"
    assert first.originals == {1: IrqOriginal("a", cpus("0-7"), (cpus("0-1,4-5,7"),)),
                               -1: IrqOriginal("default", cpus("0-7"), (cpus("0-1,4-5,7"),))}
    after = [irq._replace(mask=cpus("0-1,4-5,7")) if irq.number != 2 else irq for irq in irqs]
    again = plan(after, ROOM, first.originals)
    assert (again.writes, again.originals) == ((), first.originals)


def test_cpus_that_are_free_again_are_given_back_and_the_original_in_the_end() -> None:
    moved = Irq(1, "a", cpus("0-1,4-5,7"))
    kept = {1: IrqOriginal("a", cpus("0-7"), (moved.mask,))}
    (write,), originals, _ = plan([moved], ROOM._replace(exclusive=cpus("6")), kept)
    assert str(write.cpus) == "0-5,7"
    (write,), originals, _ = plan([moved._replace(mask=write.cpus)], ROOM._replace(exclusive=EMPTY), originals)
    assert str(write.cpus) == "0-7"
    assert plan([moved._replace(mask=write.cpus)], ROOM._replace(exclusive=EMPTY), originals) == ((), {}, ())


def test_the_choice_of_another_program_stays_unless_it_is_on_exclusive_cpus() -> None:
    kept = {1: IrqOriginal("a", cpus("0-7"), (cpus("0-1,4-5,7"),))}
    assert plan([Irq(1, "a", cpus("4"))], ROOM, kept) == ((), kept, ())
    (write,), _, _ = plan([Irq(1, "a", cpus("3-4"))], ROOM, kept)
    assert str(write.cpus) == "0-1,4-5,7"
    assert plan([Irq(1, "a", cpus("4"))], ROOM._replace(exclusive=EMPTY), kept) == ((), {}, ()), "it is theirs now"


def test_a_number_that_another_driver_has_now_begins_anew() -> None:
    kept = {1: IrqOriginal("a", cpus("0"), (cpus("1"),)), 2: IrqOriginal("b", cpus("0"), (cpus("1"),))}
    assert plan([Irq(1, "new", cpus("5"))], ROOM, kept) == ((), {}, ())
    assert plan([Irq(1, "new", cpus("4,7"))], ROOM, kept, {1: cpus("4,6-7")}).originals == {
        1: IrqOriginal("new", cpus("4,6-7"), (cpus("4,7"),))}, "it began under a default mask of vmpin's"


@pytest.mark.parametrize("name", ["eth0, uhci_hcd:usb1", "vfio-intx(0000:41:00.0)"])
def test_a_line_keeps_its_record_as_long_as_it_has_a_mask_of_vmpins(name: str) -> None:
    """The kernel keeps the mask of a line that was set once, whichever drivers it has (irq_setup_affinity)."""
    ours = cpus("0-1,4-5,7")
    kept = IrqOriginal("eth0", cpus("0-7"), (ours,))
    assert plan([Irq(1, name, ours)], ROOM, {1: kept}) == ((), {1: kept._replace(name=name)}, ())


def test_an_interrupt_without_a_driver_is_given_back_and_not_moved() -> None:
    kept = {1: IrqOriginal("a", cpus("0-7"), (cpus("0-1,4-5,7"),))}
    assert plan([Irq(1, "", cpus("0-7")), Irq(2, "", cpus("0-7"))], ROOM, {}) == ((), {}, ())
    assert plan([Irq(1, "", cpus("0-1,4-5,7"))], ROOM, kept) == ((), kept, ()), "its driver may come again"
    (write,), originals, _ = plan([Irq(1, "", cpus("0-1,4-5,7"))], ROOM._replace(exclusive=EMPTY), kept)
    assert (str(write.cpus), originals[1].name) == ("0-7", "a")


def test_the_mask_that_is_set_stays_in_the_record_however_often_another_is_refused() -> None:
    irq, kept = Irq(1, "a", cpus("0-1,3-7")), {1: IrqOriginal("a", cpus("0-7"), (cpus("0-1,3-7"),))}
    for exclusive in ("1-2", "0,2", "5", "2-5", ""):
        kept = dict(plan([irq], ROOM._replace(exclusive=cpus(exclusive)), kept).originals)
        assert [write.cpus for write in restoring([irq], kept)] == [cpus("0-7")]
        assert len(kept[1].written) == 2


def test_what_began_under_vmpins_default_mask_gets_the_real_one_back() -> None:
    born = Irq(9, "eth1", cpus("0-1,4-5,7"))
    assert plan([born], ROOM, {}, {9: cpus("0-7")}).originals == {
        9: IrqOriginal("eth1", cpus("0-7"), (born.mask,))}
    (write,), _, _ = plan([born], ROOM._replace(exclusive=EMPTY), {}, {9: cpus("0-7")})
    assert write == MaskWrite(born, cpus("0-7"))


def test_only_masks_of_vmpin_are_restored() -> None:
    kept = {number: IrqOriginal("a", cpus("0-7"), (cpus("0"), cpus("1"))) for number in range(1, 6)}
    irqs = [Irq(1, "a", cpus("1")), Irq(2, "", cpus("0")), Irq(3, "a", cpus("5")), Irq(4, "other", cpus("1")),
            Irq(5, "a", cpus("0-7")), Irq(6, "a", cpus("1"))]
    assert [write.irq.number for write in restoring(irqs, kept)] == [1, 2, 4]
