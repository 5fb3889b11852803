"""The kubelet's flags, in the order in which it takes them, each with the file or command line that has it.

Those of a kubelet by itself are on its command line. k3s and RKE2 (pkg/configfilearg/parser.go,
pkg/daemons/config/types.go, GetArgs) take theirs from `kubelet-arg` in config.yaml and its drop-ins, then from their
own command line; a drop-in's key replaces the one before, `key+` adds to it. kubelite (MicroK8s) has a file of
them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vmpin.config import yaml_file
from vmpin.errors import ConfigError, SourceError
from vmpin.host.daemons import Program, flag
from vmpin.host.files import Files

COMMAND_LINE = "the command line"
_RANCHER = ("k3s", "rke2")
_KUBELET_ARG = "kubelet-arg"
_ARGS_FILE = "kubelet-args-file"
_MICROK8S = "/var/snap/microk8s"
_VARIABLE = re.compile(r"\$\{?(SNAP_DATA|SNAP_COMMON)\}?")


class KubeletFlag(NamedTuple):
    """`name` as the kubelet has it, with dashes (cliflag.WordSepNormalizeFunc)."""

    name: str
    value: str
    where: str


def kubelet_flags(files: Files, program: Program | None, trouble: list[str]) -> list[KubeletFlag]:
    """The flags of a running kubelet, or of the program that it is a part of; without one, those that are configured
    for k3s and RKE2. Appends to `trouble` what cannot be read."""
    if program is None:
        return [found for name in _RANCHER for found in _rancher(files, name, (), trouble)]
    if program.name in _RANCHER:
        return _rancher(files, program.name, program.argv[1:], trouble)
    if program.name == "kubelite":
        return _kubelite(files, program.argv, trouble)
    return list(_split(program.argv[1:], COMMAND_LINE)) if program.name == "kubelet" else []


def data_directory(files: Files, name: str, argv: Sequence[str], trouble: list[str]) -> str:
    """The data directory of k3s or RKE2."""
    values = [value for value, _ in _configured(files, name, argv, trouble).get("data-dir", [])]
    return flag(argv, "data-dir", "d") or (values[-1] if values else f"/var/lib/rancher/{name}")


def document(files: Files, path: str, trouble: list[str]) -> Mapping[str, object] | None:
    """A YAML or JSON file's object; None where there is none. Appends to `trouble` why a file cannot be read."""
    try:
        raw = files.read(path)
        found = None if raw is None else yaml_file.parse(Path(path), raw)
    except (ConfigError, SourceError) as err:
        trouble.append(str(err))
        return None
    return found if isinstance(found, dict) else None


def _split(argv: Sequence[str], where: str) -> Iterator[KubeletFlag]:
    """Go's ways to write a flag: `--name=value`, `--name value`; a flag before another one is true."""
    for at, arg in enumerate(argv):
        if not arg.startswith("-"):
            continue
        name, equals, value = arg.lstrip("-").partition("=")
        if not equals:
            after = argv[at + 1] if at + 1 < len(argv) else "-"
            value = "true" if after.startswith("-") else after
        yield KubeletFlag(name.replace("_", "-"), value, where)


def _rancher(files: Files, name: str, argv: Sequence[str], trouble: list[str]) -> list[KubeletFlag]:
    """The kubelet's flags of k3s or RKE2: those of its own command line follow those of its configuration."""
    given = [*_configured(files, name, argv, trouble).get(_KUBELET_ARG, []),
             *((found.value, COMMAND_LINE) for found in _split(argv, COMMAND_LINE) if found.name == _KUBELET_ARG)]
    flags: list[KubeletFlag] = []
    for arg, where in given:
        key, equals, value = arg.removeprefix("--").partition("=")
        made = KubeletFlag(key.rstrip("+-").replace("_", "-"), value if equals else "true", where)
        # NAME-=VALUE comes before the values that NAME already has.
        flags.insert(0 if key.endswith("-") else len(flags), made)
    return flags


def _configured(files: Files, name: str, argv: Sequence[str],
                trouble: list[str]) -> dict[str, list[tuple[str, str]]]:
    """The values of each key in the configuration and its drop-ins, with their files."""
    main = flag(argv, "config", "c") or f"/etc/rancher/{name}/config.yaml"
    dropins = [f"{main}.d/{each}" for each in files.names(f"{main}.d") if each.lower().endswith((".yaml", ".yml"))]
    found: dict[str, list[tuple[str, str]]] = {}
    for path in (main, *dropins):
        for key, value in (document(files, path, trouble) or {}).items():
            items = value if isinstance(value, list) else [] if value is None else [value]
            values = [(text(item), path) for item in items]
            bare = str(key).removesuffix("+")
            found[bare] = [*found.get(bare, ()), *values] if str(key).endswith("+") else values
    return found


def text(value: object) -> str:
    """A value of YAML as a flag has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kubelite(files: Files, argv: Sequence[str], trouble: list[str]) -> list[KubeletFlag]:
    """The flags in kubelite's file of them: one or several in a line, with variables of the snap's environment."""
    named = flag(argv, _ARGS_FILE)
    # The revision in the path may have been removed since: `current` is a link to the one that runs.
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


def last(flags: Iterable[KubeletFlag], name: str) -> str:
    """The value of a flag that has one: the last; "" where it is not given."""
    return next((found.value for found in reversed(list(flags)) if found.name == name), "")
