"""The vCPUs of a VM without those of its containers, by Kata's configuration: `default_vcpus`, and with runtime-rs'
static sizing `overhead_vcpus`.

Sources: kata-containers src/runtime/pkg/katautils/config.go (defaultVCPUs), src/libs/kata-types/src/config/default.rs
and hypervisor/mod.rs (CpuInfo), src/runtime-rs/crates/resource/src/cpu_mem/initial_size.rs.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vmpin.domain.facts import Engine, Handler, KataConfig
from vmpin.host.daemons import Program
from vmpin.host.files import Files
from vmpin.runtime.engines import configuration_places, engines
from vmpin.runtime.kata_config import config_path, dropins, path_by_name, read

logger = logging.getLogger(__name__)

#: Kata's own, where the file has none, or 0.
DEFAULT = 1
_Stamps = tuple[tuple[str, int, int], ...]


class _Vcpus(NamedTuple):
    default: int = DEFAULT
    #: In thousandths; None where a VM is not sized by it.
    overhead: int | None = None


class KataDefaultVcpus:
    """Called while the runtime waits: a file is read again only when it changed.
    :param cpus: of the machine, which a negative number stands for.
    :param programs: the running container runtimes, whose flags may name another configuration. Called once, for a
        handler that no usual configuration has."""

    def __init__(self, files: Files, cpus: int, programs: Callable[[], Sequence[Program]] = tuple) -> None:
        self._files, self._cpus = files, cpus
        self._programs = programs
        self._running: Sequence[Program] | None = None
        self._engines: tuple[_Stamps, tuple[Engine, ...]] = ((), ())
        self._known: dict[str, tuple[_Stamps, _Vcpus]] = {}

    def of(self, handler: str) -> int:
        """Return default_vcpus of the VMs of a runtime handler; `DEFAULT` where no file sets another."""
        return self._vcpus(handler).default

    def overhead(self, handler: str) -> int | None:
        """The thousandths of a vCPU that runtime-rs adds to the limits of a pod's containers, in place of
        default_vcpus, where it sizes VMs at their start (static_sandbox_resource_mgmt); None where it does not, and
        for a version without the key."""
        return self._vcpus(handler).overhead

    def _vcpus(self, handler: str) -> _Vcpus:
        path = self._path(handler)
        if not path:
            return _Vcpus()
        stamps = self._stamps([self._files.real(path), *dropins(self._files, path)])
        kept = self._known.get(path)
        if kept is None or kept[0] != stamps:
            kept = self._known[path] = stamps, self._read(path)
        return kept[1]

    def _path(self, name: str) -> str:
        """The configuration file of a handler's VMs: the one that the container runtime names, else Kata's default."""
        handlers = self._handlers()
        if name not in handlers and self._running is None:
            self._running, self._engines = self._programs(), ((), ())
            handlers = self._handlers()
        return config_path(self._files, handlers[name]) if name in handlers else path_by_name(self._files, name)

    def _handlers(self) -> dict[str, Handler]:
        """Kata's runtime handlers by name, read again when a configuration of a container runtime changed."""
        stamps, current = self._engines
        places = configuration_places(current)
        if not stamps or stamps != self._stamps(places):
            current = engines(self._files, self._running or ())
            self._engines = self._stamps(configuration_places(current)), current
        return {handler.name: handler for engine in reversed(current) for handler in engine.handlers if handler.kata}

    def _stamps(self, paths: Iterable[str]) -> _Stamps:
        return tuple(self._stamp(path) for path in paths)

    def _stamp(self, path: str) -> tuple[str, int, int]:
        try:
            info = os.stat(self._files.host(path))
        except OSError:
            return path, 0, 0
        return path, info.st_mtime_ns, info.st_size

    def _read(self, path: str) -> _Vcpus:
        config = read(self._files, path, ())
        if config is None:
            return _Vcpus()
        if config.trouble:
            logger.warning("%s: default_vcpus is taken from what could be read", config.trouble)
        # runtime-rs takes fractions, and rounds up.
        value = math.ceil(_number(config, "default_vcpus") or 0)
        default = min(value, self._cpus) if value > 0 else self._cpus if value < 0 else DEFAULT
        static = any(setting.value is True for _, setting in config.find("static_sandbox_resource_mgmt"))
        overhead = _number(config, "overhead_vcpus") if static and config.runtime == "rs" else None
        return _Vcpus(default, None if overhead is None else max(0, round(overhead * 1000)))


def _number(config: KataConfig, key: str) -> float | None:
    """The first number that is set for a key of the hypervisor's, None without one."""
    numbers = [setting.value for _, setting in config.find(key)
               if isinstance(setting.value, int | float) and not isinstance(setting.value, bool)]
    return next((number for number in numbers if abs(number) < 1 << 16), None)
