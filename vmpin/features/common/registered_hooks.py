"""The registrations of vmpin's OCI hook, in hook directories (podman, CRI-O) and in base specs (containerd).

Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from vmpin.bounded import load_json
from vmpin.domain.facts import CRIO_DEFAULT, Engine, Hook
from vmpin.errors import SourceError
from vmpin.host.files import Files
from vmpin.runtime.documents import Table, dig, string, strings

_SCRIPT = "vmpin-hook"
_SOCKET = "/run/vmpin/hook.sock"
#: Directories that are read even if no runtime names them.
USUAL = (CRIO_DEFAULT, "/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d")


def hooks(files: Files, engines: Sequence[Engine]) -> tuple[Hook, ...]:
    """The registrations, one for each file."""
    #: By real directory (/var/run and /run are the same on most nodes): its first name and its readers.
    places: dict[str, tuple[str, list[str]]] = {files.real(place): (place, []) for place in USUAL}
    for engine in engines:
        for place in engine.hooks_dirs:
            places.setdefault(files.real(place), (place, []))[1].append(engine.name)
    registered: list[Hook] = []
    for place, readers in places.values():
        for name in files.names(place):
            if name.endswith(".json"):
                registered += _in_file(files, f"{place}/{name}", tuple(dict.fromkeys(readers)))
    specs: dict[str, list[str]] = {}
    for engine in engines:
        for handler in engine.handlers:
            if handler.base_spec:
                specs.setdefault(handler.base_spec, []).append(f"{engine.name} handler {handler.name}")
    for path, names in specs.items():
        registered += _in_spec(files, path, tuple(names))
    return tuple(registered)


def _in_file(files: Files, path: str, readers: tuple[str, ...]) -> Iterator[Hook]:
    document = _json(files, path)
    if _ours(entry := dig(document, "hook")):
        yield _hook(files, path, entry, strings(dig(document, "stages")), readers)


def _in_spec(files: Files, path: str, readers: tuple[str, ...]) -> Iterator[Hook]:
    stages = dig(_json(files, path), "hooks")
    entries = [(stage, entry) for stage, listed in (stages.items() if isinstance(stages, dict) else ())
               for entry in (listed if isinstance(listed, list) else ()) if _ours(entry)]
    for _, entry in entries[:1]:
        yield _hook(files, path, entry, tuple(stage for stage, _ in entries), readers)


def _json(files: Files, path: str) -> object:
    try:
        return load_json(files.read(path) or b"null")
    except (SourceError, ValueError, RecursionError):
        return None


def _ours(entry: object) -> bool:
    return string(dig(entry, "path")).rpartition("/")[2] == _SCRIPT


def _hook(files: Files, path: str, entry: Table, stages: tuple[str, ...], readers: tuple[str, ...]) -> Hook:
    script, args = str(entry["path"]), entry.get("args")
    argv = [str(arg) for arg in args] if isinstance(args, list) else []
    socket = argv[argv.index("--socket") + 1] if "--socket" in argv[:-1] else _SOCKET
    return Hook(path, stages, script, socket, "--fail-closed" in argv, _broken(files, script), readers)


def _broken(files: Files, script: str) -> str:
    """Why a runtime could not run the script, "" if it could."""
    try:
        raw = files.read(script)
    except SourceError as err:
        return err.why
    if raw is None:
        return "is not there"
    if not os.stat(files.host(script)).st_mode & 0o111:
        return "is not executable"
    line = raw.partition(b"\n")[0][:256]
    interpreter = os.fsdecode((line[2:].split() or [b""])[0]) if line.startswith(b"#!") else ""
    if not interpreter:
        # Linux executes no other text; of the runtimes only crun then tries a shell.
        return "" if line.startswith(b"\x7fELF") else "has no first line #!INTERPRETER, so that it cannot be executed"
    return "" if files.exists(interpreter) else f"its interpreter {interpreter} is not there"
