"""The arguments of `vmpin isolation`, and its exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from absurd_numbers import Parser, check_bound, reads

from vmpin.cli.grammar import read
from vmpin.cli.verbs import verbs_parser
from vmpin.config.loading import load
from vmpin.features.isolation.verbs import isolation as verb
from vmpin.features.isolation.verbs.isolation import _objective
from vmpin.features.isolation.verbs.top import _count, _delay


def test_it_can_be_shown_again() -> None:
    command = next(each for each in read(verbs_parser([]), "vmpin").commands if each.name == "isolation")
    assert any("--watch" in option.names for option in command.options)


def test_the_table_of_exit_codes_has_its_verbs() -> None:
    text = (Path(__file__).parents[4] / "docs/exit-codes.md").read_text()
    names = {name.strip("| `") for line in text.splitlines() if line.startswith("| `")
             for name in line.split(" | ")[0].split(", ")}
    assert {"isolation", "top"} <= names


def test_what_features_note_now_on_a_running_pods_cpus_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "ask", lambda config, request: request)
    monkeypatch.setattr(verb, "notes_on_cpus", lambda status: {
        2: [f"on CPU 2 of {status['sandbox']}"], 7: ["on CPU 7"]})
    config, pod = load(None, {}, {}), {"sandbox": "shop", "cpus": "2-3", "ended": False}
    assert list(verb._notes(config, pod)) == ["  in the last interval:", "    on CPU 2 of shop"]
    assert list(verb._notes(config, pod | {"cpus": "4"})) == []
    assert list(verb._notes(config, pod | {"ended": True})) == []


def flag(parse: Callable[[str], float]) -> Callable[[str], Iterable[float]]:
    return lambda text: [parse(text)]


PARSERS = (Parser("top --delay", flag(_delay), 3600), Parser("top --count", flag(_count), 10**9),
           Parser("isolation --slo", flag(_objective), 100))


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.name for parser in PARSERS])
def test_an_absurd_number_is_refused_or_within_its_bound(parser: Parser) -> None:
    check_bound(parser)
    assert reads(parser, "5"), "else this would prove nothing"
