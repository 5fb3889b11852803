"""The options --since and --tolerate of `vmpin verify`."""

from __future__ import annotations

import argparse

from vmpin.cli.this_program import about_this_node
from vmpin.errors import UsageError
from vmpin.features.common.option_values import duration
from vmpin.features.proof.verbs.run_times import percent

_ABOUT = """
With --since 24h also check where the threads ran in that time, by the watcher's samples (proof.sample_seconds): at
most --tolerate percent of the run time may have been elsewhere. CERTAIN is run time between two samples on one CPU;
any other run time counts for the CPU of the later sample. The time begins when the books were last saved before it.
"""

_EXAMPLE = "  vmpin verify --since 24h --tolerate 0.1\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser of `vmpin verify`."""
    parser.description = f"{parser.description}{_ABOUT}"
    before, code, after = str(parser.epilog).partition("  2  the command line")
    parser.epilog = (f"{before}     (with --since also: more than --tolerate ran elsewhere)\n{code}" + after.replace(
        "  vmpin verify shop\n", f"{_EXAMPLE}  vmpin verify shop\n", 1))
    parser.add_argument("--since", type=duration, metavar="DURATION", help=about_this_node(
        "also where they ran since then: 90s, 30m, 24h, 7d"))
    parser.add_argument("--tolerate", type=percent, metavar="PERCENT", help=about_this_node(
        "share of the run time that may have been elsewhere (default: 0)"))
    parser.set_defaults(run_instead=(*parser.get_default("run_instead"), _refuse))


def _refuse(args: argparse.Namespace) -> None:
    """Refuse --since without the watcher, and --tolerate without --since. :raises UsageError:"""
    if args.direct and args.since is not None:
        raise UsageError("--direct does not go with --since", "only the watcher records where threads ran")
    if args.tolerate is not None and args.since is None and not vars(args).get("others"):
        raise UsageError("--tolerate goes with --since", "`vmpin verify --since 24h --tolerate 0.1`")
