"""The configurations of containerd, CRI-O and podman: runtime handlers, NRI, hook directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vmpin.domain.distributions import DISTRIBUTIONS
from vmpin.domain.facts import Engine, Handler
from vmpin.errors import SourceError
from vmpin.host.daemons import Program, flag, flag_switch, flag_values
from vmpin.host.files import Files
from vmpin.runtime.documents import Table, dig, load_toml, merge, string, strings, switch, tables

_CRIO = "/etc/crio/crio.conf"
#: Default paths of containerd's configuration: its own first, and those of distributions that contain it.
_CONTAINERD = tuple(dict.fromkeys(distribution.engine for distribution in DISTRIBUTIONS
                                  if distribution.engine != _CRIO))
#: The section with the runtime handlers, in configuration version 3, 2 and 1.
_CRI = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
_OWN_SECTIONS = (("untrusted", "untrusted_workload_runtime"), ("default", "default_runtime"))
_NRI = "io.containerd.nri.v1.nri"
#: The plugins that a runtime starts by default (NRI: pkg/adaptation/adaptation.go, DefaultPluginPath).
_NRI_PLUGINS = "/opt/nri/plugins"
_MAX_IMPORTS = 50
#: Where containerd finds shims if its PATH is not known: that of its service. Of a longer one so many are searched.
_SHIM_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
_MAX_PLACES = 64
#: The only default of cri-o (pkg/config/config.go) and of podman (containers/common pkg/config: DefaultHooksDirs; 4.3
#: runs no hook of /etc/containers/oci/hooks.d).
_HOOKS: tuple[str, ...] = ("/usr/share/containers/oci/hooks.d",)


def engines(files: Files, programs: Sequence[Program]) -> tuple[Engine, ...]:
    """Return the container engines that run or have a configuration, without a containerd that has no CRI."""
    configured = (_containerd(files, path, program) for path, program in _containerds(files, programs))
    running = [engine for engine in configured if engine is not None]
    crio = next((program for program in programs if program.name == "crio"), None)
    if crio is not None or files.exists("/etc/crio"):
        running.append(_crio(files, crio))
    if files.exists("/usr/bin/podman") or files.exists("/etc/containers/containers.conf"):
        running.append(_podman(files))
    return tuple(running)


def configuration_places(running: Iterable[Engine]) -> list[str]:
    """The files and directories on which the result of `engines` depends. :param running: that result."""
    read = [path for engine in running for path in engine.files]
    directories = [path.rpartition("/")[0] for path in read]
    imported = [directory for engine in running for directory in engine.imports]
    return list(dict.fromkeys((*_CONTAINERD, _CRIO, f"{_CRIO}.d", *read, *directories, *imported)))


def _containerds(files: Files, programs: Iterable[Program]) -> list[tuple[str, Program | None]]:
    """The configuration file of each containerd, with its process (None if it does not run)."""
    running: dict[str, Program | None] = {}
    for program in programs:
        if program.name == "containerd":
            running.setdefault(flag(program.argv, "config", "c") or _CONTAINERD[0], program)
    if not running:
        running = {path: None for path in _CONTAINERD if files.exists(path)}
    return list(running.items())


def _containerd(files: Files, path: str, program: Program | None) -> Engine | None:
    """A containerd; None for one that runs no pods: Docker's, or Bottlerocket's for its own containers."""
    loaded = _Configuration(files)
    config = loaded.with_imports(path)
    if not set(_CRI).isdisjoint(strings(config.get("disabled_plugins"))):
        return None
    version = config.get("version")
    version = version if isinstance(version, int) else 1 if loaded.read else 0
    disabled = switch(dig(config, "plugins", _NRI, "disable"))
    # NRI is on by default in containerd 2. Configuration version 2 is read by 1.7 (default off) and 2 (on).
    on = not disabled if disabled is not None else True if version >= 3 else None
    if _NRI in strings(config.get("disabled_plugins")):
        on = False
    # The service of NixOS has its packages in the PATH.
    search = _SHIM_PLACES if program is None else program.environment.get("PATH", _SHIM_PLACES)
    places = search.split(":", _MAX_PLACES)[:_MAX_PLACES]
    handlers = tuple(
        _handler(files, "containerd", name, _with_shim(files, table, places), loaded.origin.get(name, path),
                 config_path=string(dig(table, "options", "ConfigPath")), kind=string(table.get("runtime_type")),
                 annotations=strings(table.get("pod_annotations")), base_spec=string(table.get("base_runtime_spec")),
                 program=program)
        for name, table in _cri_handlers(config))
    nri = dig(config, "plugins", _NRI)
    return Engine("containerd", None if program is None else program.pid, tuple(loaded.read), on,
                  string(dig(nri, "socket_path")), handlers, _default_handler(config),
                  switch(dig(nri, "disable_connections")) is True,
                  string(dig(nri, "plugin_path")) or _NRI_PLUGINS, trouble=tuple(loaded.trouble),
                  imports=tuple(loaded.imports))


def _cri_handlers(config: Table) -> list[tuple[str, Table]]:
    """The handlers by name, with those in sections of their own (pkg/cri/config, ValidatePluginConfig; until 1.7)."""
    sections = [dig(config, "plugins", plugin, "containerd") for plugin in _CRI]
    own = [(name, table) for section in sections for name, key in _OWN_SECTIONS
           if isinstance(table := dig(section, key), dict) and table.get("runtime_type")]
    return [handler for section in sections for handler in tables(dig(section, "runtimes"))] + own


def _default_handler(config: Table) -> str:
    """The handler of pods without a RuntimeClass: a section of its own comes before the name of another."""
    sections = [dig(config, "plugins", plugin, "containerd") for plugin in _CRI]
    names = ("default" if string(dig(section, "default_runtime", "runtime_type")) else
             string(dig(section, "default_runtime_name")) for section in sections)
    return next(filter(None, names), "")


def _with_shim(files: Files, table: Table, places: Sequence[str]) -> Table:
    """Add to a handler's table the path of the shim that its type names (containerd: pkg/shim/util.go, BinaryName), or
    is."""
    kind = string(table.get("runtime_type")).split(".")
    if not string(table.get("runtime_path")) and kind[0].startswith("/"):
        return {**table, "runtime_path": ".".join(kind)}
    if string(table.get("runtime_path")) or len(kind) < 2:
        return table
    name = f"containerd-shim-{kind[-2]}-{kind[-1]}"
    shim = next((path for place in places if place[:1] == "/" and files.exists(path := f"{place}/{name}")), "")
    return {**table, "runtime_path": shim} if shim and "/" not in name else table


class _Configuration:
    """An engine's configuration files as far as they are loaded: their paths (`read`), errors (`trouble`), the file of
    each handler (`origin`), and the directories of `imports`, which may have no file yet."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.read: list[str] = []
        self.trouble: list[str] = []
        self.imports: list[str] = []
        self.origin: dict[str, str] = {}

    def load(self, paths: Iterable[str]) -> Iterator[tuple[str, Table]]:
        """Yield the existing files with their contents."""
        for path in paths:
            try:
                table = load_toml(self._files, path)
            except SourceError as err:
                self.trouble.append(str(err))
                continue
            if table is not None:
                self.read.append(path)
                yield path, table

    def with_imports(self, path: str) -> Table:
        """Load a file of containerd and merge its imports over it, and then theirs; the lists of disabled plugins are
        added up (containerd 2: cmd/containerd/server/config, LoadConfig and mergeConfig)."""
        config: Table = {}
        pending, disabled = [path], list[str]()
        while pending and len(self.read) < _MAX_IMPORTS:
            path = pending.pop(0)
            if path in self.read:
                continue
            for _, table in self.load([path]):
                self.origin |= {name: path for name, _ in _cri_handlers(table)}
                config = merge(config, table)
                disabled += strings(table.get("disabled_plugins"))
                for pattern in strings(table.get("imports")):
                    place = os.path.normpath(pattern if pattern.startswith("/") else
                                             f"{path.rpartition('/')[0]}/{pattern}")
                    self.imports.append(place.rpartition("/")[0])
                    pending += self._files.glob(place)
        return {**config, "disabled_plugins": disabled}


def _crio(files: Files, program: Program | None) -> Engine:
    argv, environment = ([], {}) if program is None else (program.argv, program.environment)
    directory = flag(argv, "config-dir", "d") or environment.get("CONTAINER_CONFIG_DIR") or f"{_CRIO}.d"
    config: Table = {}
    loaded = _Configuration(files)
    paths = (flag(argv, "config", "c") or environment.get("CONTAINER_CONFIG") or _CRIO, *files.below(directory))
    for path, table in loaded.load(paths):
        loaded.origin |= {name: path for name, _ in tables(dig(table, "crio", "runtime", "runtimes"))}
        config = merge(config, table)
        for key in ("runtimes", "workloads"):  # of a map each value is replaced as a whole (BurntSushi/toml: unifyMap)
            for name, value in tables(dig(table, "crio", "runtime", key)):
                config["crio"]["runtime"][key][name] = value
    runtime = dig(config, "crio", "runtime")
    runtimes = dict(tables(dig(runtime, "runtimes")))
    given = flag_values(argv, "runtimes") or [environment.get("CONTAINER_RUNTIMES", "")]
    for name, table in _runtimes_of_flags(given):
        runtimes[name], loaded.origin[name] = table, "the command line"
    default_name = (flag(argv, "default-runtime") or environment.get("CONTAINER_DEFAULT_RUNTIME")
                    or string(dig(runtime, "default_runtime")))
    default = runtimes.get(default_name)
    handlers = []
    for name, table in runtimes.items():
        if table.get("inherit_default_runtime") is True and isinstance(default, dict):  # CRI-O: ValidateRuntimes
            table = default
        handlers.append(_handler(files, "crio", name, table, loaded.origin[name],
                                 config_path=string(table.get("runtime_config_path")),
                                 kind=string(table.get("runtime_type")), annotations=None, base_spec="",
                                 program=program))
    nri = dig(config, "crio", "nri")
    on, closed = flag_switch(argv, "enable-nri"), flag_switch(argv, "nri-disable-connections")
    named = flag_values(argv, "hooks-dir") or [environment.get("CONTAINER_HOOKS_DIR", "")]
    named = named[0].split(",") if len(named) == 1 else named  # (internal/criocli, StringSliceTrySplit)
    configured = dig(runtime, "hooks_dir")
    hooks = tuple(filter(None, map(str.strip, named))) or (_HOOKS if configured is None else strings(configured))
    return Engine("crio", None if program is None else program.pid, tuple(loaded.read),
                  switch(dig(nri, "enable_nri")) if on is None else on,
                  flag(argv, "nri-listen") or string(dig(nri, "nri_listen")), tuple(handlers), default_name,
                  switch(dig(nri, "nri_disable_connections")) is True if closed is None else closed,
                  flag(argv, "nri-plugin-dir") or string(dig(nri, "nri_plugin_dir")) or _NRI_PLUGINS,
                  {name: string(dig(table, "resources", "cpuset"))
                   for name, table in tables(dig(config, "crio", "runtime", "workloads"))},
                  hooks_dirs=hooks, trouble=tuple(loaded.trouble))


def _runtimes_of_flags(values: Iterable[str]) -> Iterator[tuple[str, Table]]:
    """The handlers in CRI-O's --runtimes: NAME:PATH:ROOT[:TYPE[:PRIVILEGED[:CONFIGURATION[:MEMORY]]]], separated by
    commas (internal/criocli, mergeRuntimesConfig)."""
    for fields in (handler.split(":") for value in values for handler in value.split(",")):
        if 3 <= len(fields) <= 7:
            name, path, _, kind, _, config_path = (*fields, "", "", "")[:6]
            yield name, {"runtime_path": path, "runtime_type": kind, "runtime_config_path": config_path}


def _podman(files: Files) -> Engine:
    """A list with `{append=true}` adds to earlier files' lists, as do later ones (5.0; common: attributedstring). The
    drop-ins of all directories are read in the order of their names, of one name the last (6.0; storage: configfile);
    older versions have only /etc/containers/containers.conf.d."""
    hooks, append = _HOOKS, False
    loaded = _Configuration(files)
    places = [f"{top}/containers/containers{kind}.conf" for top in ("/usr/share", "/etc") for kind in ("", ".rootful")]
    dropins = {path.rpartition("/")[2]: path for place in places for path in files.glob(f"{place}.d/*.conf")}
    paths = (places[0], places[2], *(dropins[name] for name in sorted(dropins)))
    for _, table in loaded.load(paths):
        listed = dig(table, "engine", "hooks_dir")
        for item in listed if isinstance(listed, list) else ():
            append = append if (given := switch(dig(item, "append"))) is None else given
        if own := strings(listed):
            hooks = (*hooks, *own) if append else own
    return Engine("podman", files=tuple(loaded.read), hooks_dirs=hooks, trouble=tuple(loaded.trouble))


def _handler(files: Files, engine: str, name: str, table: dict[str, Any], file: str, *, config_path: str, kind: str,
             annotations: tuple[str, ...] | None, base_spec: str, program: Program | None) -> Handler:
    """Make a handler. It is Kata's by its shim, which may be a link, by its type, because it may have any name, or by
    the annotations that it passes on: a distribution of Kata may have named the shim anew (Contrast)."""
    shim = string(table.get("runtime_path"))
    shims = [path.rpartition("/")[2] for path in (shim, files.real(shim))] if shim else []
    kata = (".kata" in kind or any("kata" in shim for shim in shims) or (not kind and name.startswith("kata"))
            or any("io.katacontainers." in key for key in annotations or ()))
    conf_file = "" if program is None else program.environment.get("KATA_CONF_FILE", "")
    return Handler(name, engine, kata, file, shim, config_path, annotations, base_spec, conf_file)
