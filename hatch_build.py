"""hatchling's hook: the manual pages in the wheel, as share/man/man1 of the environment that it is installed into.

They are made from the parsers of the command line, which need the standard library alone (a test asks for that): the
build needs nothing but hatchling.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPages(BuildHookInterface):  # type: ignore[type-arg]
    """Adds a file for each page."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":  # an editable installation
            return
        sys.path.insert(0, self.root)
        from vmpin.cli.verbs import grammar
        from vmpin.features.shell.verbs.manual_pages import pages
        self._directory = tempfile.TemporaryDirectory()
        for name, text in pages(grammar(), self.metadata.version).items():
            made = Path(self._directory.name, name)
            made.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(made)] = f"share/man/man1/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version == "standard":
            self._directory.cleanup()
