"""`vmpin config`: the effective configuration, and where each value came from."""

from __future__ import annotations

import argparse

from vmpin.cli.common import Verbs, load_config, output_flag, print_data, table, verb

_ABOUT = """\
Print every key with its value and where that came from. Values are taken from, the later the stronger: the defaults,
the file (/etc/vmpin/vmpin.yaml or --config FILE), the environment (VMPIN_POLICY_VCPUS=union), --set KEY=VALUE. A key
that is not known is refused, and so is a variable named VMPIN_… that sets none.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "config", "print the effective configuration and where each value came from", about=_ABOUT)
    output_flag(parser, ("table", "json", "yaml"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    data = load_config(args).data()
    if args.output != "table":
        print_data(data, args.output)
        return 0
    table(["KEY", "VALUE", "FROM"],
          [[key, "unset" if entry["value"] in (None, "") else entry["value"], entry["from"]]
           for key, entry in data.items()])
    return 0
