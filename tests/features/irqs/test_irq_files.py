"""The kernel's files of interrupts, and the devices that a VMM has by VFIO."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from irq_tree import IrqTree
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.features.irqs.irq_files import DEFAULT, parse_mask


def test_masks_nodes_and_what_is_fixed_are_read(tmp_path: Path) -> None:
    tree = IrqTree(tmp_path)
    tree.add(142, "eth0-TxRx-3", "2-3", node=1)
    tree.add(7, "nvme0q1", "5", fixed=True)
    files = tree.files
    assert files.numbers() == [142, 7]
    assert (files.mask(142), files.effective(142), files.node(142)) == (CpuSet.parse("2-3"), CpuSet((2,)), 1)
    assert (files.node(7), files.fixed(7), files.fixed(142), files.fixed(DEFAULT)) == (None, True, False, False)
    assert (files.mask(9), files.effective(9), files.node(9)) == (None, None, None)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
def test_what_cannot_be_read_is_not_taken_for_gone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    tree = IrqTree(tmp_path)
    tree.add(7, "eth0")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    for name, read in (("listdir", tree.files.numbers), ("open", lambda: tree.files.mask(7)),
                       ("read", lambda: tree.files.mask(DEFAULT))):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            with pytest.raises(OSError, match=os.strerror(error)):
                read()


def test_an_interrupt_that_goes_while_its_file_is_open_is_gone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = IrqTree(tmp_path)
    tree.add(7, "eth0")

    def gone(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "read", gone)
    assert tree.files.mask(7) is None


def test_a_mask_that_was_set_is_read_back(tmp_path: Path) -> None:
    tree = IrqTree(tmp_path)
    tree.add(142, "eth0", "0-3,6-7")
    tree.set(142, "1")
    tree.set(DEFAULT, "0,33-34")
    assert (tree.masks()[142], tree.masks()[DEFAULT]) == ("1", "0,33-34")
    with pytest.raises(FileNotFoundError):
        tree.files.write(9, CpuSet((1,)))


@pytest.mark.parametrize(("text", "cpus"), [
    ("f", "0-3"), ("00000000,00000003", "0-1"), ("1,00000000", "32"), ("0", None), ("", None), ("00000001,1", None),
    ("x", None), ("1ffffffff", None), ("-1", None), (",".join(["ffffffff"] * 300), None)])
def test_a_hexadecimal_mask(text: str, cpus: str | None) -> None:
    found = parse_mask(text)
    assert (None if found is None else str(found)) == cpus


@given(st.text(max_size=60))
def test_no_text_of_a_mask_raises(text: str) -> None:
    assert parse_mask(text) is None or parse_mask(text)


def test_a_vms_devices_are_found_by_its_groups_and_by_their_own_nodes(tmp_path: Path) -> None:
    tree = IrqTree(tmp_path)
    make_tree(tmp_path, "sys/kernel/iommu_groups/12/devices/0000:3b:00.0/vendor = 1\n"
              "sys/kernel/iommu_groups/12/devices/none/vendor = 1\nsys/devices/pci/0000:5e:00.1/vendor = 1\n"
              "sys/class/vfio-dev/vfio0/name = 1\nproc/7/fd/\n")
    (tmp_path / "sys/class/vfio-dev/vfio0/device").symlink_to("../../../devices/pci/0000:5e:00.1")
    for number, target in enumerate(("/dev/vfio/12", "/dev/vfio/vfio", "/dev/vfio/devices/vfio0", "/dev/kvm",
                                     "/dev/vfio/13", "/dev/vfio/devices/vfio9")):
        (tmp_path / f"proc/7/fd/{number}").symlink_to(target)
    assert sorted(tree.files.vfio_devices(7)) == ["0000:3b:00.0", "0000:5e:00.1"]
    assert list(tree.files.vfio_devices(8)) == []
