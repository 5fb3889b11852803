"""What came back from the node: pytest's JUnit file, as cases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from lab.errors import LabError


@dataclass(frozen=True)
class Case:
    name: str
    seconds: float
    #: "passed", "failed" or "skipped"
    outcome: str
    #: The failure's text, or the reason of a skip.
    text: str = ""


def cases(path: Path) -> list[Case]:
    """The cases in a JUnit file. :raises LabError: when it cannot be read."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as err:
        raise LabError(f"{path}: {err}") from err
    return [_case(element) for element in root.iter("testcase")]


def _case(element: ElementTree.Element) -> Case:
    module, name = element.get("classname", ""), element.get("name", "")
    module = module.removeprefix("tests.").removeprefix("lab.").removeprefix("node_tests.")
    outcome, text = "passed", ""
    for kind, means in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        for found in element.findall(kind):
            outcome = means
            text = (found.text or found.get("message") or "").strip()
    return Case(f"{module}::{name}" if module else name, float(element.get("time", "0")), outcome, text)
