"""The kubelet's own configuration: its file, the drop-ins beside it, and the flags of its command line.

Only keys that concern CPUs are kept: other parts of these files hold secrets. Called by doctor.collect and
daemon.followers. What stays out: the checkpoint (runtime.kubelet)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vmpin.config import yaml_file
from vmpin.domain.facts import FoundSetting, KubeletConfig
from vmpin.errors import ConfigError, SourceError
from vmpin.host.daemons import Program, flag, programs
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs

#: KubeletConfiguration (kubernetes/kubelet, config/v1beta1) by flag.
KEYS = {"cpu-manager-policy": "cpuManagerPolicy", "cpu-manager-policy-options": "cpuManagerPolicyOptions",
        "cpu-manager-reconcile-period": "cpuManagerReconcilePeriod", "reserved-cpus": "reservedSystemCPUs",
        "system-reserved": "systemReserved", "kube-reserved": "kubeReserved",
        "topology-manager-policy": "topologyManagerPolicy", "topology-manager-scope": "topologyManagerScope",
        "memory-manager-policy": "memoryManagerPolicy"}
#: Without a command line to read: kubeadm, Amazon's EKS, OpenShift.
_FILES = ("/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet/config.json",
          "/etc/kubernetes/kubelet/kubelet-config.json", "/etc/kubernetes/kubelet.conf")
_DIRECTORIES = ("/etc/kubernetes/kubelet.conf.d", "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
                "/var/lib/rancher/rke2/agent/etc/kubelet.conf.d")
_RANCHER = ("/etc/rancher/k3s/config.yaml", "/etc/rancher/rke2/config.yaml")
_KIND = "KubeletConfiguration"
_PROGRAMS = ("kubelet", "k3s", "rke2")
ZONE_KEYS = ("topologyManagerPolicy", "topologyManagerScope", "reservedSystemCPUs")


def running_kubelet(proc: Procfs) -> dict[str, str]:
    """Read the keys that concern NUMA zones from the running kubelet's configuration. {} where no kubelet is found, or
    not all of its files can be read. Reads the command line of every process: for a thread of its own."""
    found = kubelet_config(Files(f"{proc.root}/1/root"), programs(proc, _PROGRAMS))
    readable = found.pid is not None and not found.trouble
    return {key: text for key in ZONE_KEYS if readable and (text := found.text(key))}


def kubelet_config(files: Files, programs: Sequence[Program]) -> KubeletConfig:
    """The configuration of the running kubelet, else of the files at the usual places."""
    program = next((each for each in programs if each.name in _PROGRAMS), None)
    argv = [] if program is None else _arguments(program)
    named, directory = flag(argv, "config"), flag(argv, "config-dir")
    paths = [named] if named else [path for path in _FILES if files.exists(path)]
    for place in [directory] if directory else _DIRECTORIES:
        paths += [f"{place}/{name}" for name in files.names(place) if name.endswith(".conf")]
    settings: dict[str, FoundSetting] = {}
    read: list[str] = []
    trouble: list[str] = []
    for path in paths:
        found = _document(files, path, trouble)
        if found is not None and found.get("kind") == _KIND:
            read.append(path)
            settings |= {key: FoundSetting(_plain(found[key]), path)
                         for key in KEYS.values() if found.get(key) is not None}
    flags = [("the command line", argv)]
    for path in _RANCHER:
        found = _document(files, path, trouble) if files.exists(path) else None
        given = [] if found is None else found.get("kubelet-arg", [])
        flags.insert(0, (path, [f"--{item}" for item in given if isinstance(item, str)]
                         if isinstance(given, list) else []))
    for where, argv in flags:
        settings |= {key: FoundSetting(_options(value) if name.endswith(("options", "-reserved")) else value, where)
                     for name, key in KEYS.items() if (value := flag(argv, name))}
    return KubeletConfig(None if program is None else program.pid, settings, tuple(read), tuple(trouble))


def _arguments(program: Program) -> list[str]:
    """A kubelet's flags; k3s and rke2 contain a kubelet, and pass its flags as --kubelet-arg=NAME=VALUE."""
    if program.name == "kubelet":
        return program.argv
    found = []
    for at, arg in enumerate(program.argv):
        name, equals, value = arg.partition("=")
        if name == "--kubelet-arg":
            found.append(f"--{value if equals else ''.join(program.argv[at + 1 : at + 2])}")
    return found


def _document(files: Files, path: str, trouble: list[str]) -> Mapping[str, object] | None:
    try:
        raw = files.read(path)
        found = None if raw is None else yaml_file.parse(Path(path), raw)
    except (ConfigError, SourceError) as err:
        trouble.append(str(err))
        return None
    return found if isinstance(found, dict) else None


def _plain(value: object) -> object:
    return {str(key): str(item) for key, item in value.items()} if isinstance(value, dict) else value


def _options(text: str) -> dict[str, str]:
    """`full-pcpus-only=true,…` and `cpu=500m,…` as the file has it."""
    return {key: value for key, _, value in (item.partition("=") for item in text.split(",") if item)}
