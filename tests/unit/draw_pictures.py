"""Draws screens in docs/pictures from recorded data, by the program's own code. From the repository's root:

    python tests/unit/draw_pictures.py
"""

from __future__ import annotations

import html
import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import recorded_node
from rich import _export_format
from rich.console import Console
from rich.text import Text

from vmpin.cli.status import print_chosen
from vmpin.domain.pod_names import names_of

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
#: Rich's (it has no public name), without fonts from the web: what shows it has a monospaced one.
FORM = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", _export_format.CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def svg(lines: list[Text], title: str, columns: int = 80) -> str:
    console = Console(record=True, width=columns, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    return console.export_svg(title=title, code_format=FORM, unique_id="vmpin")


def words_of(drawing: str) -> list[str]:
    """The texts of an SVG, without what differs between versions of rich."""
    return [html.unescape(text).replace("\xa0", " ").strip()
            for text in re.findall(r"<text[^>]*>([^<]*)</text>", drawing) if text.strip()]


def status() -> str:
    found = recorded_node.status()
    names = names_of(found)
    found["sandboxes"] = found["sandboxes"][:1]
    shown = Terminal()
    with patch.dict(os.environ, {"COLUMNS": "80", "TERM": "xterm-256color"}), redirect_stdout(shown):
        print_chosen(found, names)
    lines = [Text.from_ansi(line) for line in shown.getvalue().splitlines()]
    return svg(lines, "vmpin status shop/web-7d9f8c6b5-x2zkp")


def main() -> None:
    (PICTURES / "status.svg").write_text(status(), encoding="utf-8")


if __name__ == "__main__":
    main()
