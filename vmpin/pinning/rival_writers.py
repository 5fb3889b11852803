"""Finds other programs on the node that set affinity masks, by the running processes and their configuration.

Read only. Used only for repairs, because it reads the name of every process.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from vmpin.domain.drift import NO_THREADS, Cause, Rival
from vmpin.host.procfs import Procfs, read_file
from vmpin.vmm.virtual_machine import Vm

#: Daemons by comm (at most 15 characters).
_DAEMONS = {
    "irqbalance": (Cause.IRQBALANCE, NO_THREADS),
    # Moves processes with their memory, all of their threads at once.
    "numad": (Cause.NUMAD, None),
    "tuned": (Cause.TUNED, None),
    "virt-handler": (Cause.KUBEVIRT, None),
    "libvirtd": (Cause.LIBVIRT, None),
    "virtqemud": (Cause.LIBVIRT, None),
}
#: NixOS wraps programs in scripts, and these start them under another name.
_DAEMONS |= {f".{name}-wrapped"[:15]: daemon for name, daemon in _DAEMONS.items()}
#: KubeVirt's launcher in a VM's own pod; the second name is cut to 15 characters.
_LAUNCHERS = ("virt-launcher", "virt-launcher-m")


def rivals(proc: Procfs, root: str | Path) -> tuple[Rival, ...]:
    """The daemons that run and may set masks of a VM's threads, each once.
    :param root: the host's root directory, for tuned's configuration."""
    by_cause: dict[Cause, Rival] = {}
    for pid in proc.pids():
        comm = (read_file(f"{proc.root}/{pid}/comm", 64) or b"").decode("utf-8", "replace").rstrip("\n")
        if comm not in _DAEMONS or proc.nested(pid) or (proc.uids(pid) or (0,))[0] != 0:
            continue  # a process in a pid namespace of its own cannot name the host's threads; a user may not set them
        cause, roles = _DAEMONS[comm]
        if cause in by_cause:
            continue
        if cause is not Cause.TUNED:
            by_cause[cause] = Rival(cause, f"{comm} (pid {pid}) runs", roles)
        elif profile := scheduler_profile(_root_of(proc, pid, root)):
            by_cause[cause] = Rival(cause, f"tuned (pid {pid}) has profile {profile}, whose scheduler plugin sets "
                                           "masks")
    return tuple(by_cause.values())


def of_vm(proc: Procfs, vm: Vm, daemons: Sequence[Rival]) -> tuple[Rival, ...]:
    """Return the rivals of one VM, the most likely first: those of `daemons` that may set its masks, and the VMM
    itself. libvirt and KubeVirt set masks only of VMs that they started, tuned and numad of any thread."""
    argv, options = vm.vmm.argv, vm.type.mask_options
    own = next((argument for argument in argv if options and re.search(options, argument)), None)
    writers = [] if own is None else [Rival(Cause.VMM, f"the VMM was started with {own[:80]!r}")]
    # libvirt names its guests `-name guest=NAME,…`.
    libvirts = any(before == "-name" and name.startswith("guest=") for before, name in pairwise(argv))
    launcher = _launcher(proc, vm.vmm.pid) if libvirts else None
    if launcher is not None:
        writers.append(Rival(Cause.KUBEVIRT, f"the VMM belongs to {launcher}"))
    for rival in daemons:
        if rival.cause in (Cause.LIBVIRT, Cause.KUBEVIRT) and not libvirts:
            continue
        if rival.cause not in {other.cause for other in writers}:
            writers.append(rival)
    # Daemons that may set the mask of any thread come after those that started this VM.
    return tuple(sorted(writers, key=lambda rival: rival.cause in (Cause.TUNED, Cause.NUMAD)))


def _launcher(proc: Procfs, pid: int) -> str | None:
    """The KubeVirt process above a VMM."""
    for _ in range(4):
        stat = proc.stat(pid)
        if stat is None or stat.ppid <= 1:
            return None
        pid = stat.ppid
        parent = proc.stat(pid)
        if parent is not None and parent.comm in _LAUNCHERS:
            return f"{parent.comm} (pid {pid})"
    return None


def _root_of(proc: Procfs, pid: str, root: str | Path) -> str:
    """The root directory that tuned sees: that of its container, if it runs in one."""
    from vmpin.host import files, mounts  # rarely needed: keeps the watcher's memory small

    return mounts.own_files(proc, pid, files.Files(root)).root or "/"


def scheduler_profile(root: str | Path) -> str | None:
    """tuned's active profile if it, or an included one, sets VMMs' masks (scheduler plugin); otherwise None."""
    from vmpin.domain.tuned_movers import movers  # rarely needed: keeps the watcher's memory small
    from vmpin.host import files
    from vmpin.host.tuned_profile import tuned_profile

    tuned = tuned_profile(files.Files(root))
    return tuned.profile if movers(tuned) else None
