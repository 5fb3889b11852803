"""Finds programs of the node by name: the kubelet, container runtimes, and daemons that set affinity masks. Read
only."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from vmpin.domain.facts import Daemon
from vmpin.host.procfs import Procfs, read_file
from vmpin.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

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
#: Seconds in which the command lines of containers' scripts are read, and how many reads may hang.
_PATIENCE, _MOST_HANGING = 1.0, 16
_UNIT = re.compile(r"([A-Za-z0-9:_.@\\-]+\.service)$", re.MULTILINE)


class Program(NamedTuple):
    """`argv` has a container's program's name alone, unless it is a script. `environment` has the variables among
    _ENVIRONMENT, of the programs that read them."""

    pid: int
    name: str
    argv: list[str]
    environment: Mapping[str, str] = MappingProxyType({})


def programs(proc: Procfs, wanted: Iterable[str] = (*DAEMONS, *CONFIGURED)) -> list[Program]:
    """List the processes that run one of these programs, sorted by pid. A process in another pid namespace, or of an
    unprivileged user, counts only if its program usually runs in a container: any container, and any user of the node,
    may run a `kubelet`, with paths of its own. Of a container's program only a script's arguments are read. Processes
    that may not be read (hidepid=, SELinux) are left out."""
    names = frozenset(wanted)
    contained = names & _FROM_A_POD
    lines: dict[int, list[str]] = {}
    nested, scripts = set(), []
    for pid in sorted(map(int, proc.pids())):
        try:
            if not proc.nested(pid):
                lines[pid] = proc.cmdline(pid)
            elif contained and (stat := proc.stat(pid)) is not None:
                nested.add(pid)
                lines[pid] = [_in_container(proc.executable(pid), stat.comm, contained)]
                if not contained.isdisjoint(_SCRIPTS) and any(name in stat.comm for name in ("python", *_SCRIPTS)):
                    scripts.append(pid)
        except PermissionError:
            continue
    running = []
    for pid, argv in (lines | _read_at_once(proc, scripts)).items():
        if len(argv) == 1:
            argv = argv[0].split(" ")  # a program that sets its title has all of it in one argument
        name = next((word for word in names_of(argv) if word in names), None)
        if name is not None and (name in _FROM_A_POD or not (pid in nested or proc.foreign_uid(pid))):
            running.append(Program(pid, name, argv, _environment(proc, pid, _ENVIRONMENT.get(name, ()))))
    return running


def _in_container(executable: str, comm: str, names: Iterable[str]) -> str:
    """Return the one of these programs that a container's process runs, "" for none. By its executable, else by its
    thread's name, which is cut to 15 characters: a read of its command line may never end
    (vmm.recognition.is_containers)."""
    return next((word for word in (*names_of([executable]), *names_of([comm])) if word in names),
                min((name for name in names if name[:15] == comm), key=len, default=""))


def _read_at_once(proc: Procfs, pids: Iterable[int]) -> dict[int, list[str]]:
    """The command lines of containers' processes that can be read within _PATIENCE. A read that hangs has a thread of
    its own until it ends, which the end of this process ends, too; meanwhile no other thread reads that file."""
    lines: dict[int, list[str]] = {}

    def read(pid: int) -> None:
        with contextlib.suppress(OSError):
            lines[pid] = proc.cmdline(pid)

    hanging = {thread.name for thread in threading.enumerate() if thread.name.endswith("/cmdline")}
    reading: list[threading.Thread] = []
    for pid in pids:
        thread = threading.Thread(target=read, args=(pid,), name=f"{proc.root}/{pid}/cmdline", daemon=True)
        waiting = len(hanging) + sum(other.is_alive() for other in reading)
        if thread.name in hanging or waiting >= _MOST_HANGING:
            continue
        try:
            thread.start()
        except RuntimeError:  # there may be no more threads (pids.max)
            break
        reading.append(thread)
    deadline = time.monotonic() + _PATIENCE
    for thread in reading:
        thread.join(max(0.0, deadline - time.monotonic()))
    if late := [thread.name for thread in reading if thread.is_alive()]:
        logger.warning("not read in time, so that scripts there are not recognized: %s", ", ".join(late))
    return dict(lines)


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
