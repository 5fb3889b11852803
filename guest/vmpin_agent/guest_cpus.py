"""The guest's CPUs: which are online, and the hardware id of each.

The guest's own numbers differ from the vCPUs': a hotplugged CPU gets the next free one. Both sides have the APIC id
(KVM's vCPU id; arch/x86/kernel/cpu/proc.c shows it, of online CPUs only), and on arm64 MPIDR: in the device tree
(cpu@N/reg), or in the order of ACPI's MADT, in which Linux numbers them (arch/arm64/kernel/smp.c)."""

import re
import struct
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.protocol.frames import format_ids
from vmpin_agent import file_io

#: The part of an MPIDR that identifies the CPU: Aff0 to Aff2, and Aff3.
_AFFINITY = 0xFF00FFFFFF
_MADT_HEADER = 44
_MADT_GICC = 11
_CPU_LINE = re.compile(r"^(processor|initial apicid|apicid)[ \t]*:[ \t]*([0-9]{1,11})[ \t]*$", re.MULTILINE)


class GuestCpu(NamedTuple):
    """One CPU. `hw` is its hardware id; None for an offline CPU of x86, which does not show its APIC id."""

    cpu: int
    hw: Optional[int]
    online: bool


class CpuTable(NamedTuple):
    """All CPUs at one moment, how many more may be plugged, and a doubt about the hardware ids ("" if certain)."""

    cpus: Tuple[GuestCpu, ...]
    to_come: int = 0
    note: str = ""

    @property
    def online(self) -> CpuSet:
        return CpuSet(row.cpu for row in self.cpus if row.online)

    def find(self, hw: Sequence[int]) -> Tuple[CpuSet, str, bool]:
        """Return the CPUs online with these ids; an error about the others, or ""; whether these may still come."""
        rows = {row.hw: row for row in self.cpus if row.hw is not None}
        online = CpuSet(rows[id].cpu for id in hw if id in rows and rows[id].online)
        missing = [id for id in hw if id not in rows or not rows[id].online]
        if not missing:
            return online, "", False
        # On x86 a CPU that is offline or not plugged does not show its id: it may be any of these.
        unnamed = sum(row.hw is None for row in self.cpus)
        unknown = [id for id in missing if id not in rows]
        if len(unknown) > unnamed:
            coming = len(unknown) <= unnamed + self.to_come
            return online, f"there is no vCPU {format_ids(unknown)} in the guest{' yet' if coming else ''}", coming
        return online, f"vCPU {format_ids(missing)} is not online in the guest", True


class CpuReader:
    """:param proc, sys: the roots of those trees."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc = proc
        self._sys = sys
        self._cpu = f"{sys}/devices/system/cpu"

    def plugged(self) -> Optional[str]:
        """A text that changes when a CPU is plugged, unplugged or changes state. Cheap: it is read every second."""
        online = file_io.read(f"{self._cpu}/online")
        return None if online is None else f"{online};{file_io.read(f'{self._cpu}/present')}"

    def everything(self) -> CpuSet:
        """Every possible CPU: the mask of a thread without one of its own."""
        return file_io.cpus(f"{self._cpu}/possible") or CpuSet(range(MAX_CPU + 1))

    def online(self) -> CpuSet:
        return file_io.cpus(f"{self._cpu}/online") or CpuSet()

    def read(self) -> CpuTable:
        online = self.online()
        present = (file_io.cpus(f"{self._cpu}/present") or CpuSet()) | online
        hw, note = self._hardware(present)
        possible = file_io.cpus(f"{self._cpu}/possible") or present
        return CpuTable(tuple(GuestCpu(cpu, hw.get(cpu), cpu in online) for cpu in present), len(possible - present),
                        note)

    def _hardware(self, present: CpuSet) -> Tuple[Dict[int, int], str]:
        ids = _apic_ids(file_io.read(f"{self._proc}/cpuinfo") or "") or self._device_tree(present)
        if ids:
            return ids, ""
        order = self._acpi()
        if order:
            return {cpu: order[cpu] for cpu in present if cpu < len(order)}, ""
        return {cpu: cpu for cpu in present}, "hardware ids are unknown: assumed to equal the guest's CPU numbers"

    def _device_tree(self, present: CpuSet) -> Dict[int, int]:
        ids = {}
        for cpu in present:
            raw = file_io.read_bytes(f"{self._cpu}/cpu{cpu}/of_node/reg") or b""
            if len(raw) in (4, 8):
                ids[cpu] = int.from_bytes(raw, "big") & _AFFINITY
        return ids

    def _acpi(self) -> List[int]:
        """The MPIDRs of MADT's GICC entries (ACPI 6.5, 5.2.12.14) that are enabled or may become so, in order."""
        raw = file_io.read_bytes(f"{self._sys}/firmware/acpi/tables/APIC") or b""
        ids = []
        at = _MADT_HEADER
        while at + 2 <= len(raw) and raw[at + 1] >= 2:
            kind, length = raw[at], raw[at + 1]
            if kind == _MADT_GICC and 76 <= length <= len(raw) - at:
                (flags,) = struct.unpack_from("<I", raw, at + 12)
                if flags & 0b1001:
                    ids.append(struct.unpack_from("<Q", raw, at + 68)[0] & _AFFINITY)
            at += length
        return ids


def _apic_ids(cpuinfo: str) -> Dict[int, int]:
    """The initial APIC id by CPU: as KVM gave it, before any firmware changed it."""
    ids: Dict[int, int] = {}
    cpu = -1
    for key, number in _CPU_LINE.findall(cpuinfo):
        if key == "processor":
            cpu = int(number)
        elif cpu >= 0 and (key == "initial apicid" or cpu not in ids):
            ids[cpu] = int(number)
    return ids
