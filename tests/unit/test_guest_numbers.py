"""Which vCPU is which of the guest's CPUs, where it can be shown; and what metrics show."""

from __future__ import annotations

import pytest

from vmpin.guest.numbers import metrics_cpus, proves, shown
from vmpin.model import VcpuId


@pytest.mark.parametrize(("boot", "arrived", "found"), [
    (4, [0, 1, 2, 3], {0: 0, 1: 1, 2: 2, 3: 3}),
    (4, [2, 0, 3, 1], {0: 0, 1: 1, 2: 2, 3: 3}),
    # Kata's hotplug: CPU 1 before Linux 6.9, CPU 7 since.
    (1, [0, 7], {0: 0}),
    (1, [0, 7, 6], {0: 0}),
    # Plugged in ascending order both are the same.
    (1, [0, 1, 2], {0: 0, 1: 1, 2: 2}),
    (1, [0, 1, 3], {0: 0, 1: 1}),
    (1, [0, 2, 1], {0: 0}),
    # One of those it was started with is missing.
    (2, [0, 2], {}),
    (2, [], {}),
])
def test_only_what_both_ways_of_numbering_agree_on_is_shown(
        boot: int, arrived: list[int], found: dict[int, int]) -> None:
    assert shown(boot, [VcpuId(number) for number in arrived]) == found


def test_the_times_of_each_cpu_are_read_and_nothing_else() -> None:
    text = """\
# HELP kata_guest_cpu_time Guest CPU statistics.
# TYPE kata_guest_cpu_time gauge
kata_guest_cpu_time{cpu="0",item="user"} 1200
kata_guest_cpu_time{cpu="0",item="system"} 3.5e2
kata_guest_cpu_time{cpu="1",item="user"} 7
kata_guest_cpu_time{cpu="total",item="user"} 1207
kata_guest_load{item="load1"} 0.5
kata_guest_cpu_time{cpu="99999",item="user"} 7
kata_guest_cpu_time{cpu="2",item="user"} NaN
kata_guest_cpu_time{cpu="2",item="user"} inf
kata_guest_cpu_time{cpu="2",item="user"} x
kata_guest_cpu_time{cpu="2
"""
    assert metrics_cpus(text) == {0: {"user": 1200.0, "system": 350.0}, 1: {"user": 7.0}}


def cpus(*user: float) -> dict[int, dict[str, float]]:
    return {number: {"user": time, "idle": 5.0} for number, time in enumerate(user)}


@pytest.mark.parametrize(("after", "verdict"), [
    (cpus(10, 0, 2000, 1500), True), (cpus(600, 0, 2000, 1500), False), (cpus(0, 0, 300, 0), None),
    (cpus(-5, 0, 9000, 0), None), ({}, None),
])
def test_work_on_the_right_cpus_alone_is_a_proof(
        after: dict[int, dict[str, float]], verdict: bool | None) -> None:
    assert proves(cpus(0, 0, 0, 0), after, (2, 3)) is verdict
