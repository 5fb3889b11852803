"""Removing a directory that a running process writes into."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path


def remove_in_use(path: Path) -> None:
    """`rm -rf` of a directory whose writers find it by its path.

    It is renamed first. shutil.rmtree lists, unlinks and only then removes the directory: what a writer makes in
    between fails it ("Directory not empty"). After the rename a writer finds no directory, or makes a new one.
    """
    renamed = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    path.rename(renamed)
    shutil.rmtree(renamed)
