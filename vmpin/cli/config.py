"""`vmpin config`: the effective configuration, with the origin of each value, and the file that explains every key."""

import argparse
import sys

from vmpin.cli.output import VERSION, print_data, table
from vmpin.cli.verbs import Verbs, load_config, output_flag, verb
from vmpin.domain.terminal import as_written
from vmpin.errors import UsageError

_ABOUT = """\
Print every key with its value and origin. The origins, each stronger than the ones before it: the default, the file
(/etc/vmpin/vmpin.yaml or --config FILE), the environment (VMPIN_POLICY_VCPUS=union), --set KEY=VALUE. Unknown keys are
refused, and so are variables VMPIN_… that set no key. An unknown section or key that is empty, as in the example file
of a newer version, is only reported.
"""

_EXAMPLES = """\
examples:
  vmpin config                                       every key: what is in force, and why
  vmpin config --example > /etc/vmpin/vmpin.yaml     a file that explains every key and changes none
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "config", "print the effective configuration with the origin of each value", run,
                  about=_ABOUT, epilog=_EXAMPLES)
    parser.add_argument("--example", action="store_true", help="print the configuration file that comes with vmpin: "
                        "every key, explained, with its default, commented out")
    output_flag(parser, ("table", "json", "yaml"))


def run(args: argparse.Namespace) -> int:
    if args.example:
        if args.output != "table":
            raise UsageError("--example prints a file of YAML: it goes without -o",
                             "without --example it prints the values in force")
        from vmpin.install import data_files
        sys.stdout.write(data_files.path("config/vmpin.yaml").read_text(encoding="utf-8"))
        return 0
    config = load_config(args)
    for warning in config.warnings:
        print(f"vmpin: {warning}\n  {warning.hint}", file=sys.stderr)
    data = config.data()
    if args.output != "table":
        print_data({"version": VERSION, **data}, args.output)
        return 0
    table(["KEY", "VALUE", "FROM"],
          [[key, as_written(entry["value"]) or "unset", entry["from"]] for key, entry in data.items()])
    return 0
