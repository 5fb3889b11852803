"""The hook in an OCI runtime spec, which containerd takes as a runtime handler's base spec.

Pure: JSON objects in and out."""

import copy
from pathlib import Path
from typing import Any

from vmpin.errors import UsageError
from vmpin.install.hook_options import HookOptions
from vmpin.install.hook_script import points_to


def with_hook(spec: dict[str, Any], script: Path, options: HookOptions) -> dict[str, Any]:
    """A copy of the OCI spec with the hook, in place of any earlier registration of the same script.
    :raises UsageError: when `spec` is no OCI spec."""
    copied = without_hook(spec, script)
    hooks = copied.setdefault("hooks", {})
    for stage in options.stages:
        hooks.setdefault(stage, []).append(options.entry(script, stage))
    return copied


def without_hook(spec: dict[str, Any], script: Path) -> dict[str, Any]:
    """A copy of the OCI spec without the hook; other hooks stay, an empty `hooks` does not. Kata's runtime-rs takes
    even an empty one as a reason to drop the guest's hooks. :raises UsageError: when `spec` is no OCI spec."""
    if not isinstance(spec.get("ociVersion"), str):
        raise UsageError("this is no OCI runtime spec: it has no ociVersion", "`ctr oci spec` prints one")
    copied = copy.deepcopy(spec)
    hooks = copied.pop("hooks", None) or {}
    if not isinstance(hooks, dict) or not all(isinstance(entries or [], list) for entries in hooks.values()):
        raise UsageError("the hooks of this OCI spec are not lists by stage")
    other = {stage: [entry for entry in entries or [] if not points_to(entry, script)]
             for stage, entries in hooks.items()}
    if kept := {stage: entries for stage, entries in other.items() if entries}:
        copied["hooks"] = kept
    return copied
