"""Reads the configuration files of both Kata runtimes: which file a runtime handler uses, merged with its drop-ins as
the runtime does it.

The file is named by the container runtime (ConfigPath, runtime_config_path), or by a shim that is a script or the
runtime's environment (KATA_CONF_FILE, as older kata-deploy versions set it); otherwise it is the first default path
that exists. Go: pkg/containerd-shim-v2/create.go and pkg/katautils/config.go; Rust: runtimes/src/manager.rs and
libs/kata-types/src/config (default.rs, drop_in.rs). Both follow links to the file, take the directory `config.d`
beside it, and merge its files sorted by name. A pod's annotations may override settings; these are not considered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vmpin.domain.facts import Engine, FoundSetting, Handler, KataConfig
from vmpin.errors import SourceError
from vmpin.host.files import Files
from vmpin.runtime.documents import Table, dig, load_toml, tables

_ETC = "/etc/kata-containers"
#: Below a runtime's install prefix: by Kata's own Makefile, in the packages of Fedora and RHEL, and of Talos.
_BELOW_PREFIX = ("share/defaults/kata-containers", "share/kata-containers/defaults", "share/kata-containers")
_PREFIXES = ("/usr", "/opt/kata", "/usr/local", "/opt/confidential-containers")
#: kata-deploy with MULTI_INSTALL_SUFFIX (tools/packaging/kata-deploy/binary/src/config.rs).
_SUFFIXED = "/opt/kata-*"
_INSTALLATION = re.compile(r"/opt/kata(-[^/]+)/")
#: Subdirectories by runtime; and those of kata-deploy for single handlers (runtimes/SHIM, custom-runtimes).
_OF_RUNTIME = {"go": "", "rs": "/runtime-rs"}
_OF_SHIM = ("", "/runtimes/*", "/custom-runtimes/*")
_SCRIPT = re.compile(r"^\s*(?:(?:export|exec|env)\s+)*KATA_CONF_FILE=[\"']?([^\s\"']+)", re.MULTILINE)
_SCRIPT_BYTES = 4096
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")
#: The keys that are read, by section; those of a hypervisor are in `[hypervisor.NAME]`.
RUNTIME = ("enable_vcpus_pinning", "sandbox_cgroup_only", "static_sandbox_resource_mgmt")
HYPERVISOR = ("path", "default_vcpus", "overhead_vcpus", "default_maxvcpus", "enable_numa", "enable_iothreads",
              "indep_iothreads", "confidential_guest", "rootless", "guest_hook_path", "enable_debug")
FACTORY = ("enable_template", "vm_cache_number")


def config_path(files: Files, handler: Handler) -> str:
    """The path of a handler's configuration file, which need not exist; "" if none is configured and there is none at
    a default path."""
    shim = files.real(handler.runtime_path) if handler.runtime_path else ""
    runtime = "rs" if "runtime-rs" in f"{handler.runtime_path}{shim}" else "go"
    variable = _script_path(files, shim) or handler.kata_conf_file
    # Go's runtime looks at the variable last (create.go), the Rust one first (manager.rs: load_config).
    named = handler.config_path or variable if runtime == "go" else variable or handler.config_path
    # The shims of both runtimes have the same name, and a package may have the Rust one alone (Kata 4: NixOS).
    return named or default_path(files, runtime, shim) or default_path(files, "rs", shim)


def default_path(files: Files, runtime: str, shim: str = "") -> str:
    """The default configuration file of a runtime; "" if there is none.
    :param runtime: "go" or "rs". :param shim: the runtime's program; its install prefix is searched first, because its
        default path is compiled in."""
    return next((path for top in _tops(files, shim)
                 if files.exists(path := f"{top}{_OF_RUNTIME[runtime]}/configuration.toml")), "")


def path_by_name(files: Files, name: str) -> str:
    """The configuration file of a handler that no container runtime's configuration has, by kata-deploy's naming:
    configuration-clh.toml for `kata-clh`, the same in /opt/kata-dev for `kata-clh-dev`, otherwise the default file; ""
    if neither exists."""
    shim = name.removeprefix("kata-").removeprefix("kata")
    places = []
    for top in _tops(files) if _NAME.fullmatch(shim) else ():
        suffix = _INSTALLATION.match(top)
        for own in dict.fromkeys((shim, shim.removesuffix(suffix[1]) if suffix else shim)):
            places += [f"{top}{runtime}{below}/configuration-{own}.toml" for runtime in _OF_RUNTIME.values()
                       for below in ("", f"/runtimes/{own}")]
    return next((path for path in places if files.exists(path)), "") or default_path(files, "go") or (
        default_path(files, "rs"))


def configurations(files: Files, engines: Iterable[Engine]) -> tuple[KataConfig, ...]:
    """The configurations used by Kata's handlers; without handlers, all that exist at default paths."""
    handlers = [handler for engine in engines for handler in engine.handlers if handler.kata]
    readers: dict[str, list[str]] = {}
    for handler in handlers:
        if path := config_path(files, handler):
            readers.setdefault(path, []).append(handler.name)
    if not handlers:
        readers |= {path: ["default"] for runtime in _OF_RUNTIME if (path := default_path(files, runtime))}
        real_paths = {files.real(path) for path in readers}
        patterns = [f"{top}{runtime}{below}/configuration*.toml" for top in _tops(files)
                    for runtime in _OF_RUNTIME.values() for below in _OF_SHIM]
        readers |= {path: [] for pattern in patterns for path in files.glob(pattern)
                    if files.real(path) not in real_paths}
    return tuple(config for path, names in readers.items() if (config := read(files, path, names)) is not None)


def _tops(files: Files, shim: str = "") -> list[str]:
    """The directories to search for configurations, in order."""
    own = shim.rpartition("/")[0].removesuffix("/bin").removesuffix("/runtime-rs")
    prefixes = dict.fromkeys((*((own,) if own.startswith("/") else ()), *_PREFIXES, *files.glob(_SUFFIXED)))
    return list(dict.fromkeys((_ETC, *(f"{at}/{below}" for at in prefixes for below in _BELOW_PREFIX))))


def _script_path(files: Files, shim: str) -> str:
    """The configuration file set by a shim that is a script; "" for another program, or without a shim."""
    script = files.beginning(shim, _SCRIPT_BYTES) if shim else b""
    match = _SCRIPT.search(script.decode("utf-8", "replace")) if script.startswith(b"#!") else None
    return "" if match is None else match[1]


def dropins(files: Files, path: str) -> tuple[str, ...]:
    """The drop-in files of a configuration, in the order in which they are merged."""
    directory = f"{files.real(path).rpartition('/')[0]}/config.d"
    return tuple(f"{directory}/{name}" for name in files.names(directory))


def read(files: Files, path: str, readers: Sequence[str]) -> KataConfig | None:
    """Read a configuration with its drop-ins; None if the file does not exist."""
    real, over = files.real(path), dropins(files, path)
    settings: dict[str, FoundSetting] = {}
    runtime = "rs" if "/runtime-rs/" in f"{path}{real}" else "go"
    for file in (real, *over):
        try:
            table = load_toml(files, file)
        except SourceError as err:
            return KataConfig(path, runtime, tuple(readers), over, settings, str(err))
        if table is None:
            if file == real:
                return None
            continue
        if dig(table, "runtime", "hypervisor_name") is not None:
            runtime = "rs"  # runtime-rs only: the Go runtime takes the hypervisor from the section's name
        picked = _picked(table, _folded if runtime == "go" else dict)
        settings |= {key: FoundSetting(value, path if file == real else file) for key, value in picked}
    return KataConfig(path, runtime, tuple(readers), over, settings)


def _folded(table: Mapping[str, Any]) -> Table:
    """The table with its keys in small letters, as Go's parser ignores case; one that has only such letters counts
    before others (BurntSushi/toml decode.go: unifyStruct)."""
    return {key.lower(): value for key, value in sorted(table.items(), key=lambda item: item[0].islower())}


def _picked(table: Table, fold: Callable[[Table], Table]) -> Iterable[tuple[str, object]]:
    top = fold(table)
    sections = {**dict(tables(top)), **{f"hypervisor.{name}": own for name, own in tables(top.get("hypervisor"))}}
    for name, section in sections.items():
        values = fold(section)
        keys = HYPERVISOR if name.startswith("hypervisor.") else {"runtime": RUNTIME, "factory": FACTORY}.get(name, ())
        yield from ((f"{name}.{key}", values[key]) for key in keys if key in values)
