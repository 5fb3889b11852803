"""The hook in a hooks.d directory, which podman and CRI-O read: the script and one JSON registration for each stage.

`plan_install` and `plan_remove` return operations in an order in which no registration ever points to a missing
script."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vmpin.bounded import load_json
from vmpin.errors import UsageError
from vmpin.host.files import read_regular
from vmpin.install.file_operations import Operation, RemoveFile, WriteFile, execute, failing_as
from vmpin.install.hook_options import STAGES, HookOptions
from vmpin.install.hook_script import MAX_BYTES, foreign_file, is_script, points_to, script_operation, script_path


def install(hooks_dir: Path, options: HookOptions, python: str | None = None) -> list[Path]:
    """Put the hook and its registrations there. :returns: the files written. :raises UsageError: as `plan_install`."""
    operations = plan_install(hooks_dir, options, python)
    execute(operations)
    return [operation.path for operation in operations if isinstance(operation, WriteFile)]


def plan_install(hooks_dir: Path, options: HookOptions, python: str | None = None) -> list[Operation]:
    """The operations of install(), in order: the script, its registrations, and the removal of those for other stages.
    :param python: as for `script_operation`. :raises UsageError: when another file has one of the names."""
    script = script_path(hooks_dir)
    operations: list[Operation] = [script_operation(hooks_dir, python)]
    for stage in options.stages:
        path = registration_path(hooks_dir, stage)
        if path.exists() and not _is_registration(path, script):
            raise foreign_file(path)
        text = json.dumps(registration(script, stage, options), indent=2) + "\n"
        operations.append(WriteFile(path, text.encode()))
    return operations + _removals(hooks_dir, script, [stage for stage in STAGES if stage not in options.stages])


def plan_remove(hooks_dir: Path) -> list[Operation]:
    """The operations that undo install(), in order: the registrations, then the script.
    :raises UsageError: naming a registration of the script that vmpin did not write, or a directory that cannot be
        read: it may hold such a registration."""
    script = script_path(hooks_dir)
    ours = _removals(hooks_dir, script, STAGES)
    mine = {operation.path for operation in ours}
    where = script.parent
    with failing_as(f"read {where}"):
        paths = sorted(where / name for name in os.listdir(where) if name.endswith(".json")) if where.exists() else []
    for path in paths:
        if path not in mine and _is_registration(path, script):
            raise UsageError(f"{path} points to {script} and was not written by vmpin",
                             "remove it first: with the hook gone it would stop every container from starting")
    return ours + ([RemoveFile(script)] if is_script(script) else [])


def registration_path(hooks_dir: Path, stage: str) -> Path:
    """Podman and CRI-O run the files of a directory in the order of their names, and read only *.json."""
    return Path(os.path.abspath(hooks_dir)) / f"50-vmpin-{stage}.json"


def registration(script: Path, stage: str, options: HookOptions) -> dict[str, Any]:
    """A hooks.d file, version 1.0.0 (containers/common, pkg/hooks/docs/oci-hooks.5.md)."""
    return {"version": "1.0.0", "hook": options.entry(script, stage), "when": {"always": True}, "stages": [stage]}


def _removals(hooks_dir: Path, script: Path, stages: Sequence[str]) -> list[Operation]:
    paths = [registration_path(hooks_dir, stage) for stage in stages]
    return [RemoveFile(path) for path in paths if _is_registration(path, script)]


def _is_registration(path: Path, script: Path) -> bool:
    """Whether `path` is a hooks.d file for `script`; False for a file that cannot be read."""
    try:
        registration = load_json(read_regular(path, MAX_BYTES, follow=True)[0])
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(registration, dict) and points_to(registration.get("hook"), script)
