"""Guests that are ready at once: a ROM in place of the firmware, a hundred bytes of 16-bit code.

A kernel would take half a minute to boot here, and vmpin sees no more of it: vCPUs that wait, or run, or are ejected
when QEMU asks for it.
"""

from __future__ import annotations

import enum

_SIZE = 0x10000
_ENTRY = 0xF000
_RESET = 0xFFF0

_HALT = bytes.fromhex("f4 eb fd 90")  # hlt, again
_SPIN = bytes.fromhex("eb fe 90 90")  # jmp to itself

_SERVE = """
66 c7 06 00 80 {others}     movl others, 0x8000: where the other vCPUs begin
66 b9 1b 00 00 00           mov $0x1b, %ecx: IA32_APIC_BASE
0f 32                       rdmsr
0d 00 0c                    or $0xc00, %ax: x2APIC, whose registers are in reach of 16-bit code
0f 30                       wrmsr
66 31 c0                    xor %eax, %eax
ba d8 0c                    mov $0xcd8, %dx: QEMU's CPU hotplug registers (docs/specs/acpi_cpu_hotplug)
66 ef                       out %eax, (%dx): the modern ones
66 b9 30 08 00 00           again: mov $0x830, %ecx: the APIC's interrupt command
66 31 d2                    xor %edx, %edx
66 b8 00 45 0c 00           mov $0xc4500, %eax: INIT to all others, those plugged in meanwhile as well
0f 30                       wrmsr
66 b8 08 46 0c 00           mov $0xc4608, %eax: begin at 0x8000
0f 30                       wrmsr
bb 01 00                    mov $1, %bx
66 0f b7 c3                 next: movzwl %bx, %eax
ba d8 0c                    mov $0xcd8, %dx
66 ef                       out %eax, (%dx): of this vCPU
ba dc 0c                    mov $0xcdc, %dx
ec                          in (%dx), %al: the flags
a8 04                       test $4, %al: is it to be removed?
74 06                       jz no
b0 04                       mov $4, %al: yes, understood
ee                          out %al, (%dx)
b0 08                       mov $8, %al: eject
ee                          out %al, (%dx)
43                          no: inc %bx
83 fb 08                    cmp $8, %bx
72 e3                       jb next
66 b9 00 00 80 00           mov $0x800000, %ecx
67 e2 fd                    loop to itself
eb bc                       jmp again
"""


class Guest(enum.Enum):
    #: Every vCPU waits, for ever.
    IDLE = enum.auto()
    #: vCPU 0 is busy and never leaves the guest by itself; the others wait for it.
    SPINS = enum.auto()
    #: vCPU 0 is busy and ejects what QEMU wants unplugged (of vCPUs 1 to 7); the others wait.
    SERVES = enum.auto()
    #: The same, and the others are busy as well.
    BUSY = enum.auto()

    def rom(self) -> bytes:
        """What QEMU takes as -bios; BUSY and SERVES need -cpu …,+x2apic."""
        code = b"\xfa" + (_SPIN if self is Guest.SPINS else _HALT)  # cli
        if self in (Guest.SERVES, Guest.BUSY):
            others = _SPIN if self is Guest.BUSY else _HALT
            code = b"\xfa" + _bytes(_SERVE.format(others=others.hex(" ")))
        rom = bytearray(_SIZE)
        rom[_ENTRY : _ENTRY + len(code)] = code
        # Where a CPU begins, 16 bytes before the end: jmp to the entry.
        rom[_RESET : _RESET + 3] = b"\xe9" + (_ENTRY - _RESET - 3).to_bytes(2, "little", signed=True)
        return bytes(rom)


def _bytes(listing: str) -> bytes:
    """The left column of a listing."""
    return b"".join(bytes.fromhex(line.partition("   ")[0]) for line in listing.splitlines())
