"""`vmpin explain`: why each thread of a sandbox has its CPUs. What stays out: the sentences (status.explain)."""

import argparse

from vmpin.cli.common import Verbs, direct_flag, load_config, output_flag, verb
from vmpin.cli.control_client import Document, ask, status_document
from vmpin.cli.output import print_data
from vmpin.config.settings import Config
from vmpin.domain.terminal import printable
from vmpin.errors import UsageError, WatcherError

_EXAMPLES = """\
examples:
  vmpin explain 5f2c          a VM sandbox: each of its threads
  vmpin explain shop/web      with allocate.mode on: the CPUs that were given, their cost, the next best ones
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "explain", "explain in sentences why each thread of a sandbox has its CPUs", run,
                  epilog=_EXAMPLES)
    parser.add_argument("sandbox", metavar="SANDBOX", help="its id, as in `vmpin status`; with allocate.mode on, "
                        "NAMESPACE/POD[/CONTAINER]: why a container was given its CPUs")
    direct_flag(parser)
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    from vmpin.status.explain import sentences
    config = load_config(args)
    if config.allocate.mode != "off" and "/" in args.sandbox:  # no id, but a pod of the allocator's ledger
        texts = _of_grants(config, args.sandbox)
        return _show({"name": args.sandbox, "sentences": texts}, texts, args.output)
    found = status_document(config, args.sandbox, direct=args.direct)
    texts = sentences(found, found["sandboxes"][0])
    return _show({"sandbox": found["sandboxes"][0]["id"], "sentences": texts}, texts, args.output)


def _show(data: Document, texts: list[str], output: str) -> int:
    if output == "json":
        print_data(data, "json")
    else:
        for sentence in texts:
            print(printable(sentence))
    return 0


def _of_grants(config: Config, name: str) -> list[str]:
    """:raises UsageError: when no container of that name was given CPUs."""
    found = ask(config, {"op": "allocations", "explain": name})
    if found is None:
        raise WatcherError(f"{config.paths.control_socket}: no watcher runs, and it alone gives out CPUs",
                           "start it: systemctl start vmpin, or `vmpin watch`")
    if not found["sentences"]:
        raise UsageError(f"no container of {name!r} is in the ledger", "`vmpin allocations -o wide` lists them")
    texts: list[str] = found["sentences"]
    return texts
