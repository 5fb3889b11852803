"""`vmpin guest build`: the agent for the guest as one file."""

import argparse
from pathlib import Path

from vmpin.cli.verbs import Verbs, global_options, verb
from vmpin.errors import UsageError
from vmpin.features.common.option_values import new_file

_EPILOG = """\
example:
  vmpin guest build -o vmpin-agent.pyz
how to put it into an image of Kata, or beside one: guest/README.md
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "guest", "build the agent that pins inside the guest", _build, epilog=_EPILOG)
    actions = parser.add_subparsers(metavar="ACTION", required=True, title="actions")
    build = actions.add_parser("build", help="pack the agent into one file, for Python 3.9 and newer")
    global_options(build)
    build.add_argument("-o", dest="out", type=new_file, required=True, metavar="FILE", help="the file to write")


def _build(args: argparse.Namespace) -> int:
    from vmpin.features.installer import agent_zipapp
    if args.out == "-":
        raise UsageError("-o - names no file to write", "a program is not printed: -o vmpin-agent.pyz")
    try:
        size = agent_zipapp.build(Path(args.out))
    except OSError as err:
        raise UsageError(f"cannot write {args.out}: {err.strerror}", "give another place: -o FILE") from err
    print(f"{args.out}: {size} bytes")
    return 0
