"""A further VMM is one file and one line: crosvm, in a copy of the program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
PRODUCT = TESTS.parents[1] / "vmpin"


def test_a_further_vmm_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "vmpin"
    shutil.copytree(PRODUCT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS / "crosvm.py", copy / "vmm" / "crosvm.py")
    table = copy / "vmm" / "vmms.py"
    text = table.read_text()
    table.write_text(text.replace("\nVMMS = (\n", "\nfrom vmpin.vmm.crosvm import CROSVM\nVMMS = (\n    CROSVM,\n"))
    assert len(table.read_text()) > len(text)
    (tmp_path / "proc").mkdir()
    ran = subprocess.run([sys.executable, TESTS / "fifth_vmm.py", tmp_path / "proc"], capture_output=True, timeout=300,
                         env={**os.environ, "PYTHONPATH": str(copy.parent)})
    assert ran.returncode == 0, ran.stderr.decode()
    assert json.loads(ran.stdout) == {
        "type": "crosvm",
        "threads": {"crosvm": "emulator", "crosvm_vcpu0": "vcpu", "crosvm_vcpu1": "vcpu", "crosvm_vcpu2": "vcpu",
                    "crosvm_vcpuX": "emulator", "vcpu_throttle": "emulator", "vhost-4000": "vhost"},
        "identified": ["names", True, 1],
        "qmp": 0,
        "placed": {"0": "4-5", "1": "4", "2": "5"},
        "verdict": "pinned",
        "channels": ["vsock, CID 77"],
        "cid": 77,
        "guest": [3, 3, [], [0, 1, 2]],
        "rivals": ["vmm"],
        "start": [3, 3],
    }


def test_without_its_file_and_line_it_is_no_vmm(tmp_path: Path) -> None:
    """The other test shows what they add."""
    ran = subprocess.run([sys.executable, TESTS / "fifth_vmm.py", tmp_path], capture_output=True, timeout=300,
                         env={**os.environ, "PYTHONPATH": str(PRODUCT.parent)})
    assert b"KeyError: 'pod-a'" in ran.stderr
