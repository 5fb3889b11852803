"""What a reading of the interrupts of a large machine takes, with irqs.policy: away, as a share of one CPU at the
interval that is the default: all of 2,000 interrupts came, and all masks are right.

Beside it reading the same files and cutting them into lines: the least that could compare them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import CannotMeasure, Figure, in_turn, median

from vmpin.config.settings import SETTINGS
from vmpin.cpuset import CpuSet
from vmpin.domain.contention import ContentionRules
from vmpin.domain.model import SandboxId
from vmpin.features.irqs.irq_files import IrqFiles, mask_text
from vmpin.features.irqs.irq_mover import IrqMover
from vmpin.features.irqs.irq_plan import IrqRoom
from vmpin.features.irqs.irqs_watcher_part import IrqReader, Owners
from vmpin.features.irqs.originals_file import OriginalsFile
from vmpin.host.procfs import Procfs

_CPUS, _INTERRUPTS, _EXCLUSIVE = 256, 2000, 64
_SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")


def reading(rounds: int) -> Figure:
    interval = float(str(next(setting.default for setting in SETTINGS if setting.key == "watch.resync_seconds")))
    with TemporaryDirectory(dir="/dev/shm") as root:
        proc = Path(root, "proc")
        online, exclusive = CpuSet(range(_CPUS)), CpuSet(range(_CPUS - _EXCLUSIVE, _CPUS))
        for number in range(_INTERRUPTS):
            directory = proc / f"irq/{number}"
            directory.mkdir(parents=True)
            (directory / "smp_affinity_list").write_text(f"{online - exclusive}\n")
            (directory / "node").write_text("0\n")
        (proc / "irq/default_smp_affinity").write_text(f"{mask_text(online - exclusive)}\n")
        files = IrqFiles(Procfs(proc), Path(root, "sys"))
        reader = IrqReader(files, IrqMover(files, OriginalsFile(Path(root, "irqs.json"), ""), ContentionRules(),
                                           sockets=list))
        owners = Owners(dict.fromkeys(exclusive, SandboxId("shop")),
                        IrqRoom(online, exclusive, online - exclusive, {0: online}), {}, {})
        growing, taken = _Growing(proc), list[int]()

        def read() -> None:
            taken.append(len(reader.read(owners).cpus))

        def bare() -> None:
            for name in "interrupts", "softirqs":
                (proc / name).read_bytes().split(b"\n")
            for number in os.listdir(proc / "irq"):
                name = f"irq/{number}" + "/smp_affinity_list" * number.isdigit()
                (proc / name).read_bytes()

        def cost(work: Callable[[], None]) -> float:
            growing.grow()
            begin = time.thread_time()
            work()
            return time.thread_time() - begin

        values, floors = in_turn(rounds, lambda: cost(read), lambda: cost(bare))
        size = (proc / "interrupts").stat().st_size
    if {*taken[1:]} != {_EXCLUSIVE}:
        raise CannotMeasure("not all exclusive CPUs took interrupts")

    def share(seconds: float) -> float:
        return 100 * seconds / interval

    return Figure("irqs_256x2000", share(median(values)), "% of a CPU", share(median(floors)), 1, "value",
                  {"bytes": size, "exclusive": _EXCLUSIVE, "rounds": rounds, "interval_seconds": interval,
                   "reading_ms": round(median(values) * 1000, 3)})


class _Growing:
    """The files of interrupts, as x86 prints them. Each interrupt comes to its own CPU."""

    def __init__(self, proc: Path) -> None:
        chance = random.Random(1)
        self._proc, self._grown = proc, 0
        self._rows = [[chance.choice((0, chance.randrange(1 << 31))) for _ in range(_CPUS)]
                      for _ in range(_INTERRUPTS)]

    def grow(self) -> None:
        self._grown += 1
        head = "".join(f"CPU{cpu:<8}" for cpu in range(_CPUS))
        lines = [f"{'':12}{head}"]
        for number, counts in enumerate(self._rows):
            counts[number % _CPUS] += 100
            lines.append(f"{number:>4}:" + "".join(f" {count:>10}" for count in counts)
                         + f" IR-PCI-MSIX-0000:3b:00.0 {number:>4}-edge      eth0-TxRx-{number}")
        (self._proc / "interrupts").write_text("\n".join((*lines, "")))
        (self._proc / "softirqs").write_text("\n".join((f"{'':20}{head}", *(
            f"{name:>12}:" + f" {self._grown:>10}" * _CPUS for name in _SOFTIRQS), "")))
