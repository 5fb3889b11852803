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
    assert plan([Irq(1, "", cpus("1"))], ROOM, kept).originals == {1: kept[1]}, "its driver may come again"
    assert plan([Irq(1, "new", cpus("1"))], ROOM, kept) == ((), {}, ())


def test_what_began_under_vmpins_default_mask_gets_the_real_one_back() -> None:
    born = Irq(9, "eth1", cpus("0-1,4-5,7"))
    assert plan([born], ROOM, {}, {9: cpus("0-7")}).originals == {
        9: IrqOriginal("eth1", cpus("0-7"), (born.mask,))}
    (write,), _, _ = plan([born], ROOM._replace(exclusive=EMPTY), {}, {9: cpus("0-7")})
    assert write == MaskWrite(born, cpus("0-7"))


def test_only_masks_of_vmpin_are_restored() -> None:
    kept = {number: IrqOriginal("a", cpus("0-7"), (cpus("0"), cpus("1"))) for number in range(1, 6)}
    irqs = [Irq(1, "a", cpus("1")), Irq(2, "a", cpus("0")), Irq(3, "a", cpus("5")), Irq(4, "other", cpus("1")),
            Irq(5, "a", cpus("0-7")), Irq(6, "a", cpus("1"))]
    assert [write.irq.number for write in restoring(irqs, kept)] == [1, 2]
