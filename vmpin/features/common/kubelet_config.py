"""The kubelet's own configuration: its file, the drop-ins beside it, and its flags.

Only keys that concern CPUs, and the runtime's socket, are kept: other parts of these files hold secrets.

A kubelet by itself has its flags on the command line. k3s and RKE2 (pkg/configfilearg/parser.go,
pkg/daemons/config/types.go, GetArgs) read `kubelet-arg` in config.yaml and its drop-ins, then on their own command
line, which a title replaces (`k3s server`), so that it is in their unit alone; in a drop-in `key` replaces earlier
values, and `key+` adds to them. kubelite (MicroK8s) has a file of flags."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from vmpin.config import yaml_file
from vmpin.domain.distributions import ACTIONS, DISTRIBUTIONS, KUBELETS, RANCHER, is_kubelet, with_program
from vmpin.domain.facts import FoundSetting, KubeletConfig
from vmpin.errors import ConfigError, SourceError
from vmpin.features.common.mounted_paths import path_on_node
from vmpin.features.common.service_units import exec_start, openrc_arguments
from vmpin.host.daemons import Program, flag, programs
from vmpin.host.files import Files
from vmpin.host.mounts import own_files
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.documents import dig, parse_json

#: KubeletConfiguration (kubernetes/kubelet, config/v1beta1) by flag.
KEYS = {"cpu-manager-policy": "cpuManagerPolicy", "cpu-manager-policy-options": "cpuManagerPolicyOptions",
        "cpu-manager-reconcile-period": "cpuManagerReconcilePeriod", "reserved-cpus": "reservedSystemCPUs",
        "system-reserved": "systemReserved", "kube-reserved": "kubeReserved",
        "topology-manager-policy": "topologyManagerPolicy", "topology-manager-scope": "topologyManagerScope",
        "memory-manager-policy": "memoryManagerPolicy", "container-runtime-endpoint": "containerRuntimeEndpoint"}
_KIND = "KubeletConfiguration"
#: KubeEdge's (pkg/apis/componentconfig/edgecore/v1alpha2).
_EDGE_KIND = "EdgeCore"
ZONE_KEYS = ("topologyManagerPolicy", "topologyManagerScope", "reservedSystemCPUs")
COMMAND_LINE = "the command line"
#: Older versions of k3s set it themselves, to the directory of their programs (cmd/k3s/main.go, stageAndRun).
_ASSETS = re.compile(r"/data/[0-9a-f]{64}/?$")
_KUBELET_ARG = "kubelet-arg"
_ARGS_FILE = "kubelet-args-file"
_MICROK8S = "/var/snap/microk8s"
_VARIABLE = re.compile(r"\$\{?(SNAP_DATA|SNAP_COMMON)\}?")


def running_kubelet(proc: Procfs) -> dict[str, str]:
    """Read the keys that concern NUMA zones from the running kubelet's configuration. {} if no kubelet runs, or some
    of its files cannot be read. Reads the command line of every process: call it in a thread."""
    kubelet = nodes_kubelet(proc, Files(f"{proc.root}/1/root"), programs(proc, KUBELETS))
    readable = kubelet.pid is not None and not kubelet.trouble
    return {key: value for key in ZONE_KEYS if readable and (value := kubelet.text(key))}


def nodes_kubelet(proc: Procfs, files: Files, programs: Sequence[Program]) -> KubeletConfig:
    """Read `kubelet_config` where the kubelet sees its files, as it may run in a container of its own (Talos, RKE1);
    its directory is the node's. :param files: the node's."""
    program = _kubelet(programs)
    if program is None:
        return kubelet_config(files, programs)
    base = proc.working_directory(program.pid)
    kubelet = kubelet_config(own_files(proc, program.pid, files), programs, base)
    if not kubelet.directory:
        return kubelet
    directory = os.path.normpath(os.path.join(base, kubelet.directory))
    return replace(kubelet, directory=path_on_node(proc, program.pid, directory))


def _kubelet(programs: Sequence[Program]) -> Program | None:
    """The kubelet, or the program that contains it: RKE2 starts a kubelet by itself."""
    return next((program for program in sorted(programs, key=lambda program: program.name != "kubelet")
                 if is_kubelet(program.name, program.argv)), None)


def kubelet_config(files: Files, programs: Sequence[Program], base: str = "") -> KubeletConfig:
    """The configuration of the running kubelet; without one, of the files at the usual places.
    :param base: its working directory, of which a kubelet by itself names files."""
    program = _kubelet(programs)
    trouble: list[str] = []
    service = None if program is None or program.name not in RANCHER else _service(files, program, trouble)
    flags = kubelet_flags(files, program, trouble) if service is None else service.flags()
    directory, settings = last_value(flags, "root-dir"), dict[str, FoundSetting]()
    read: list[str] = []
    for path in _paths(files, program, flags, base) if service is None else _managed(files, service, flags):
        document = _document(files, path, trouble)
        if document is not None and document.get("kind") in (_KIND, _EDGE_KIND):
            read.append(path)
            own, named = (document, "") if document["kind"] == _KIND else _of_edgecore(document)
            settings = _patched(settings, own, path)
            directory = directory or (named if program is not None else "")  # the file may have been left behind
    for name, key in KEYS.items():
        if same_name := [flag for flag in flags if flag.name == name]:
            settings[key] = _from_flags(same_name)
    named = last_value(flags, "config")
    # All that could name the policy was read.
    complete = program is not None and {"kubelet": bool(read), "kubelite": bool(flags)}.get(
        program.name, service is not None and service.shown)
    if complete and not trouble and (not named or os.path.join(base, named) in read):
        settings.setdefault("cpuManagerPolicy", FoundSetting("none", "the default"))
    return KubeletConfig(None if program is None else program.pid, settings, tuple(read), tuple(trouble),
                         directory)


def _paths(files: Files, program: Program | None, flags: Sequence[KubeletFlag], base: str) -> list[str]:
    """The files that the kubelet reads, the strongest last. Files at the usual places are those of a kubelet that does
    not run, or of the program that contains it: a kubelet by itself reads only what its command line names."""
    known = None if program is None else with_program(program.name)
    named, directory = (value and os.path.join(base, value)
                        for value in (last_value(flags, "config"), last_value(flags, "config-dir")))
    usual = DISTRIBUTIONS if program is None else () if known is None or named else (known,)
    paths = [named] if named else [path for distribution in usual for path in distribution.configurations
                                   if files.exists(path)]
    directories = [directory] if directory else [path for distribution in usual for path in distribution.dropins]
    # Recursively (cmd/kubelet/app/server.go, mergeKubeletConfigurations).
    return [*paths, *(path for directory in directories for path in files.below(directory) if path.endswith(".conf"))]


def _of_edgecore(document: Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """The kubelet's configuration in edgecore's, and its directory, "" if it is not named."""
    edged = dig(document, "modules", "edged")
    configuration = dig(edged, "tailoredKubeletConfig")
    return configuration if isinstance(configuration, dict) else {}, str(dig(edged, "rootDirectory") or "")


def _managed(files: Files, service: _Service, flags: Sequence[KubeletFlag]) -> list[str]:
    """The drop-ins of k3s and RKE2, which copy the file and the directory that are named to the kubelet among them
    (pkg/daemons/agent/agent.go, extractConfigArgs)."""
    managed = f"{service.data_directory()}/agent/etc/kubelet.conf.d"
    named, directory = last_value(flags, "config"), last_value(flags, "config-dir")
    places = {path: path for path in files.below(managed) if path.endswith(".conf")}
    if named and not named.startswith(managed):
        places.setdefault(f"{managed}/10-cli-config.conf", named)
    if directory and not directory.startswith(managed):
        for path in files.below(directory):
            if path.endswith(".conf"):
                places.setdefault(f"{managed}/20-cli-config-dir{path.removeprefix(directory)}", path)
    return [places[place] for place in sorted(places)]


def _patched(settings: Mapping[str, FoundSetting], patch: Mapping[str, object],
             path: str) -> dict[str, FoundSetting]:
    """Apply a file's settings as a JSON merge patch (RFC 7396): maps are merged, null removes. An empty text stands
    for the default (SetDefaults_KubeletConfiguration)."""
    patched = dict(settings)
    for key in KEYS.values():
        value, old = patch.get(key), patched.get(key)
        if key not in patch:
            continue
        if value in (None, ""):
            patched.pop(key, None)
        elif isinstance(value, dict) and old is not None and isinstance(old.value, dict):
            merged = {name: item for name, item in {**old.value, **value}.items() if item is not None}
            patched[key] = FoundSetting(_with_texts(merged), f"{old.file}, {path}")
        else:
            patched[key] = FoundSetting(_with_texts(value), path)
    return patched


def _from_flags(same_name: Sequence[KubeletFlag]) -> FoundSetting:
    """The setting of one or several flags with the same name: the last value; for a map the pairs of all flags, which
    replace the file's (component-base/cli/flag/map_string_string.go)."""
    last = same_name[-1]
    if last.name.endswith(("options", "-reserved")):
        pairs = {key: value for flag in same_name for key, value in _options(flag.value).items()}
        return FoundSetting(pairs, ", ".join(dict.fromkeys(flag.where for flag in same_name)))
    return FoundSetting(last.value, last.where)


def _with_texts(value: object) -> object:
    """A map with its values as texts, without nulls; any other value unchanged."""
    if not isinstance(value, dict):
        return value
    return {str(key): _text(item) for key, item in value.items() if item is not None}


def _options(text: str) -> dict[str, str]:
    """Parse `full-pcpus-only=true,…` or `cpu=500m,…`."""
    return {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in text.split(",") if item)}


# Flags


class KubeletFlag(NamedTuple):
    """A flag. `name` has dashes (cliflag.WordSepNormalizeFunc); `where` is its file, or "the command line"."""

    name: str
    value: str
    where: str


def kubelet_flags(files: Files, program: Program | None, trouble: list[str]) -> list[KubeletFlag]:
    """The flags of a running kubelet, or of the program that contains it; without one, those in its unit, and in the
    configuration of k3s and RKE2. Appends files that cannot be read to `trouble`."""
    if program is None:
        scripts = ((path, ["kubelet", *words]) for path, words in openrc_arguments(files, "kubelet"))
        path, words = next(chain(exec_start(files, "kubelet.service"), scripts), ("", []))
        return [*_split(words[1:], path), *(flag for name in RANCHER
                                            for flag in _service(files, Program(0, name, []), trouble).flags())]
    if program.name in RANCHER:
        return _service(files, program, trouble).flags()
    if program.name == "kubelite":
        return _kubelite(files, program.argv, trouble)
    return list(_split(program.argv[1:], COMMAND_LINE)) if program.name in ("kubelet", "edgecore") else []


class _Service(NamedTuple):
    """k3s or RKE2 as it was started. `where` is the source of `argv`, and `shown` whether these are its arguments;
    `configured` has the values of each key in its configuration, with their files."""

    program: Program
    argv: Sequence[str]
    where: str
    shown: bool
    configured: Mapping[str, Sequence[tuple[str, str]]]

    def data_directory(self) -> str:
        values = [value for value, _ in self.configured.get("data-dir", ())]
        variable = _ASSETS.sub("", _variable(self.program, "DATA_DIR"))
        return (flag(self.argv, "data-dir", "d") or "".join(values[-1:]) or variable
                or f"/var/lib/rancher/{self.program.name}")

    def flags(self) -> list[KubeletFlag]:
        """The kubelet's flags: those of the configuration, then those of the service's own command line."""
        arguments = [*self.configured.get(_KUBELET_ARG, ()), *(
            (flag.value, flag.where) for flag in _split(self.argv, self.where) if flag.name == _KUBELET_ARG)]
        flags: list[KubeletFlag] = []
        for argument, where in arguments:
            key, equals, value = argument.removeprefix("--").partition("=")
            flag = KubeletFlag(key.rstrip("+-").replace("_", "-"), value if equals else "true", where)
            # NAME-=VALUE precedes the other values of NAME.
            flags.insert(0 if key.endswith("-") else len(flags), flag)
        return flags


def _service(files: Files, program: Program, trouble: list[str]) -> _Service:
    """The service, with its arguments from its unit where it shows no flags itself, or does not run."""
    actions = " ".join(program.argv).split()[1:2] or ACTIONS[program.name]
    argv, where = program.argv[1:], COMMAND_LINE
    shown = any(arg.startswith("-") for arg in program.argv)
    if not shown:
        units = exec_start(files, f"{program.name}*.service")
        scripts = ((path, [program.name, *words]) for path, words in openrc_arguments(files, f"{program.name}*"))
        argv, where = next(((words[1:], path) for path, words in (*units, *scripts)
                            if next((word for word in words[1:] if word[:1] != "-"), "") in actions), (argv, where))
    main = (_variable(program, "CONFIG_FILE") or flag(argv, "config", "c")
            or f"/etc/rancher/{program.name}/config.yaml")
    return _Service(program, argv, where, shown or where != COMMAND_LINE, _configured(files, main, trouble))


def _variable(program: Program, name: str) -> str:
    return program.environment.get(f"{program.name.upper()}_{name}", "")


def _document(files: Files, path: str, trouble: list[str]) -> Mapping[str, object] | None:
    """The object in a YAML or JSON file; None without one. Appends to `trouble` why a file cannot be read. Of a key
    that is given twice the last value counts: the kubelet only warns of it (pkg/kubelet/kubeletconfig/util/codec:
    lenient decoding), and k3s does not notice (yaml.MapSlice)."""
    try:
        raw = files.read(path)
        document = None if raw is None else _parsed(path, raw)
    except (ConfigError, SourceError) as err:
        trouble.append(str(err))
        return None
    return document if isinstance(document, dict) else None


def _parsed(path: str, raw: bytes) -> object:
    """Parse JSON as JSON: Go programs indent it by tabs, which PyYAML does not take for blanks."""
    if raw.lstrip()[:1] == b"{":
        with suppress(SourceError):
            return parse_json(raw, path)
    return yaml_file.parse(Path(path), raw, as_go=True)


def _split(argv: Sequence[str], where: str) -> Iterator[KubeletFlag]:
    """Parse flags as Go does: `--name=value`, `--name value`; a flag followed by another flag is true."""
    for number, arg in enumerate(argv, 1):
        if not arg.startswith("-"):
            continue
        name, equals, value = arg.lstrip("-").partition("=")
        if not equals:
            following = argv[number] if number < len(argv) else "-"
            value = "true" if following.startswith("-") else following
        yield KubeletFlag(name.replace("_", "-"), value, where)


def _configured(files: Files, main: str, trouble: list[str]) -> dict[str, list[tuple[str, str]]]:
    """The values of each key in a configuration of k3s or RKE2 and its drop-ins, with their files."""
    dropins = [f"{main}.d/{file}" for file in files.names(f"{main}.d") if file.lower().endswith((".yaml", ".yml"))]
    configured: dict[str, list[tuple[str, str]]] = {}
    for path in (main, *dropins):
        for key, value in (_document(files, path, trouble) or {}).items():
            items = value if isinstance(value, list) else [] if value is None else [value]
            values = [(_text(item), path) for item in items]
            bare = str(key).removesuffix("+")
            configured[bare] = [*configured.get(bare, ()), *values] if str(key).endswith("+") else values
    return configured


def _text(value: object) -> str:
    """A YAML value in the notation of flags."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kubelite(files: Files, argv: Sequence[str], trouble: list[str]) -> list[KubeletFlag]:
    """The flags in kubelite's file: one or several per line, with variables of the snap's environment."""
    named = flag(argv, _ARGS_FILE)
    # The revision in the path may have been removed since; `current` links to the running one.
    path = next((path for path in (named, f"{_MICROK8S}/current/args/kubelet") if path and files.exists(path)), "")
    try:
        raw = files.text(path) if path else None
        words = shlex.split(raw or "", comments=True)
    except (SourceError, ValueError) as err:
        trouble.append(f"{path}: {err}" if isinstance(err, ValueError) else str(err))
        return []
    if raw is None:
        trouble.append(f"{named or _ARGS_FILE}: kubelite's flags cannot be read")
    snap = {"SNAP_DATA": path.rpartition("/args/")[0], "SNAP_COMMON": f"{_MICROK8S}/common"}
    return list(_split([_VARIABLE.sub(lambda match: snap[match[1]], word) for word in words], path))


def last_value(flags: Iterable[KubeletFlag], name: str) -> str:
    """The value of the last flag with this name; "" without one."""
    return next((flag.value for flag in reversed(list(flags)) if flag.name == name), "")
