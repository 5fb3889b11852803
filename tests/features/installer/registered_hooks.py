"""A directory of hook registrations: what is in it, its installation and its removal."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from vmpin.features.installer import file_operations, oci_hook
from vmpin.features.installer.verbs import install_hook

DEFAULT_FILES = {"vmpin-hook", "50-vmpin-createRuntime.json", "50-vmpin-createContainer.json",
                 "50-vmpin-poststart.json", "50-vmpin-poststop.json"}


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def install(directory: Path, options: oci_hook.HookOptions) -> list[Path]:
    """:returns: the files written."""
    operations = oci_hook.plan_install(directory, options)
    file_operations.execute(operations)
    return [file.path for file in operations if isinstance(file, file_operations.WriteFile)]


def remove(directory: Path) -> list[Path]:
    operations = oci_hook.plan_remove(directory)
    file_operations.execute(operations)
    return [file.path for file in operations]


def command(*args: str) -> int:
    parser = argparse.ArgumentParser()
    install_hook.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["hook", *args])
    code: int = parsed.run(parsed)
    return code
