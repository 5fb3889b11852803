"""The numbers of the verbs' options: what is made of absurd ones is within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from absurd_numbers import Parser, check_bound, reads

from vmpin.features.isolation.verbs.isolation import _objective
from vmpin.features.isolation.verbs.top.command import _count, _delay


def flag(parse: Callable[[str], float]) -> Callable[[str], Iterable[float]]:
    return lambda text: [parse(text)]


PARSERS = (Parser("top --delay", flag(_delay), 3600), Parser("top --count", flag(_count), 10**9),
           Parser("isolation --slo", flag(_objective), 100))


@pytest.mark.parametrize("parser", PARSERS, ids=[parser.name for parser in PARSERS])
def test_an_absurd_number_is_refused_or_within_its_bound(parser: Parser) -> None:
    check_bound(parser)
    assert reads(parser, "5"), "else this would prove nothing"
