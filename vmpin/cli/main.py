"""`vmpin`: the parser, and the only place that turns an error into a message, a hint and an exit code.

Exit codes: docs/exit-codes.md, and each verb's --help. A verb's module is imported when it is used.
"""

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from vmpin.cli.common import HelpFormatter, VersionFlag, without_seconds
from vmpin.errors import UsageError, VmpinError

if TYPE_CHECKING:
    from vmpin.cli.shell.grammar import Command

#: The verbs by module, in the order in which help shows them.
VERBS = {
    "watch": "watch", "status": "status", "explain": "explain", "verify": "verify", "audit": "audit",
    "isolation": "books.isolation", "map": "map", "top": "top.command", "doctor": "doctor",
    "gather": "gather", "plan": "plan", "allocations": "allocator.allocations",
    "set": "allocator.set_policy", "reconcile": "act", "unpin": "act", "config": "config",
    "install-hook": "setup.install_hook",
    "install-service": "setup.install_service", "guest": "setup.guest", "reporter": "reporter", "demo": "demo",
    "help": "shell.help", "version": "shell.help", "completion": "shell.completion",
}

#: The exit code if the reader of the output has ended: that of a program ended by SIGPIPE, in a shell.
GONE = 141

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; :returns: its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of pods on a terminal that is not UTF-8
    try:
        code = _carry_out(arguments)
    except SystemExit as ending:  # argparse, after --help or for an unknown command
        if _flushed(sys.stdout) and _flushed(sys.stderr):
            raise
        code = ending.code if isinstance(ending.code, int) and ending.code else GONE
    except BrokenPipeError:
        code = GONE
    if not _flushed(sys.stdout):
        code = code or GONE
    _flushed(sys.stderr)
    return code


def _carry_out(arguments: Sequence[str]) -> int:
    """Run a command line, print its error, and return the exit code. :raises BrokenPipeError: if the reader of the
    output has ended."""
    try:
        if arguments[:1] == ["__complete"]:
            from vmpin.cli.shell.names import print_names
            return print_names(arguments[1:])
        _refuse_unknown(arguments)
        parsed = _parsed(arguments)
        if getattr(parsed, "watch", None):
            from vmpin.cli.shell.repetition import repeat
            repeat(parsed)
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except VmpinError as err:
        from vmpin.cli.cluster.plugin import named
        _complain(f"vmpin: {err}", *([f"  {named(err.hint)}"] if err.hint else []))
        return err.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except OSError as err:
        if os.environ.get("VMPIN_DEBUG"):
            raise
        _complain(f"vmpin: {err}")
        return 1
    return code


def _verb(arguments: Sequence[str]) -> str | None:
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


def _refuse_unknown(arguments: Sequence[str]) -> None:
    """Refuse a command that does not exist: argparse would list them all, and guess none. :raises UsageError:"""
    verb = _verb(arguments)
    if verb is not None and verb not in VERBS and verb not in (every := verb_modules()):
        from vmpin.cli.shell.help import did_you_mean
        raise UsageError(f"there is no command {verb!r}", did_you_mean(verb, every, "`vmpin --help` lists them"))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. :raises UsageError: for an option or argument that the command does not take."""
    parser, arguments = verbs_parser(arguments), without_seconds(arguments)
    parsed, rest = parser.parse_known_args(arguments)
    if not rest:
        return parsed
    from vmpin.cli.shell.help import did_you_mean
    whole, verb = grammar(arguments), str(_verb(arguments))
    found = next(each for each in whole.commands if each.name == verb)
    otherwise = f"`vmpin {verb} --help` lists what it takes"
    if not rest[0].startswith("-"):
        raise UsageError(f"{verb} takes no argument {rest[0]!r}", otherwise)
    name = rest[0].partition("=")[0]
    options = (name for option in (*whole.options, *found.options) for name in option.names)
    raise UsageError(f"{verb} has no option {name}", did_you_mean(name, options, otherwise))


def grammar(arguments: Sequence[str] = ()) -> "Command":
    """Describe what the parsers take: all of it, or for a command line what concerns its verb."""
    from vmpin.cli.shell.grammar import read
    return read(verbs_parser(arguments), "vmpin")


def _complain(*lines: str) -> None:
    """Print to standard error; a closed one does not change the exit code."""
    with contextlib.suppress(BrokenPipeError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def _flushed(stream: TextIO) -> bool:
    """Flush the stream. If its reader has ended (`vmpin status | head`), it becomes /dev/null: the rest of the buffer
    would fail again at Python's exit, which prints an error and makes the exit code 120.

    Not by SIGPIPE, as in other tools: that would end the watcher as well when a client ends before its answer.
    """
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


def _open_closed() -> None:
    """Open /dev/null for a standard stream that is closed (`vmpin verify >&-`): Python has None for it, errors would
    be printed among the output, and the next opened file would get its number, also in programs that we start."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  # the lowest free number, which is the stream's
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def verbs_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all verbs; where the arguments begin with one, of that alone, as the others' modules take time to
    load."""
    from vmpin.cli.cluster.plugin import KUBECTL, named, program
    examples, name = _EXAMPLES, program()
    if name == KUBECTL:
        from vmpin.cli.cluster.flags import PLUGIN_EXAMPLES as examples
    # For each of its own texts argparse searches the disk for a catalog of translations; vmpin has none.
    vars(argparse)["_"] = lambda text: text
    parser = argparse.ArgumentParser(name, description=_ABOUT, epilog=named(examples), formatter_class=HelpFormatter)
    parser.add_argument("--version", action=VersionFlag, nargs=0, help="print the version and exit")
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: /etc/vmpin/vmpin.yaml if it "
                        "exists)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[],
                        help="set a configuration key, e.g. --set node.shared_pool=0-1 (repeatable)")
    verbs = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", prog=name)
    # Only the verb's own module is loaded if the verb is evident: a short command starts in half the time.
    verb = _verb(arguments)
    own = [f"vmpin.cli.{VERBS[verb]}"] if verb in VERBS else None
    for module in own or (dict.fromkeys(verb_modules().values()) if verb is None else [verb_modules()[verb]]):
        importlib.import_module(module).add_parser(verbs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
