"""The mapped memory of a guest that runs firmware.S: modes are written and pairs of times read, without its exits.

QEMU keeps the guest's memory in a memfd, which root can open through /proc/PID/fd.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

from vmpin.errors import VmpinError

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
