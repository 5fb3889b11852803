"""`vmpin config`: the effective configuration, with the origin of each value."""

import argparse

from vmpin.cli.common import Verbs, load_config, output_flag, verb
from vmpin.cli.output import print_data, table

_ABOUT = """\
Print every key with its value and origin. Sources of values, each overriding the ones before: the defaults, the file
(/etc/vmpin/vmpin.yaml or --config FILE), the environment (VMPIN_POLICY_VCPUS=union), --set KEY=VALUE. Unknown keys are
refused, and so are variables named VMPIN_… without a key.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "config", "print the effective configuration with the origin of each value", run,
                  about=_ABOUT)
    output_flag(parser, ("table", "json", "yaml"))


def run(args: argparse.Namespace) -> int:
    data = load_config(args).data()
    if args.output != "table":
        print_data(data, args.output)
        return 0
    table(["KEY", "VALUE", "FROM"],
          [[key, "unset" if entry["value"] in (None, "") else entry["value"], entry["from"]]
           for key, entry in data.items()])
    return 0
