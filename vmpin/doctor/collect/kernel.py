"""The running kernel: release, command line, available files.

Called by node_facts. What stays out: the consequences (doctor.node_checks).
"""

from __future__ import annotations

import os

from vmpin.domain.facts import Kernel
from vmpin.host.procfs import Procfs, linux, read_file
from vmpin.reports.redact import kernel_parameters


def kernel(proc: Procfs, sys_root: str = "/sys") -> Kernel:
    """The kernel's facts; what cannot be read is left empty."""
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
