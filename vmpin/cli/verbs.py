"""The verbs of the command line, their parser, and what they take as plain values. A verb's module is imported when it
is used."""

import argparse
import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vmpin.cli.this_program import named, program
from vmpin.cli.verb_options import HelpFormatter, Verbs, VersionFlag, completed_by, keys_to_set

if TYPE_CHECKING:
    from vmpin.cli.grammar import Command

#: The verbs by module, in the order in which help shows them.
VERBS = {
    "watch": "watch", "status": "status", "explain": "explain", "verify": "verify", "audit": "audit",
    "map": "map", "doctor": "doctor", "gather": "gather", "plan": "plan",
    "reconcile": "reconcile", "unpin": "unpin", "config": "config", "install-hook": "install_hook",
    "install-service": "install_service", "guest": "guest", "help": "help", "version": "version",
    "completion": "completion",
}

_ABOUT = """\
Keeps VM sandboxes (Kata Containers) on the CPUs that the kubelet's static CPU manager gave their containers.
"""

_EXAMPLES = """\
a first look, on any node:
  vmpin status               the sandboxes, and where their threads may run
  vmpin map                  a picture of the node's CPUs, their owners and the threads on them
  vmpin plan                 the changes that vmpin would make, without making them
  vmpin plan --scenario F    the same for a node described in a file
in service:
  vmpin install-hook --hooks-dir /usr/share/containers/oci/hooks.d
  vmpin install-service      vmpin watch under systemd; --now starts it
  vmpin verify               exit code 1 if a thread is misplaced, or CPUs collide; 3 if the check is impossible
  vmpin top                  live: which threads take the CPUs of which pods
  vmpin audit                exit code 1 if another pod runs on exclusive CPUs, or may
  vmpin doctor               exit code 1 if nothing keeps threads in place, or a fault prevents it; with remedies
  vmpin gather               the data for a bug report, in one file
  vmpin unpin SANDBOX        restore the masks that its threads had before vmpin (--every: each sandbox's)

exit codes: 0 done, 1 a finding or a failure, 2 the command or a file cannot be used, 3 (verify) the check was
impossible; `vmpin help exit-codes` has them by command
"""


def named_verb(arguments: Sequence[str]) -> str | None:
    """The first argument that is no option and no option's value; None for none, and after --help or --version."""
    rest = iter(arguments)
    for each in rest:
        if each in ("--config", "--set"):
            next(rest, None)
        elif not each.startswith(("--config=", "--set=")):
            return None if each.startswith("-") else each
    return None


def verb_modules() -> dict[str, str]:
    """The module of each verb, those of features among them."""
    from vmpin.feature import features

    modules = {verb: f"vmpin.cli.{module}" for verb, module in VERBS.items()}
    for feature in features():
        modules.update(feature.verbs)
    return modules


def verbs_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all verbs; where the arguments begin with one, of that alone, as the others' modules take time to
    load."""
    from vmpin.feature import features, present

    parser, verbs = _program_parser()
    # Only the verb's own module is loaded if the verb is evident: a short command starts in half the time.
    verb = named_verb(arguments)
    own = [f"vmpin.cli.{VERBS[verb]}"] if verb in VERBS else None
    for module in own or (dict.fromkeys(verb_modules().values()) if verb is None else [verb_modules()[verb]]):
        importlib.import_module(module).add_parser(verbs)
    for options in present(feature.options for feature in features()):
        for verb_name, verb_parser in {"": parser, **verbs.choices}.items():
            options(verb_name, verb_parser)
    return parser


def names_parser() -> argparse.ArgumentParser:
    """A parser of the verbs' names alone, which loads none of their modules."""
    parser, verbs = _program_parser()
    for verb in verb_modules():
        verbs.add_parser(verb)
    return parser


def _program_parser() -> tuple[argparse.ArgumentParser, Verbs]:
    """The program's parser without verbs, and to what they are added."""
    name = program()
    # For each of its own texts argparse searches the disk for a catalog of translations; vmpin has none.
    vars(argparse)["_"] = lambda text: text
    parser = argparse.ArgumentParser(name, description=_ABOUT, epilog=named(_EXAMPLES), formatter_class=HelpFormatter)
    parser.add_argument("--version", action=VersionFlag, nargs=0, help="print the version and exit")
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: /etc/vmpin/vmpin.yaml if it "
                        "exists)")
    completed_by(parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="set a configuration key, e.g. --set node.shared_pool=0-1 (repeatable)"), keys_to_set)
    verbs = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", prog=name)
    return parser, verbs


def grammar(arguments: Sequence[str] = ()) -> "Command":
    """Describe what the parsers take: all of it, or for a command line what concerns its verb."""
    from vmpin.cli.grammar import read
    return read(verbs_parser(arguments), "vmpin")


def did_you_mean(text: str, names: Iterable[str], otherwise: str) -> str:
    """A hint for a name that does not exist."""
    import difflib
    near = difflib.get_close_matches(text, list(dict.fromkeys(names)), n=2)
    return f"did you mean {' or '.join(near)}? {otherwise}" if near else otherwise
