"""`vmpin verify --others`: its options."""

from __future__ import annotations

import pytest

from vmpin.cli.grammar import read
from vmpin.cli.main import main
from vmpin.cli.verbs import verbs_parser
from vmpin.features.isolation.others import Kind
from vmpin.features.isolation.verbs.others_options import CLASSES


@pytest.mark.parametrize(("words", "error"), [
    (["--others", "shop"], "without a SANDBOX"), (["--others", "-n", "shop"], "without -n"),
    (["--others", "--since", "1h"], "without --since"), (["--others", "--tolerate", "1"], "without --tolerate"),
    (["--strict"], "go with --others"),
    (["--seconds", "0"], "go with --others"), (["--ignore", "host"], "go with --others")])
def test_what_is_about_others_goes_with_others_alone(words: list[str], error: str,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *words]) == 2
    assert error in capsys.readouterr().err


def test_the_classes_of_others_are_those_that_are_found() -> None:
    assert [*Kind] == [*CLASSES]


def test_its_examples_stand_with_those_of_verify() -> None:
    (page,) = [verb.epilog for verb in read(verbs_parser([]), "vmpin").commands if verb.name == "verify"]
    examples = page.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    assert all(line.startswith("  vmpin verify") for line in examples), examples
    assert sum("--others" in line for line in examples) == page.count("\n  vmpin verify --others") > 0
