"""The end of a run of the tests: what was not tried, by reason. A run without failures is not one of all tests."""

from __future__ import annotations

import re
from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    left_out = re.findall(r"\bnot (\w+)", config.option.markexpr)
    if reasons or left_out:
        terminalreporter.section("not tried")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5d} skipped: {reason}")
    for marker in config.getini("markers"):
        if marker.partition(":")[0] in left_out:
            terminalreporter.write_line(f"  all marked {marker}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test or a module was skipped, in a line."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(reason.removeprefix("Skipped: ").split())
