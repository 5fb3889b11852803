"""The guest's bytes are its source, assembled; and it can be booted."""

from __future__ import annotations

import subprocess
from pathlib import Path

from need import need_tool

from vmpin.features.demo import probe_vm

SOURCE = Path(probe_vm.__file__).with_name("firmware.S")


def test_the_bytes_are_what_the_source_assembles_to(tmp_path: Path) -> None:
    need_tool("gcc")  # its package depends on the assembler and the linker
    subprocess.run(["as", "--32", SOURCE, "-o", tmp_path / "probe_vm.o"], check=True, timeout=300)
    subprocess.run(["ld", "-m", "elf_i386", "-Ttext", "0xfffffe00", "--oformat", "binary", "-o",
                    tmp_path / "probe_vm.bin", tmp_path / "probe_vm.o"], check=True, timeout=300)
    assert (tmp_path / "probe_vm.bin").read_bytes() == probe_vm.FIRMWARE


def test_the_rom_ends_with_it_and_its_reset_vector_is_a_jump_into_it() -> None:
    rom = probe_vm.rom()
    assert len(rom) == 65536
    assert rom.endswith(probe_vm.FIRMWARE)
    opcode, distance = rom[-16], int.from_bytes(rom[-15:-13], "little", signed=True)
    assert opcode == 0xE9
    assert len(rom) - 512 <= len(rom) - 13 + distance < len(rom) - 16
