"""A tree of /proc/irq and /sys for the tests of interrupts, whose files are written as the kernel's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.features.irqs.interrupt_table import InterruptTable, IrqRow
from vmpin.features.irqs.irq_files import IrqFiles, mask_text
from vmpin.host.procfs import Procfs


class IrqTree:
    """Interrupts on 8 CPUs of two nodes; `rows` as /proc/interrupts has them."""

    def __init__(self, root: Path) -> None:
        self.root, self.names = root, dict[int, str]()
        make_tree(root, f"proc/irq/default_smp_affinity = {mask_text(CpuSet.parse('0-7'))}\n")
        self.files = IrqFiles(Procfs(root / "proc"), root / "sys")
        self._write()

    def add(self, number: int, name: str, cpus: str = "0-7", node: int = -1, fixed: bool = False) -> None:
        self.names[number] = name
        make_tree(self.root, f"proc/irq/{number}/smp_affinity_list = {cpus}\nproc/irq/{number}/node = {node}\n"
                  f"proc/irq/{number}/effective_affinity_list = {CpuSet.parse(cpus).first}\n")
        (self.root / f"proc/irq/{number}/smp_affinity_list").chmod(0o444 if fixed else 0o644)
        self._write()

    def rename(self, number: int, name: str) -> None:
        """Other drivers have it; "": none."""
        self.names[number] = name
        self._write()

    def remove(self, number: int) -> None:
        del self.names[number]
        for file in (directory := self.root / f"proc/irq/{number}").iterdir():
            file.unlink()
        directory.rmdir()
        self._write()

    def _write(self) -> None:
        lines = [" " * 11 + "".join(f"CPU{cpu:<8}" for cpu in range(8))]
        lines += [f"{number:>3}:" + f" {number:>10}" * 8 + f"  PCI-MSI  {number}-edge      {name}"
                  for number, name in self.names.items()]
        (self.root / "proc/interrupts").write_text("\n".join([*lines, ""]))

    def rows(self) -> Iterable[IrqRow]:
        return InterruptTable((self.root / "proc/interrupts").read_bytes()).rows()

    def masks(self) -> dict[int, str]:
        """By number; of the default mask -1."""
        return {number: str(self.files.mask(number)) for number in (*self.names, -1)}

    def set(self, number: int, cpus: str) -> None:
        """Another program sets a mask."""
        self.files.write(number, CpuSet.parse(cpus))
