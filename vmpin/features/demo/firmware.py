"""The 512 bytes of firmware that are the guest of `vmpin demo --noise`, as a ROM for QEMU: firmware.S assembled.

A guest of our own needs no download, boots in a moment, and runs nothing but what is measured. Pure.
"""

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


def rom() -> bytes:
    return FIRMWARE.rjust(_ROM, b"\xff")
