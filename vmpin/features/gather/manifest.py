"""The parts of the feature `gather` (docs/gather.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.feature import Feature

if TYPE_CHECKING:
    from argparse import ArgumentParser

#: An example for the help of a verb, of the program ("").
_EXAMPLES = {"": "  vmpin gather               the data for a bug report, in one file\n",
             "doctor": "for a bug report: vmpin gather packs the findings and the facts behind them\n"}


def _options(verb: str, parser: ArgumentParser) -> None:
    if verb in _EXAMPLES and parser.epilog is not None:
        parser.epilog = parser.epilog.replace("\nexit codes:", f"{_EXAMPLES[verb]}\nexit codes:", 1)


FEATURE = Feature(name="gather", verbs={"gather": "vmpin.features.gather.verbs"}, options=_options)
