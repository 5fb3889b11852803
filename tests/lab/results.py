"""What came back from the node: pytest's JUnit file, as cases.

In the node, `python3 -m lab.results FILE` prints the tests that are to be made once more.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from lab.errors import LabError

#: As many failed tests are made once more, alone. The node is emulated and its guests twice: the emulator loses one in
#: dozens of boots without a message, and stops for seconds on a busy machine. What fails for a reason of ours fails
#: again.
FEW = 3


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


def once_more(path: Path) -> list[str]:
    """The failed tests as pytest takes them, if they are few; else none."""
    failed = [case for case in cases(path) if case.outcome == "failed"]
    return [f"tests/lab/node_tests/{case.name.replace('::', '.py::', 1)}" for case in failed if len(failed) <= FEW]


if __name__ == "__main__":
    found = once_more(Path(sys.argv[1]))
    print("\n".join(found))
    sys.exit(not found)
