"""What /proc/stat has of each CPU, from texts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.cpuset import CpuSet
from vmpin.host.cpu_times import STEP, CpuLines, tickless
from vmpin.host.procfs import Procfs

TEXT = """\
cpu  10 20 30 40 50 60 70 80 0 0
cpu0 1 2 3 400 5 6 7 8 0 0
cpu2 1 2 3 500 0 0 0 0 0 0
cpu13 1 2 3 4
intr 0 0 0
"""


def lines(directory: Path, text: str) -> CpuLines:
    (directory / "stat").write_text(text)
    return CpuLines(Procfs(directory), 13)


def test_idle_interrupts_and_steal_are_read_of_the_cpus_that_are_online(tmp_path: Path) -> None:
    found = lines(tmp_path, TEXT).of([0, 1, 2, 13])
    assert found == {0: (405 * STEP, 13 * STEP, 8 * STEP), 2: (500 * STEP, 0, 0)}  # 1 is offline, 13 is cut off


def test_all_of_512_cpus_are_read(tmp_path: Path) -> None:
    text = "cpu  1 2 3 4 5 6 7 8 9 10\n" + "".join(
        f"cpu{cpu} {10**15} 1 1 {cpu} 0 {10**15} 1 1 {10**15} {10**15}\n" for cpu in range(512))
    (tmp_path / "stat").write_text(text + "intr " + "0 " * 100_000)
    found = CpuLines(Procfs(tmp_path), 511).of(range(512))
    assert {cpu: idle // STEP for cpu, (idle, _, _) in found.items()} == {cpu: cpu for cpu in range(512)}


def test_the_machine_itself_is_read() -> None:
    first = CpuLines(Procfs(), 4096).of(range(4096))
    second = CpuLines(Procfs(), 4096).of(range(4096))
    assert first
    assert all(second[cpu][0] >= idle for cpu, (idle, _, _) in first.items() if cpu in second)


@pytest.mark.parametrize(("text", "cpus"), [("2-5\n", "2-5"), ("\n", ""), ("(null)\n", ""), (None, "")])
def test_cpus_without_a_tick_are_known(tmp_path: Path, text: str | None, cpus: str) -> None:
    if text is not None:
        (tmp_path / "devices/system/cpu").mkdir(parents=True)
        (tmp_path / "devices/system/cpu/nohz_full").write_text(text)
    assert tickless(tmp_path) == (CpuSet.parse(cpus) if cpus else CpuSet())
