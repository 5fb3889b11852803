"""Draws the pictures of isolation in docs/pictures from recorded data, by the program's own code. From the
repository's root:

    PYTHONPATH=tests:tests/unit python tests/features/isolation/draw_isolation.py    # the live view, as SVG
    … --page                              # the report as PNG too: chromium, and pillow
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from booked import figures_between
from draw_pictures import PICTURES, svg
from rich.text import Text
from top_given import MS, used

from vmpin.cli.repetition import Screen
from vmpin.cpuset import CpuSet
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.features.isolation.isolation_books import MINUTE, ForeignProgram, ForeignRun, OwnerBook, ProgramKind
from vmpin.features.isolation.isolation_page import page
from vmpin.features.isolation.isolation_report import document, pod_report, with_slo
from vmpin.features.isolation.verbs.top import show


def top() -> str:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(Screen()) as page:
        patch.setenv("COLUMNS", "80")
        show(used(), "foreign", threads=False, trouble="")
    return svg([Text.from_ansi(line) for line in page.getvalue().splitlines()], "vmpin top")


def clock(moment: int) -> str:
    minutes = moment // MINUTE
    return f"2026-11-{1 + minutes // 1440:02}T{minutes // 60 % 24:02}:{minutes % 60:02}:00Z"


def isolation() -> str:
    """A day of one pod: a backup each night at two, a little of the kernel, half an hour without samples."""
    book = OwnerBook("5f2c8e91d0b7", 0)
    book.namespace, book.pod, book.kind = "shop", "web-7d9f8c6b5-x2zkp", "vm"
    book.cpus = CpuSet.parse("40-43")
    book.begin(0, 48 * 10**6)
    backup = ForeignProgram(ProgramKind.HOST, "backup-agent", "backup-agent.service")
    for minute in range(1, 1441):
        if not 900 < minute <= 930:
            spent = 4000 * MS if 120 <= minute < 135 else 12 * MS if minute % 7 == 0 else 0
            book.book(minute * MINUTE, Interval(MINUTE, {40: spent, 41: spent // 9, 42: 0, 43: 0}, 0, 0,
                                                2 * MS, 0))
            if spent > 100 * MS:
                book.add_runs(minute * MINUTE, [ForeignRun(backup, 40, spent)])
    now = 1440 * MINUTE
    drift = {"repairs": {"tuned": 3}, "last": 1.0, "why": "tuned runs with its scheduler plugin"}
    made = pod_report(figures_between(book, 0, 1440 * MINUTE), clock, drift)
    return page(with_slo(document([made], clock(0), clock(now)), 99.9), "node-1")


def photograph(html: str, to: Path) -> None:
    with TemporaryDirectory() as directory:
        file = Path(directory, "isolation.html")
        file.write_text(html, encoding="utf-8")
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--user-data-dir={directory}/profile", "--window-size=800,945", f"--screenshot={to}",
                        file.as_uri()], check=True, capture_output=True, timeout=300)
    image = importlib.import_module("PIL.Image")
    image.open(to).convert("RGB").quantize(256).save(to, optimize=True)


def main() -> None:
    (PICTURES / "top.svg").write_text(top(), encoding="utf-8")
    if "--page" in sys.argv[1:]:
        photograph(isolation(), PICTURES / "isolation.png")


if __name__ == "__main__":
    main()
