"""The kubelet's own configuration: its file, the drop-ins beside it, and its flags.

Only keys that concern CPUs are kept: other parts of these files hold secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vmpin.domain.distributions import DISTRIBUTIONS, KUBELETS, with_program
from vmpin.domain.facts import FoundSetting, KubeletConfig
from vmpin.host.daemons import Program, programs
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs
from vmpin.sources.kubelet_flags import KubeletFlag, data_directory, document, kubelet_flags, last, text

#: KubeletConfiguration (kubernetes/kubelet, config/v1beta1) by flag.
KEYS = {"cpu-manager-policy": "cpuManagerPolicy", "cpu-manager-policy-options": "cpuManagerPolicyOptions",
        "cpu-manager-reconcile-period": "cpuManagerReconcilePeriod", "reserved-cpus": "reservedSystemCPUs",
        "system-reserved": "systemReserved", "kube-reserved": "kubeReserved",
        "topology-manager-policy": "topologyManagerPolicy", "topology-manager-scope": "topologyManagerScope",
        "memory-manager-policy": "memoryManagerPolicy"}
_KIND = "KubeletConfiguration"
#: Directories in a directory of drop-ins are walked, too (cmd/kubelet/app/server.go, mergeKubeletConfigurations).
_DEEPEST = 5
ZONE_KEYS = ("topologyManagerPolicy", "topologyManagerScope", "reservedSystemCPUs")


def running_kubelet(proc: Procfs) -> dict[str, str]:
    """Read the keys that concern NUMA zones from the running kubelet's configuration. {} where no kubelet is found, or
    not all of its files can be read. Reads the command line of every process: for a thread of its own."""
    found = kubelet_config(Files(f"{proc.root}/1/root"), programs(proc, KUBELETS))
    readable = found.pid is not None and not found.trouble
    return {key: text for key in ZONE_KEYS if readable and (text := found.text(key))}


def kubelet_config(files: Files, programs: Sequence[Program]) -> KubeletConfig:
    """The configuration of the running kubelet, else of the files at the usual places."""
    program = next((each for each in programs if each.name in KUBELETS), None)
    trouble: list[str] = []
    flags = kubelet_flags(files, program, trouble)
    settings: dict[str, FoundSetting] = {}
    read: list[str] = []
    for path in _paths(files, program, flags, trouble):
        found = document(files, path, trouble)
        if found is not None and found.get("kind") == _KIND:
            read.append(path)
            settings = _patched(settings, found, path)
    for name, key in KEYS.items():
        given = [each for each in flags if each.name == name]
        if given:
            settings[key] = _from_flags(given)
    return KubeletConfig(None if program is None else program.pid, settings, tuple(read), tuple(trouble),
                         last(flags, "root-dir"))


def _paths(files: Files, program: Program | None, flags: Sequence[KubeletFlag], trouble: list[str]) -> list[str]:
    """The files that the kubelet reads, the strongest last. Of the usual places those that a running kubelet's command
    line would name are left out."""
    known = None if program is None else with_program(program.name)
    named, directory = last(flags, "config"), last(flags, "config-dir")
    usual = () if named and program is not None else DISTRIBUTIONS if known is None else (known,)
    paths = [named] if named else [path for each in usual for path in each.configurations if files.exists(path)]
    directories = [directory] if directory else [path for each in usual for path in each.dropins]
    if not directory and program is not None and program.name in ("k3s", "rke2"):
        directories = [f"{data_directory(files, program.name, program.argv[1:], trouble)}/agent/etc/kubelet.conf.d"]
    return [*paths, *(path for directory in directories for path in _dropins(files, directory))]


def _dropins(files: Files, directory: str, depth: int = 0) -> Iterable[str]:
    """The drop-ins in a directory and those below it, in the order of their paths."""
    for name in files.names(directory):
        path = f"{directory}/{name}"
        if depth < _DEEPEST and files.names(path):
            yield from _dropins(files, path, depth + 1)
        elif name.endswith(".conf"):
            yield path


def _patched(settings: Mapping[str, FoundSetting], patch: Mapping[str, object],
             path: str) -> dict[str, FoundSetting]:
    """Settings with a file's over them, as a JSON merge patch (RFC 7396): maps are merged, null removes."""
    made = dict(settings)
    for key in KEYS.values():
        value, old = patch.get(key), made.get(key)
        if key not in patch:
            continue
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict) and old is not None and isinstance(old.value, dict):
            merged = {name: item for name, item in {**old.value, **value}.items() if item is not None}
            made[key] = FoundSetting(_plain(merged), f"{old.file}, {path}")
        else:
            made[key] = FoundSetting(_plain(value), path)
    return made


def _from_flags(given: Sequence[KubeletFlag]) -> FoundSetting:
    """The value of a flag: the last one; of a map all pairs of all its flags, which replace the file's
    (component-base/cli/flag/map_string_string.go)."""
    if given[-1].name.endswith(("options", "-reserved")):
        pairs = {key: value for each in given for key, value in _options(each.value).items()}
        return FoundSetting(pairs, ", ".join(dict.fromkeys(each.where for each in given)))
    return FoundSetting(given[-1].value, given[-1].where)


def _plain(value: object) -> object:
    return {str(key): text(item) for key, item in value.items()} if isinstance(value, dict) else value


def _options(text: str) -> dict[str, str]:
    """`full-pcpus-only=true,…` and `cpu=500m,…` as the file has it."""
    return {key: value for key, _, value in (item.partition("=") for item in text.split(",") if item)}
