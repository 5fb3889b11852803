"""`vmpin`: runs a command line, and is the only place that turns an error into a message, a hint and an exit code.

Exit codes: docs/exit-codes.md, and each verb's --help.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

from vmpin.cli.this_program import named
from vmpin.cli.verbs import (
    did_you_mean,
    explained,
    grammar,
    named_verb,
    verb_modules,
    verbs_parser,
    without_alias,
    without_seconds,
)
from vmpin.domain.terminal import printable
from vmpin.errors import UsageError, VmpinError
from vmpin.feature import features, present

#: The exit code if the reader of the output has ended: that of a program ended by SIGPIPE, in a shell.
GONE = 141
#: Verbs that run as services: an unexpected error of them is logged with its place.
_SERVICES = ("watch", "reporter")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; :returns: its exit code."""
    for take_over in present(feature.take_over for feature in features()):
        take_over()
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of pods on a terminal that is not UTF-8
    try:
        code = _carry_out(arguments)
    except SystemExit as ending:  # argparse, after --help or for an unknown command
        lost = _flushed(sys.stdout) or _flushed(sys.stderr)
        if not lost:
            raise
        return ending.code if isinstance(ending.code, int) and ending.code else lost
    except BrokenPipeError:
        code = GONE
    lost = _flushed(sys.stdout, failed=code != 0)
    _flushed(sys.stderr, failed=True)
    return code or lost


def _carry_out(arguments: Sequence[str]) -> int:
    """Run a command line, print its error, and return the exit code. :raises BrokenPipeError: if the reader of the
    output has ended."""
    silent = signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # as __main__ has set it, for the loading before
    try:
        if silent:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        arguments = without_alias(arguments)
        _refuse_unknown(arguments)
        parsed = _parsed(arguments)
        if getattr(parsed, "watch", None):
            from vmpin.cli.repetition import repeat
            code: int = repeat(parsed)
        else:
            code = parsed.run(parsed)
        sys.stdout.flush()
    except VmpinError as err:
        _complain(f"vmpin: {err}", *([f"  {named(err.hint)}"] if err.hint else []))
        return err.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except OSError as err:
        if os.environ.get("VMPIN_DEBUG"):
            raise
        _complain_of(err)
        return 1
    except Exception as err:
        if os.environ.get("VMPIN_DEBUG") or named_verb(arguments) in _SERVICES:
            raise
        _complain(f"vmpin: unexpected {type(err).__name__}: {printable(str(err)[:200])}",
                  "  a mistake of vmpin's, or the answer of a watcher of another version; with VMPIN_DEBUG=1 in the "
                  "environment it shows where")
        return 1
    finally:
        if silent:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _refuse_unknown(arguments: Sequence[str]) -> None:
    """Refuse a command that does not exist: argparse would list them all, and guess none. :raises UsageError:"""
    verb = named_verb(arguments)
    if verb is not None and verb not in (verbs := verb_modules()):
        raise UsageError(f"there is no command {verb!r}", did_you_mean(verb, verbs, "`vmpin --help` lists them"))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. :raises UsageError: for an option or argument that the command does not take."""
    arguments = without_seconds(arguments)
    parsed, rest = verbs_parser(arguments).parse_known_args(arguments)
    if rest:
        raise _not_taken(arguments, rest[0])
    parsed.run = next(filter(None, (instead(parsed) for instead in parsed.run_instead)), parsed.run)
    return parsed


def _not_taken(arguments: Sequence[str], word: str) -> UsageError:
    """The error for an option or argument that the command of this line does not take."""
    program, verb = grammar(arguments), str(named_verb(arguments))
    otherwise = f"`vmpin {verb} --help` lists what it takes"
    if not word.startswith("-"):
        return UsageError(f"{verb} takes no argument {word!r}", otherwise)
    name = word.partition("=")[0]
    command = next(command for command in program.commands if command.name == verb)
    options = (known for option in (*program.options, *command.options) for known in option.names if known != "--help")
    return UsageError(f"{verb} has no option {name}", did_you_mean(name, options, otherwise))


def _complain_of(err: OSError) -> None:
    """Print an error of the system, with its remedy where there is one."""
    text, remedy = explained(err)
    _complain(f"vmpin: {text}", f"  {remedy or 'with VMPIN_DEBUG=1 in the environment it shows where'}")


def _complain(*lines: str) -> None:
    """Print to standard error. Control characters are escaped, because errors repeat arguments. A stream that is
    closed or on a full disk does not change the exit code."""
    with contextlib.suppress(OSError):
        print(*(printable(part) for line in lines for part in line.split("\n")), sep="\n", file=sys.stderr, flush=True)


def _flushed(stream: TextIO, failed: bool = False) -> int:
    """Flush the stream. If that is impossible, because its reader has ended (`vmpin status | head`) or its disk is
    full, it becomes /dev/null: the rest of the buffer would fail again at Python's exit, which prints an error and
    makes the exit code 120.

    Not by SIGPIPE, as in other tools: that would end the watcher as well when a client ends before its answer.
    :param failed: whether an error was printed already.
    :returns: the exit code: 0, GONE for a reader that has ended, or 1.
    """
    try:
        stream.flush()
    except OSError as err:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(err, BrokenPipeError):
            return GONE
        if not failed:
            _complain_of(err)
        return 1
    return 0


def _open_closed() -> None:
    """Open /dev/null for a standard stream that is closed (`vmpin verify >&-`): Python has None for it, errors would
    be printed among the output, and the next opened file would get its number, also in programs that we start."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  # the lowest free number, which is the stream's
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


if __name__ == "__main__":
    sys.exit(main())
