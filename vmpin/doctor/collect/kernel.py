"""The running kernel: its release, its command line, and what it shows. What stays out: what follows (doctor)."""

from __future__ import annotations

import os

from vmpin.domain.facts import Kernel
from vmpin.host.procfs import Procfs, linux, read_file
from vmpin.reports.redact import kernel_parameters


def kernel(proc: Procfs, sys_root: str = "/sys") -> Kernel:
    """What does not answer is left out."""
    release = _text(f"{proc.root}/sys/kernel/osrelease")
    return Kernel(
        release, linux(release), tuple(kernel_parameters(_text(f"{proc.root}/cmdline"))),
        schedstat=os.path.exists(f"{proc.root}/self/schedstat"),
        kvm_debugfs=os.path.isdir(f"{sys_root}/kernel/debug/kvm"))


def _text(path: str) -> str:
    try:
        return (read_file(path) or b"").decode("utf-8", "replace").strip()
    except OSError:
        return ""
