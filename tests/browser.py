"""Pages as Chromium lays them out, at the width of a phone or a desk, light or dark.

CI does not install Chromium (300 MB): without it these tests are skipped there, too. What the pages' style sheets have
to contain is checked without it.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

#: Opens what can be opened, then reports how wide the page is, and the texts that end outside of it or of their
#: drawing. What scrolls by itself (a drawing on a phone) is as wide as it likes.
_MEASURE = """
const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
page.querySelectorAll("details").forEach(details => details.open = true);
const cut = [], texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const node = texts.currentNode, parent = node.parentElement;
  if (!node.data.trim() || parent.closest("style,title,script")) continue;
  const drawing = parent.closest("svg"), range = page.createRange();
  range.selectNodeContents(node);
  const room = drawing ? drawing.getBoundingClientRect() : {left: 0, right: root.clientWidth};
  for (const box of range.getClientRects())
    if (box.width && (box.right > room.right + 1 || box.left < room.left - 1)) cut.push(node.data.trim());
}
const colour = getComputedStyle(page.body).backgroundColor;
const found = {width: root.scrollWidth, room: root.clientWidth, cut, colour};
document.body.innerHTML = "";
document.body.append("MEASURED" + JSON.stringify(found) + "END");
"""


def measured(page: str, width: int, dark: bool, directory: Path) -> dict[str, Any]:
    """(width of the page, room, texts that are cut, colour of the ground) of a page without scripts of its own."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs chromium, which CI does not install")
    # Chromium's windows are 500 pixels wide at least: a phone is a frame in one.
    file = directory / "frame.html"
    file.write_text(f'<!doctype html><body><iframe style="border:0;width:{width}px;height:900px" '
                    f'srcdoc="{html.escape(page)}"></iframe><script>onload = () => {{{_MEASURE}}}</script>',
                    encoding="utf-8")
    colours = ["--blink-settings=preferredColorScheme=0"] if dark else []
    shown = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *colours,
                            f"--user-data-dir={directory}/profile", "--window-size=1400,900", "--dump-dom",
                            file.as_uri()], check=True, capture_output=True, text=True, timeout=600).stdout
    found = re.search("MEASURED(.*)END</body>", shown)
    assert found is not None, shown[:2000]
    return dict(json.loads(html.unescape(found[1])))


def check_page(page: str, width: int, dark: bool, directory: Path) -> None:
    """Nothing of the page is cut, nothing scrolls sideways, and the ground is light or dark as the reader has it."""
    found = measured(page, width, dark, directory)
    assert (found["room"], found["cut"]) == (width, [])
    assert found["width"] <= width
    red, green, blue = map(int, re.findall(r"\d+", found["colour"])[:3])
    assert (max(red, green, blue) < 60) if dark else (min(red, green, blue) > 200)
