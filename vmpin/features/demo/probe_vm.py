"""The VM of `vmpin demo --noise`: its guest is firmware.S, whose vCPUs are busy or sleep as the host writes into its
memory, and which records times there, without an exit of the guest.

A guest of our own needs no download, boots in a moment, and runs nothing but what is measured. QEMU keeps its memory
in a memfd, which root can open through /proc/PID/fd.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

from vmpin.errors import VmpinError
from vmpin.features.demo.vm import VCPUS, DemoVm
from vmpin.named_tuple import NamedTuple

#: firmware.S, assembled.
_CODE = bytes.fromhex("""
    66b810008ed88ec08ed08b352000e0fec1ee108da60091000081c6000001000f011d56ffffff81fe000001000f84b0000000
    c7461880969800c705f000e0feff010000c7052003e0fe20000000c705e003e0fe0b000000ff46040f3189c389d18b4618a3
    8003e0fefbf4ebfd83c40cc705b000e0fe00000000e828000000e834000000833e0175d20f3189c389d1e81300000075053b
    6e147205e818000000833e0174e6ebb40f3189460889560c89d789c529dd19cfc3505289f02d00ff0000c1e00d8b561081e2
    ffff0100c1e20401d0891889480489680889780cff46105a58c3b86cfeffff66a30011000066c70502110000080066c70504
    110000008ec1e81066a306110000c60500800000eac705018000005cff00f0ff4604c7050003e0fe00450c00c7050003e0fe
    08460c00f4ebfd8db40000900000000000000000ffff0000009bcf00ffff00000093cf00170038ffffff070100100000fa2e
    660f011650ff0f20c00c010f22c066ea00feffff08
""")
#: At 0xfffffff0, where an x86 processor starts: a jump to `real`.
_RESET = bytes.fromhex("e969ff")
_SIZE = 512
#: QEMU takes firmware of whole 64 KiB, and maps it below 4 GiB and below 1 MiB.
_ROM = 64 << 10

FIRMWARE = (_CODE.ljust(_SIZE - 16, b"\0") + _RESET).ljust(_SIZE, b"\0")


#: Bytes of the guest's memory: the rings of 3 vCPUs end at 8 MiB.
SIZE = 16 << 20
#: Modes of a vCPU.
SLEEPING, BUSY = 0, 1
NEVER = 0xFFFFFFFF
# As firmware.S has them.
_BLOCKS, _BLOCK = 0x10000, 0x100
_MODE, _READY, _NOW, _HEAD, _LEAST, _SLEEP = 0, 4, 8, 16, 20, 24
_RING, _PAIR = 2 << 20, 16
_PAIRS = _RING // _PAIR


def rom() -> bytes:
    """The firmware as QEMU takes it."""
    return FIRMWARE.rjust(_ROM, b"\xff")


class Tick(NamedTuple):
    """The guest's counter at a moment of the host's monotonic clock, in ns."""

    moment: int
    counter: int


def ticks_per_second(begin: Tick, end: Tick) -> float:
    return (end.counter - begin.counter) * 1e9 / (end.moment - begin.moment)


class GuestMemory:
    """`close` unmaps it."""

    def __init__(self, pid: int) -> None:
        """Map the guest memory of a QEMU process. :raises VmpinError: if it has no such memory, or it cannot be
        opened."""
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if os.readlink(entry).startswith("/memfd:memory-backend"):
                    descriptor = os.open(entry, os.O_RDWR | os.O_CLOEXEC)
                    break
            except FileNotFoundError:
                continue
        else:
            raise VmpinError(f"QEMU (process {pid}) has no memory in a memfd")
        try:
            self._memory = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self._memory.close()

    def ready(self, vcpus: int) -> bool:
        return all(self._get(vcpu, _READY) for vcpu in range(vcpus))

    def run(self, vcpu: int, mode: int, *, least: int = NEVER, sleep_ns: int = 10_000_000) -> None:
        """Change what a vCPU does, at its next turn.

        :param least: shorter gaps of a busy vCPU are not recorded, in ticks of the counter.
        :param sleep_ns: the length of a sleep.
        """
        self._put(vcpu, _LEAST, least)
        self._put(vcpu, _SLEEP, sleep_ns)
        self._put(vcpu, _MODE, mode)

    def recorded(self, vcpu: int) -> int:
        """The number of pairs recorded so far, modulo 2^32."""
        return self._get(vcpu, _HEAD)

    def ticks(self, vcpu: int, begin: int, end: int) -> list[int]:
        """The lengths of the gaps or sleeps with the numbers from `begin` up to `end`.

        :raises VmpinError: if the guest has overwritten some of them.
        """
        count = (end - begin) % (1 << 32)
        if count > _PAIRS:
            raise VmpinError(f"the guest recorded {count} gaps, and keeps {_PAIRS}: measure for a shorter time",
                             "with a smaller --seconds")
        ring = _RING * (vcpu + 1)
        return [struct.unpack_from("<Q", self._memory, ring + (begin + at) % _PAIRS * _PAIR + 8)[0]
                for at in range(count)]

    def next_tick(self, vcpu: int, seconds: float) -> Tick:
        """Wait until the vCPU has run again. :raises VmpinError: if it does not run in time."""
        deadline = time.monotonic() + seconds
        before = self._now(vcpu)
        while (now := self._now(vcpu)) == before:
            if time.monotonic() > deadline:
                raise VmpinError(f"vCPU {vcpu} of the guest did not run for {seconds:.0f} s")
        return Tick(time.monotonic_ns(), now)

    def _now(self, vcpu: int) -> int:
        """The counter is written in two halves: a read between them is repeated."""
        at = _BLOCKS + _BLOCK * vcpu + _NOW
        while True:
            low, high = struct.unpack_from("<II", self._memory, at)
            if struct.unpack_from("<II", self._memory, at)[1] == high:
                return int(high << 32 | low)

    def _get(self, vcpu: int, field: int) -> int:
        return int(struct.unpack_from("<I", self._memory, _BLOCKS + _BLOCK * vcpu + field)[0])

    def _put(self, vcpu: int, field: int, value: int) -> None:
        struct.pack_into("<I", self._memory, _BLOCKS + _BLOCK * vcpu + field, value)


class ProbeVm(DemoVm):
    """vCPU 0 boots the others and halts, as an idle kernel does."""

    memory: GuestMemory

    def _guest(self) -> list[str]:
        image = self.directory / "rom"
        image.write_bytes(rom())
        return ["-machine", "q35,memory-backend=ram", "-m", f"{SIZE >> 20}M", "-bios", str(image),
                "-object", f"memory-backend-memfd,id=ram,size={SIZE >> 20}M,share=on"]

    def _runs(self) -> bool:
        try:
            memory = GuestMemory(self.pid)
        except (VmpinError, OSError):
            return False  # QEMU has not made it yet, or has ended
        if memory.ready(VCPUS):
            self.memory = memory
            return True
        memory.close()
        return False
