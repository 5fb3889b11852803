"""Finds programs of the node by name: the kubelet, container runtimes, and daemons that set affinity masks. Read
only."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from vmpin.domain.facts import Daemon
from vmpin.host.procfs import Procfs, read_file
from vmpin.named_tuple import NamedTuple

#: The kind of daemon of each program.
DAEMONS = {
    "irqbalance": "irqbalance", "tuned": "tuned", "numad": "numad", "libvirtd": "libvirt", "virtqemud": "libvirt",
    "virtchd": "libvirt", "virt-handler": "kubevirt", "virt-launcher": "kubevirt", "lxd": "lxd", "incusd": "lxd",
    "nri-resource-policy-balloons": "balloons", "nri-resource-policy-topology-aware": "topology-aware",
    "nri-resource-policy": "nri-policy", "weka-cpuset": "nri-policy", "cpusets-controller": "cpu-pooler",
    "koordlet": "koordinator", "crane-agent": "crane", "cri-resmgr": "cri-resmgr", "dracpu": "dra-driver-cpu",
    "katalyst-agent": "katalyst", "cpusetter": "cpu-pooler", "ctlplane": "ctlplane", "cmk.py": "cmk",
    "mixedcpu": "mixed-cpus", "mixedcpus": "mixed-cpus", "intel_lpmd": "lpmd", "nomad": "nomad", "slurmd": "slurm"}
#: Programs whose command-line flags name their configuration.
CONFIGURED = ("kubelet", "containerd", "crio", "k3s", "rke2", "kubelite", "microshift", "edgecore", "podman")
#: Variables that name a program's configuration (k3s: pkg/configfilearg, pkg/cli/cmds; cri-o: internal/criocli), or
#: that of the shims that it starts, and where it finds these.
_ENVIRONMENT = {"k3s": ("K3S_CONFIG_FILE", "K3S_DATA_DIR"), "rke2": ("RKE2_CONFIG_FILE", "RKE2_DATA_DIR"),
                "crio": ("CONTAINER_CONFIG", "CONTAINER_CONFIG_DIR", "CONTAINER_RUNTIMES",
                         "CONTAINER_DEFAULT_RUNTIME", "CONTAINER_HOOKS_DIR", "KATA_CONF_FILE"),
              "containerd": ("KATA_CONF_FILE", "PATH")}
#: Daemons that often run in a container and act on the node.
_FROM_A_POD = frozenset(DAEMONS) - {"irqbalance", "numad", "libvirtd", "virtqemud", "virtchd", "lxd", "incusd",
                                    "intel_lpmd"}
#: Those of them that Python runs.
_SCRIPTS = ("tuned", "cmk.py")
#: What stands around a program's name: the index of an NRI plugin that the runtime starts (NRI: plugin_path,
#: /opt/nri/plugins), NixOS' marks of a script that it wraps (`.tuned-wrapped`), and the version of openSUSE's kubelet,
#: of which /usr/bin/kubelet, a script, starts one of several (its package's kubelet.sh).
_AROUND = re.compile(r"^[0-9]{2}-(?=.)|^\.(?=.+-wrapped$)|(?<=.)-wrapped$|(?<=^kubelet)1\.[0-9]+$")
#: The common name for all other policies of nri-plugins.
_NRI_POLICY = "nri-resource-policy"
#: RHEL 8's programs have a Python of their own, /usr/libexec/platform-python.
_INTERPRETER = re.compile(r"(platform-)?python[0-9.]*")
#: Seconds in which a container's command line is read, and how many reads may take longer before no other is tried.
_PATIENCE, _MOST_HANGING = 1.0, 4
_UNIT = re.compile(r"([A-Za-z0-9:_.@\\-]+\.service)$", re.MULTILINE)


class Program(NamedTuple):
    """`environment` has the variables among _ENVIRONMENT, of the programs that read them."""

    pid: int
    name: str
    argv: list[str]
    environment: Mapping[str, str] = MappingProxyType({})


def programs(proc: Procfs, wanted: Iterable[str] = (*DAEMONS, *CONFIGURED)) -> list[Program]:
    """List the processes that run one of these programs, sorted by pid. A process in another pid namespace, or of an
    unprivileged user, counts only if its program usually runs in a container: any container, and any user of the node,
    may run a `kubelet`, with paths of its own. Processes that may not be read (hidepid=, SELinux) are left out."""
    names = frozenset(wanted)
    running, hanging = [], 0
    for pid in sorted(map(int, proc.pids())):
        try:
            if not (nested := proc.nested(pid)):
                argv = proc.cmdline(pid)
            elif hanging < _MOST_HANGING and _may_run(proc, pid, names & _FROM_A_POD):
                argv, hangs = _containers(proc, pid)
                hanging += hangs
            else:
                argv = []
        except PermissionError:
            continue
        if len(argv) == 1:
            argv = argv[0].split(" ")  # a program that sets its title has all of it in one argument
        name = next((word for word in names_of(argv) if word in names), None)
        if name is not None and (name in _FROM_A_POD or not (nested or proc.foreign_uid(pid))):
            running.append(Program(pid, name, argv, _environment(proc, pid, _ENVIRONMENT.get(name, ()))))
    return running


def _may_run(proc: Procfs, pid: int, names: Iterable[str]) -> bool:
    """Whether a container's process may run one of these, by its thread's name."""
    stat = proc.stat(pid)
    return stat is not None and any(
        name[:8] in stat.comm or ("python" in stat.comm and name in _SCRIPTS) for name in names)


def _containers(proc: Procfs, pid: int) -> tuple[list[str], bool]:
    """The command line of a container's process, and whether a read of it hangs: it may never end
    (vmm.recognition.is_containers), so it has a thread of its own, which the end of this process ends."""
    lines: list[list[str]] = []

    def read() -> None:
        with contextlib.suppress(OSError):
            lines.append(proc.cmdline(pid))

    thread = threading.Thread(target=read, name="vmpin-cmdline", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there may be no more threads (pids.max)
        return [], False
    thread.join(_PATIENCE)
    return lines[0] if lines else [], thread.is_alive()


def _environment(proc: Procfs, pid: int, names: Sequence[str]) -> dict[str, str]:
    """The variables of a process that have these names. The others may be secrets."""
    try:
        raw = read_file(f"{proc.root}/{pid}/environ", 1 << 20) or b"" if names else b""
    except OSError:
        return {}
    pairs = (part.partition("=")[::2] for part in raw.decode("utf-8", "replace").split("\0"))
    return {name: value for name, value in pairs if value and name in names}


def names_of(argv: Sequence[str]) -> Iterator[str]:
    """The names of a program: the file name of argv[0] up to a space (k3s and rke2 set it to `k3s agent`), also
    without what stands around it, for a policy of nri-plugins also the common name, and for a Python interpreter the
    name of its script."""
    if not argv:
        return
    first = argv[0].partition(" ")[0].rpartition("/")[2]
    plain = _AROUND.sub("", first)
    yield first
    yield plain
    if plain.startswith(f"{_NRI_POLICY}-"):
        yield _NRI_POLICY
    if _INTERPRETER.fullmatch(first):
        yield _AROUND.sub("", next((arg.rpartition("/")[2] for arg in argv[1:] if not arg.startswith("-")), ""))


def kind_of(argv: list[str]) -> str:
    """The kind of daemon that a command line starts, "" for none."""
    return next((DAEMONS[name] for name in names_of(argv) if name in DAEMONS), "")


def flag(argv: Sequence[str], *names: str) -> str:
    """The last value of a flag, in any syntax of Go's flag package; "" if the flag is not given."""
    return "".join(flag_values(argv, *names)[-1:])


def flag_values(argv: Sequence[str], *names: str) -> list[str]:
    """All values of a flag that is given once or more."""
    values = []
    for at, arg in enumerate(argv):
        name, equals, value = arg.lstrip("-").partition("=")
        if arg.startswith("-") and name in names and (equals or at + 1 < len(argv)):
            values.append(value if equals else argv[at + 1])
    return values


def flag_switch(argv: Sequence[str], name: str) -> bool | None:
    """A flag without or with a value, which only `=` joins (Go's strconv.ParseBool); None if it is not given."""
    given = [arg.partition("=")[2] for arg in argv if arg.partition("=")[0] in (f"-{name}", f"--{name}")]
    return given[-1] in ("", "1", "t", "T", "true", "True", "TRUE") if given else None


def unit(proc: Procfs, pid: int) -> str:
    """The systemd service of a process, "" for none."""
    raw = read_file(f"{proc.root}/{pid}/cgroup") or b""
    match = _UNIT.search(os.fsdecode(raw))
    return "" if match is None else match[1]


def daemons(running: Iterable[Program]) -> tuple[Daemon, ...]:
    return tuple(Daemon(DAEMONS[program.name], program.name, program.pid) for program in running
                 if program.name in DAEMONS)
