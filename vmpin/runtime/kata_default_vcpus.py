"""`default_vcpus` of Kata's configuration: the vCPUs of a VM without those of its containers.

The runtime handler names the file, as kata-deploy and the packages install them: `kata-clh` has
`configuration-clh.toml`, `kata` the default one. What stays out: a pod's annotation, and what the VMM was started with
(reconcile.vm_size); all other keys (doctor.collect.kata_config).

Sources: kata-containers src/runtime/pkg/katautils/config.go (defaultVCPUs), src/libs/kata-types/src/config/default.rs.
Called by daemon.allocating.
"""

from __future__ import annotations

import logging
import math
import os

from vmpin.errors import SourceError
from vmpin.host.files import Files
from vmpin.runtime.toml_files import Table, load, merge

logger = logging.getLogger(__name__)

#: Kata's own, where the file has none, or 0.
DEFAULT = 1
_TOPS = ("/etc/kata-containers", "/opt/kata/share/defaults/kata-containers", "/usr/share/defaults/kata-containers")
_BELOW = ("", "/runtimes/{shim}", "/runtime-rs", "/runtime-rs/runtimes/{shim}")
_Stamps = tuple[tuple[str, int, int], ...]


class KataDefaultVcpus:
    """Called while the runtime waits: a file is read again only when it changed. :param cpus: of the machine, which a
    negative number stands for."""

    def __init__(self, files: Files, cpus: int) -> None:
        self._files, self._cpus = files, cpus
        self._known: dict[str, tuple[_Stamps, int]] = {}

    def of(self, handler: str) -> int:
        """Return default_vcpus of the VMs of a runtime handler; `DEFAULT` where no file sets another."""
        path = next((path for path in _places(handler) if self._files.exists(path)), "")
        if not path:
            return DEFAULT
        real = self._files.real(path)
        directory = f"{os.path.dirname(real)}/config.d"
        names = [real, *(f"{directory}/{name}" for name in self._files.names(directory))]
        stamps = tuple(self._stamp(name) for name in names)
        kept = self._known.get(path)
        if kept is None or kept[0] != stamps:
            kept = self._known[path] = stamps, self._read(names)
        return kept[1]

    def _stamp(self, path: str) -> tuple[str, int, int]:
        try:
            found = os.stat(self._files.host(path))
        except OSError:
            return path, 0, 0
        return path, found.st_mtime_ns, found.st_size

    def _read(self, paths: list[str]) -> int:
        table: Table = {}
        for path in paths:
            try:
                table = merge(table, load(self._files, path) or {})
            except SourceError as err:
                logger.warning("%s: default_vcpus is taken from what could be read", err)
        sections = table.get("hypervisor")
        values = [section.get("default_vcpus") for section in sections.values() if isinstance(section, dict)] if (
            isinstance(sections, dict)) else []
        numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
        # runtime-rs takes fractions, and rounds up.
        value = next((math.ceil(each) for each in numbers if abs(each) < 1 << 16), 0)
        return min(value, self._cpus) if value > 0 else self._cpus if value < 0 else DEFAULT


def _places(handler: str) -> list[str]:
    shim = handler.removeprefix("kata-").removeprefix("kata")
    named = [f"{top}{below.format(shim=shim)}/configuration-{shim}.toml" for top in _TOPS for below in _BELOW
             ] if shim and "/" not in shim else []
    return [*named, *(f"{top}{below}/configuration.toml" for top in _TOPS for below in ("", "/runtime-rs"))]
