"""The table of VMMs."""

from __future__ import annotations

import re

import pytest

from vmpin.vmm.dragonball import DRAGONBALL
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.vmm_type import VmmType
from vmpin.vmm.vmms import VMMS, is_cut_id, library_with, named_in_kata


def test_a_shim_with_vcpu_threads_is_dragonball() -> None:
    assert library_with(["containerd-shim", "db_vcpu0"]) is DRAGONBALL
    assert library_with(["containerd-shim", "tokio-runtime-w"]) is None
    assert library_with([]) is None


def test_katas_words_for_vmms() -> None:
    assert {name: vmm.name for name in ("qemu", "clh", "firecracker", "stratovirt", "dragonball", "remote", "")
            if (vmm := named_in_kata(name)) is not None} == {
        "qemu": "qemu", "clh": "cloud-hypervisor", "firecracker": "firecracker", "stratovirt": "stratovirt"}


def test_an_id_is_cut_where_kata_cuts_it() -> None:
    assert FIRECRACKER.id_length == 32
    assert is_cut_id("a" * 32, "a" * 64)
    assert not is_cut_id("a" * 31, "a" * 64)
    assert not is_cut_id("b" * 32, "a" * 64)


@pytest.mark.parametrize("vmm", VMMS)
def test_a_vmm_is_a_program_or_a_library(vmm: VmmType) -> None:
    assert bool(vmm.program) == bool(vmm.beginnings) != bool(vmm.library_thread)
    assert "(?P<vcpu>" in vmm.thread_names
    assert re.compile(vmm.thread_names).groups == len(re.compile(vmm.thread_names).groupindex)


def test_names_are_unique() -> None:
    assert len({vmm.name for vmm in VMMS}) == len(VMMS)
    named = [vmm.kata_name for vmm in VMMS if vmm.kata_name]
    assert len(set(named)) == len(named)
