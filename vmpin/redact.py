"""What of a text may leave the node in a bug report: pure, and by lists of what is known to be harmless.

A parameter or option that nobody listed keeps its name and loses its value. What stays out: which texts go into a
report (gather).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

LEFT_OUT = "<left out>"

#: Kernel parameters on CPUs, cgroups and virtualisation: their values say how the machine is cut, and no secret.
_HARMLESS = frozenset((
    "isolcpus", "nohz_full", "nohz", "rcu_nocbs", "rcu_nocb_poll", "irqaffinity", "kthread_cpus", "skew_tick", "tsc",
    "nosmt", "maxcpus", "nr_cpus", "possible_cpus", "mitigations", "numa", "numa_balancing", "preempt", "threadirqs",
    "hugepages", "hugepagesz", "default_hugepagesz", "transparent_hugepage", "cgroup_disable", "cgroup_enable",
    "cgroup_no_v1", "cgroup_memory", "systemd.unified_cgroup_hierarchy", "systemd.legacy_systemd_cgroup_controller",
    "systemd.cpu_affinity", "tuned.non_isolcpus", "intel_idle.max_cstate", "processor.max_cstate", "intel_pstate",
    "amd_pstate", "idle", "cpuidle.off", "nosoftlockup", "nmi_watchdog", "sched_domains", "workqueue.unbound_cpus",
    "kvm.nx_huge_pages", "kvm-intel.nested", "kvm-amd.nested", "intel_iommu", "amd_iommu", "iommu", "quiet", "debug",
    "panic", "selinux", "apparmor", "audit", "psi", "schedstats", "delayacct"))

_SECRET = re.compile(r"pass(?:word|wd|phrase)?|secret|token|credential|api_?key|private|auth|initdata|cookie",
                     re.IGNORECASE)
_PAIR = re.compile(r"([A-Za-z0-9_.-]+)=([^,\s]*)")
_USER = re.compile(r"(?<=://)[^/@\s]+@")
#: Options of VMMs whose value may be anything, secrets among them.
_OPAQUE = frozenset(("fw_cfg", "smbios", "acpitable"))
#: Options of VMMs whose value is a kernel command line.
_COMMAND_LINES = frozenset(("append", "cmdline"))


def kernel_parameters(line: str) -> list[str]:
    """A kernel's command line, one item a parameter; what stands behind `--` is init's, and none of our business."""
    found = []
    for text in line.split():
        if text == "--":
            found.append(f"-- {LEFT_OUT}")
            break
        name, equals, _ = text.partition("=")
        found.append(text if not equals or name in _HARMLESS else f"{name}={LEFT_OUT}")
    return found


def words(text: str) -> str:
    """A text without the values of what is named like a secret, and without the users in URLs."""
    kept = _PAIR.sub(lambda match: f"{match[1]}={LEFT_OUT}" if _SECRET.search(match[1]) else match[0], text)
    return _USER.sub(f"{LEFT_OUT}@", kept)


def command_line(argv: Sequence[str]) -> list[str]:
    """A VMM's command line: the guest's kernel parameters like the host's, opaque values left out."""
    found: list[str] = []
    option = ""
    for arg in argv:
        if arg.startswith("-") and len(arg) > 1:
            option, equals, value = arg.lstrip("-").partition("=")
            found.append(f"{arg[: len(arg) - len(value)]}{_value(option, value)}" if equals else arg)
            if equals:
                option = ""
        else:
            found.append(_value(option, arg))
            option = ""
    return found


def _value(option: str, value: str) -> str:
    if option in _COMMAND_LINES:
        return " ".join(kernel_parameters(value))
    if option in _OPAQUE or _SECRET.search(option):
        return LEFT_OUT
    if option == "object" and value.startswith("secret"):
        return f"secret,{LEFT_OUT}"
    return words(value)


def log_lines(lines: Iterable[str]) -> list[str]:
    """Lines of our own log: they hold names of pods and threads, and what a runtime said in an error."""
    return [words(line) for line in lines]
