"""`vmpin explain`: why each thread of a sandbox has its CPUs."""

from __future__ import annotations

import argparse

from vmpin.cli.common import Verbs, direct_flag, load_config, output_flag, print_data, shown, status_document, verb


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "explain", "say why each thread of a sandbox has its CPUs, in sentences")
    parser.add_argument("sandbox", metavar="SANDBOX", help="its id, as in `vmpin status`")
    direct_flag(parser)
    output_flag(parser, ("text", "json"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vmpin.status.explain import sentences

    found = status_document(load_config(args), args.sandbox, direct=args.direct)
    said = sentences(found, found["sandboxes"][0])
    if args.output == "json":
        print_data({"sandbox": found["sandboxes"][0]["id"], "sentences": said}, "json")
    else:
        for sentence in said:
            print(shown(sentence))
    return 0
