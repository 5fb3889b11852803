"""Which options of tuned's scheduler plugin set masks, and whether those of VMMs' threads. Pure.

Source: tuned, plugins/plugin_scheduler.py. `isolated_cores` chooses a process by the name of its main thread, which
the kernel cuts to 15 characters, and all its threads with it; `group.NAME` chooses by the command line."""

from __future__ import annotations

import re
from collections.abc import Collection

from vmpin.domain.facts import Tuned
from vmpin.domain.foreign_pattern import search

#: The main threads' names of Kata's usual VMM, and of the processes beside it, for a node whose VMs are unknown.
VMMS, HELPERS = ("qemu-system-x86",), ("virtiofsd", "containerd-shim")
#: Command lines of VMMs, as Kata starts them.
_COMMANDS = ("/opt/kata/bin/qemu-system-x86_64 -name sandbox-1,debug-threads=on", "/usr/libexec/qemu-kvm -name "
             "sandbox-1", "/usr/bin/cloud-hypervisor --api-socket /run/vc/vm/1/clh-api.sock", "/firecracker --id 1")
#: The most options, and patterns of a list, that are evaluated.
_MAX_PATTERNS = 32
_VARIABLE = re.compile(r"\$\{\w+\}")


def mask_options(tuned: Tuned) -> list[str]:
    """The options that set masks of any threads: `isolated_cores` with CPUs (without a value, or with a variable that
    is nowhere defined, it moves nothing), and groups with an affinity (PRIORITY:SCHEDULER:PRIORITY:AFFINITY:PATTERN,
    where `*` changes none)."""
    return [key for key, setting in tuned.scheduler.items() if _sets_masks(key, str(setting.value).strip())]


def movers(tuned: Tuned, names: Collection[str] = (*VMMS, *HELPERS)) -> list[str]:
    """The options that set masks of VMs' threads, and those that are not evaluated: they may match anything.
    :param names: the names of the main threads of VMs' processes."""
    spared = all(_spared(tuned, name) for name in names)
    return [key for number, key in enumerate(mask_options(tuned))
            if (not spared if key == "isolated_cores" else
                number >= _MAX_PATTERNS or _matches_vmms(str(tuned.scheduler[key].value)))]


def spares_cgroup(tuned: Tuned, cgroups: str) -> bool | None:
    """Whether tuned leaves a process in these cgroups alone, whatever option chooses it; None for unknown.
    :param cgroups: its /proc/PID/cgroup, the lines separated by commas."""
    black = tuned.scheduler.get("cgroup_ps_blacklist")
    return black is not None and _listed(str(black.value), cgroups)


def _sets_masks(key: str, value: str) -> bool:
    if key == "isolated_cores":
        return bool(value) and _VARIABLE.search(value) is None
    fields = value.split(":", 4)
    return key.startswith("group.") and len(fields) == 5 and fields[3] != "*"


def _matches_vmms(group: str) -> bool:
    pattern = group.split(":", 4)[4]
    return any(search(pattern, command) is not False for command in _COMMANDS)


def _spared(tuned: Tuned, name: str) -> bool:
    """Whether tuned certainly leaves alone a process whose main thread has this name."""
    white, black = (tuned.scheduler.get(key) for key in ("ps_whitelist", "ps_blacklist"))
    return (white is not None and _listed(str(white.value), name) is False) or (
        black is not None and _listed(str(black.value), name) is True)


def _listed(patterns: str, name: str) -> bool | None:
    """Whether one of the patterns, separated by semicolons, is in a name; None for unknown."""
    listed = re.split(r"(?<!\\);", patterns)
    matches = {search(pattern, name) for pattern in listed[:_MAX_PATTERNS] if pattern}
    return True if True in matches else None if None in matches or len(listed) > _MAX_PATTERNS else False
