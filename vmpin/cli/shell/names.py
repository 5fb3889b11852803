"""`vmpin __complete KIND TEXT [WORD ...]`: what of this node may be named next, one a line, for a shell's completion.

The verb is hidden; whatever fails, it prints nothing and ends with 0, after two seconds at the latest. Names of pods
are hostile: what a terminal cannot show, or what would be an option, is left out, and the shell's script quotes the
rest.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

#: The name of the command.
HIDDEN = "__complete"
#: What may be asked for.
SANDBOXES, CONTAINERS, NAMESPACES = "sandboxes", "containers", "namespaces"
#: Seconds; a variable of the environment names others. A watcher answers in milliseconds.
_DEADLINE, _VARIABLE = "2", "VMPIN_COMPLETION_DEADLINE"


def print_names(arguments: Sequence[str]) -> int:
    """Print the names on the node that complete an argument, and return 0; errors are not shown.
    :param arguments: a kind, the text that was typed of the name, and the words of the command line before it."""
    signal.signal(signal.SIGALRM, _give_up)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), \
            contextlib.suppress(Exception, SystemExit):
        # No key of the configuration, which refuses unknown variables.
        signal.setitimer(signal.ITIMER_REAL, float(os.environ.pop(_VARIABLE, _DEADLINE)))
        kind, text, *words = arguments
        for name in _names(kind, text, words):
            if name.isprintable() and not name.startswith("-"):
                print(name)
        sys.stdout.flush()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _give_up(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def _names(kind: str, text: str, words: Sequence[str]) -> list[str]:
    from vmpin.cli.allocator.ledger_report import grants_of, without_vm
    from vmpin.cli.control_client import named_sandboxes, status_document
    from vmpin.cli.verb_options import load_config
    from vmpin.status.pod_arguments import offered
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # The value of the last may be what is being typed.
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--set", action="append", nargs="?", const="log.level=error", default=[])
    parser.add_argument("-n", "--namespace", nargs="?", const="", default="")
    args = parser.parse_known_args(words, argparse.Namespace(set_here=[]))[0]
    config = load_config(args)
    sandboxes = named_sandboxes(status_document(config, None))
    if kind == CONTAINERS:
        sandboxes += without_vm(grants_of(config), {each.id for each in sandboxes})
    if kind == NAMESPACES:
        return sorted({each.namespace for each in sandboxes if each.namespace.startswith(text)})
    return offered(text, args.namespace, sandboxes, containers=kind == CONTAINERS)
