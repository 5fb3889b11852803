"""A count and its noun, as a person says them."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from vmpin.domain.terminal import number_of

ROOT = Path(__file__).resolve().parents[3]
#: A plural, or an adjective and a plural, after a number.
PLURAL = re.compile(
    r"^ (?:(?:more|other|exclusive|shared|free|misplaced|unmanaged) )?(?:annotations|checks|collisions|configurations|"
    r"containers|cores|CPUs|entries|events|findings|gaps|groups|guests|handlers|inodes|interfaces|lines|measurements|"
    r"messages|nodes|owners|pods|processes|queues|records|rounds|samples|sandboxes|threads|times|vCPUs|VMs|workers)\b")
#: More than one each time the text is made: what is more than there may be, or is listed where there are several.
SEVERAL = {
    *(("vmpin/features/isolation/verbs/verify_others.py", text) for text in (
        "len(use.owners)", "of", "sampler.samples")), ("vmpin/cli/repetition.py", "len(lines) - room + 1"),
    ("vmpin/features/allocator/scenario_events.py", "len(created)"),
    ("vmpin/features/allocator/watcher_part.py", "len(grants)"),
    ("vmpin/features/demo/probe_vm.py", "count"), ("vmpin/features/demo/worth_report.py", "at.rounds"),
    ("vmpin/domain/guest_report.py", "len(cpus)"), ("vmpin/placement/vcpus.py", "wants"),
    ("vmpin/runtime/kata.py", "len(configs)"),
    ("vmpin/placement/vcpus.py", "len(groups) + for_shared"), ("vmpin/sources/nri/call_codec.py", "self._listed"),
    ("vmpin/features/allocator/search/shortage.py", "widths[0]"),
    ("vmpin/features/allocator/search/shortage.py", "', '.join(map(str, widths))")}


@pytest.mark.parametrize(("count", "noun", "text"), [
    (0, "thread", "0 threads"), (1, "thread", "1 thread"), (2, "sandbox", "2 sandboxes"), (1, "sandbox", "1 sandbox"),
    (1, "thread is", "1 thread is"), (3, "thread is", "3 threads are"), (2, "guest answers", "2 guests answer"),
    (1, "guest answers", "1 guest answers"),
    (6, "object was", "6 objects were"), (2, "process has", "2 processes have"),
    (1, "thread is misplaced", "1 thread is misplaced"), (2, "thread is misplaced", "2 threads are misplaced"),
    (2, "guest does not answer", "2 guests do not answer"), (2, "entry", "2 entries")])
def test_a_noun_and_its_verb_follow_the_count(count: int, noun: str, text: str) -> None:
    assert number_of(count, noun) == text


def test_a_number_that_may_be_one_stands_before_no_plural() -> None:
    """The text has to be made by `number_of`; numbers that are always more than one are listed above."""
    found = set()
    for path in (*ROOT.glob("vmpin/**/*.py"), *ROOT.glob("guest/vmpin_agent/*.py"), ROOT / "hooks/vmpin-hook"):
        for text in ast.walk(ast.parse(path.read_text())):
            parts = text.values if isinstance(text, ast.JoinedStr) else []
            for number, after in pairwise(parts):
                if (isinstance(number, ast.FormattedValue) and isinstance(after, ast.Constant)
                        and PLURAL.match(str(after.value))):
                    found.add((str(path.relative_to(ROOT)), ast.unparse(number.value)))
    counts = {(path, number) for path, number in found if not re.fullmatch(r"(\w+\.)*_?[A-Z_]+", number)}
    assert counts == {(path, number) for path, number in SEVERAL if (ROOT / path).exists()}, "a feature may be out"
