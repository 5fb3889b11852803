"""The vCPUs of a VM in addition to those for its containers, by Kata's configuration: `default_vcpus`, or
`overhead_vcpus` with runtime-rs' static sizing.

Sources: kata-containers src/runtime/pkg/katautils/config.go (defaultVCPUs), src/libs/kata-types/src/config/default.rs
and hypervisor/mod.rs (CpuInfo), src/runtime-rs/crates/resource/src/cpu_mem/initial_size.rs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence

from vmpin.domain.facts import Engine, Handler, KataConfig
from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.engines import configuration_places, engines
from vmpin.runtime.kata_config import config_path, dropins, path_by_name, read

logger = logging.getLogger(__name__)

#: Kata's default if the file has no value, or 0.
DEFAULT = 1
_Stamps = tuple[tuple[str, int, int], ...]


class _Vcpus(NamedTuple):
    default: float = DEFAULT
    #: In thousandths of a vCPU; None if VMs are not sized by it.
    overhead: int | None = None


class KataDefaultVcpus:
    """Looks up default_vcpus and overhead_vcpus by runtime handler. The container runtime waits for it, so a file is
    read again only if it changed.
    :param cpus: the machine's number of CPUs; a negative setting means all of them.
    :param programs: returns the running container runtimes, whose flags may name another configuration. Called once,
        for a handler that is in no configuration at a default path."""

    def __init__(self, files: Files, cpus: int, programs: Callable[[], Sequence[Program]] = tuple) -> None:
        self._files, self._cpus = files, cpus
        self._programs = programs
        self._running: Sequence[Program] | None = None
        self._engines: tuple[_Stamps, tuple[Engine, ...]] = ((), ())
        self._known: dict[str, tuple[_Stamps, _Vcpus]] = {}

    def of(self, handler: str) -> float:
        """Return default_vcpus for the VMs of a runtime handler; `DEFAULT` if no file sets it. Both runtimes take
        fractions, and round up after they have added the containers' limits (sandbox.go: updateResources; cpu.rs)."""
        return self._vcpus(handler).default

    def overhead(self, handler: str) -> int | None:
        """The thousandths of a vCPU that runtime-rs adds to the CPU limits of a pod's containers in place of
        default_vcpus, if it sizes VMs at their start (static_sandbox_resource_mgmt); None if it does not, or has no
        such key."""
        return self._vcpus(handler).overhead

    def _vcpus(self, handler: str) -> _Vcpus:
        path = self._path(handler)
        if not path:
            return _Vcpus()
        stamps = self._stamps([self._files.real(path), *dropins(self._files, path)])
        unchanged, vcpus = self._known.get(path, (None, _Vcpus()))
        if unchanged != stamps:
            vcpus = self._read(path)
            self._known[path] = stamps, vcpus
        return vcpus

    def _path(self, name: str) -> str:
        """The configuration file for a handler: as named by the container runtime, otherwise Kata's default."""
        handlers = self._handlers()
        if name not in handlers and self._running is None:
            self._running, self._engines = self._programs(), ((), ())
            handlers = self._handlers()
        return config_path(self._files, handlers[name]) if name in handlers else path_by_name(self._files, name)

    def _handlers(self) -> dict[str, Handler]:
        """Kata's runtime handlers by name; "" is the default one, of a pod without a RuntimeClass. Read again if a
        container runtime's configuration changed."""
        stamps, current = self._engines
        places = configuration_places(current)
        if not stamps or stamps != self._stamps(places):
            current = engines(self._files, self._running or ())
            self._engines = self._stamps(configuration_places(current)), current
        return {name: handler for engine in reversed(current) for handler in engine.handlers if handler.kata
                for name in (handler.name, "" if handler.name == engine.default else handler.name)}

    def _stamps(self, paths: Iterable[str]) -> _Stamps:
        return tuple(self._stamp(path) for path in paths)

    def _stamp(self, path: str) -> tuple[str, int, int]:
        try:
            info = os.stat(self._files.host(path))
        except (OSError, ValueError):  # ValueError: a path with a NUL
            return path, 0, 0
        return path, info.st_mtime_ns, info.st_size

    def _read(self, path: str) -> _Vcpus:
        config = read(self._files, path, ())
        if config is None:
            return _Vcpus()
        if config.trouble:
            logger.warning("%s: default_vcpus is taken from the part that could be read", config.trouble)
        value = _number(config, "default_vcpus") or 0
        default = min(value, self._cpus) if value > 0 else self._cpus if value < 0 else DEFAULT
        static = any(setting.value is True for _, setting in config.find("static_sandbox_resource_mgmt"))
        overhead = _number(config, "overhead_vcpus") if static and config.runtime == "rs" else None
        return _Vcpus(default, None if overhead is None else max(0, round(overhead * 1000)))


def _number(config: KataConfig, key: str) -> float | None:
    """The first numeric value of a hypervisor's key; None if there is none."""
    numbers = [setting.value for _, setting in config.find(key)
               if isinstance(setting.value, int | float) and not isinstance(setting.value, bool)]
    return next((number for number in numbers if abs(number) < 1 << 16), None)
