"""`vmpin explain`: why each thread of a sandbox has its CPUs. What stays out: the sentences (status.explain)."""

import argparse

from vmpin.cli.common import Verbs, direct_flag, load_config, output_flag, verb
from vmpin.cli.control_client import status_document
from vmpin.cli.output import print_data
from vmpin.domain.terminal import printable


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "explain", "explain in sentences why each thread of a sandbox has its CPUs", run)
    parser.add_argument("sandbox", metavar="SANDBOX", help="its id, as in `vmpin status`")
    direct_flag(parser)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    from vmpin.status.explain import sentences
    found = status_document(load_config(args), args.sandbox, direct=args.direct)
    texts = sentences(found, found["sandboxes"][0])
    if args.output == "json":
        print_data({"sandbox": found["sandboxes"][0]["id"], "sentences": texts}, "json")
    else:
        for sentence in texts:
            print(printable(sentence))
    return 0
