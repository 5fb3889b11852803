"""What is wrong on a node: the checks turn facts into findings with level, evidence and remedy, and are pure;
`node_facts` reads the facts. And the data for a bug report, in one archive (`gather`).

Lists name what goes into that, not what is left out: no environment of any process, no command line except of managed
VMMs and their helpers (without secrets), no annotation, and of other programs' configurations only the keys that
concern CPUs.
docs/doctor.md and docs/gather.md describe it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vmpin.feature import Feature

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from vmpin.features.common.finding import Check

#: Examples for the help of the program.
_DOCTOR = ("  vmpin doctor               exit code 1 if nothing keeps threads in place, or a fault prevents it; with "
           "remedies\n")
_GATHER = "  vmpin gather               the data for a bug report, in one file\n"


def _options(verb: str, parser: ArgumentParser) -> None:
    if not verb and parser.epilog is not None:
        parser.epilog = parser.epilog.replace("  vmpin unpin ", f"{_DOCTOR}  vmpin unpin ", 1).replace(
            "\nexit codes:", f"{_GATHER}\nexit codes:", 1)


def _checks() -> Sequence[Check]:
    from vmpin.features.doctor.checks import CHECKS

    return CHECKS


_VERBS = "vmpin.features.doctor.verbs"

FEATURE = Feature(name="doctor", verbs={"doctor": f"{_VERBS}.doctor", "gather": f"{_VERBS}.gather"}, options=_options,
                  checks=_checks)
