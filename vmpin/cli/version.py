"""`vmpin version`: the version of this program, and of the Python that it runs on."""

import argparse
import sys

from vmpin.cli.output import VERSION, print_data
from vmpin.cli.this_program import version_line
from vmpin.cli.verbs import Verbs, output_flag, verb
from vmpin.install.own_version import installed_version

_EXAMPLE = """\
example:
  vmpin version -o json | jq -r .vmpin
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "version", "print the version", run, epilog=_EXAMPLE)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    if args.output == "json":
        python = ".".join(map(str, sys.version_info[:3]))
        print_data({"version": VERSION, "vmpin": installed_version(), "python": python}, "json")
    else:
        print(version_line())
    return 0
