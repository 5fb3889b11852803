"""The configuration files of both Kata runtimes: each file with its drop-ins, as the runtime merges them.

Go: pkg/katautils/config.go; Rust: libs/kata-types/src/config (default.rs, drop_in.rs). Both follow links to the file,
take the directory `config.d` beside it, and merge its files in the order of their names. Called by node_facts. What
stays out: changes by a pod's annotations, and the meaning of a setting (doctor.kata_checks)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vmpin.domain.facts import Engine, FoundSetting, KataConfig
from vmpin.errors import SourceError
from vmpin.host.files import Files
from vmpin.runtime.json_files import dig
from vmpin.runtime.toml_files import Table, load

_TOPS = ("/etc/kata-containers", "/usr/share/defaults/kata-containers", "/opt/kata/share/defaults/kata-containers")
#: The default configuration files by runtime; the first that exists is used.
_DEFAULTS = {runtime: tuple(f"{top}{below}/configuration.toml" for top in _TOPS)
             for runtime, below in (("go", ""), ("rs", "/runtime-rs"))}
#: Where installations keep more of them (kata-deploy: runtimes/SHIM and custom-runtimes/HANDLER).
_PLACES = tuple(f"{top}{below}/configuration*.toml" for top in _TOPS
                for below in ("", "/runtime-rs", "/runtimes/*", "/runtime-rs/runtimes/*", "/custom-runtimes/*"))
#: The keys that are kept, by section; a hypervisor's stand in `[hypervisor.NAME]`.
RUNTIME = ("enable_vcpus_pinning", "sandbox_cgroup_only", "static_sandbox_resource_mgmt")
HYPERVISOR = ("default_vcpus", "default_maxvcpus", "enable_numa", "enable_iothreads", "indep_iothreads",
              "confidential_guest", "rootless", "guest_hook_path", "enable_debug")
FACTORY = ("enable_template", "vm_cache_number")


def configurations(files: Files, engines: Iterable[Engine]) -> tuple[KataConfig, ...]:
    """The configurations that handlers name, and the default ones; without any handler, all that exist."""
    handlers = [handler for engine in engines for handler in engine.handlers if handler.kata]
    readers: dict[str, list[str]] = {}
    for handler in handlers:
        if handler.config_path:
            readers.setdefault(handler.config_path, []).append(handler.name)
    for runtime, paths in _DEFAULTS.items():
        found = next((path for path in paths if files.exists(path)), None)
        if found is not None:
            takers = [handler.name for handler in handlers if not handler.config_path
                      and ("runtime-rs" in handler.runtime_path) is (runtime == "rs")]
            readers.setdefault(found, []).extend(takers or ([] if handlers else ["default"]))
    if not handlers:
        for path in dict.fromkeys(path for place in _PLACES for path in files.glob(place)):
            if files.real(path) not in {files.real(reader) for reader in readers}:
                readers.setdefault(path, [])
    return tuple(config for path, names in readers.items()
                 if (names or not handlers) and (config := _read(files, path, names)) is not None)


def _read(files: Files, path: str, readers: Sequence[str]) -> KataConfig | None:
    """One configuration; None when there is no such file."""
    real = files.real(path)
    directory = f"{real.rpartition('/')[0]}/config.d"
    dropins = tuple(f"{directory}/{name}" for name in files.names(directory))
    settings: dict[str, FoundSetting] = {}
    runtime = "rs" if "/runtime-rs/" in f"{path}{real}" else "go"
    for file in (real, *dropins):
        try:
            table = load(files, file)
        except SourceError as err:
            return KataConfig(path, runtime, tuple(readers), dropins, settings, str(err))
        if table is None:
            if file == real:
                return None
            continue
        settings |= {key: FoundSetting(value, path if file == real else file) for key, value in _picked(table)}
        if dig(table, "runtime", "hypervisor_name") is not None:
            runtime = "rs"  # the Go runtime takes the hypervisor from the section that is there
    return KataConfig(path, runtime, tuple(readers), dropins, settings)


def _picked(table: Table) -> Iterable[tuple[str, object]]:
    for section, keys in (("runtime", RUNTIME), ("factory", FACTORY)):
        for key in keys:
            if (value := dig(table, section, key)) is not None:
                yield f"{section}.{key}", value
    for name in dig(table, "hypervisor") or ():
        for key in HYPERVISOR:
            if (value := dig(table, "hypervisor", name, key)) is not None:
                yield f"hypervisor.{name}.{key}", value
