"""`vmpin`: the parser, and the one place that turns an error into a message, a hint and an exit code.

Exit codes: docs/exit-codes.md, and each verb's --help. A verb's module is imported when it is used.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from vmpin.errors import VmpinError

#: The verbs by module, in the order in which help shows them.
VERBS = {
    "watch": "watch", "status": "status", "explain": "explain", "verify": "verify", "audit": "audit", "map": "map",
    "doctor": "doctor", "gather": "gather", "plan": "plan", "reconcile": "act", "unpin": "act", "config": "config",
    "install-hook": "install_hook", "guest": "guest", "demo": "demo",
}

#: The exit code when the reader of the output went away: as a shell has it of a program that SIGPIPE ended.
GONE = 141

_ABOUT = """\
Keeps VM sandboxes (Kata Containers) on the CPUs that the kubelet's static CPU manager gave their containers.
"""

_EXAMPLES = """\
a first look, on any node:
  vmpin status               which sandboxes there are, and where their threads may run
  vmpin map                  the node's CPUs as a picture: whose each is, and who is on it
  vmpin plan                 what vmpin would do, without doing it
  vmpin plan --scenario F    the same for a node described in a file
in service:
  vmpin install-hook --hooks-dir /usr/share/containers/oci/hooks.d
  vmpin watch                (config/vmpin.service runs it under systemd)
  vmpin verify               exit code 1 when a thread is not where it should be, or CPUs collide; 3: cannot look
  vmpin audit                exit code 1 when another pod runs on exclusive CPUs, or may
  vmpin doctor               exit code 1 when nothing keeps threads in place, or something hinders it; what to do
  vmpin gather               what a bug report needs, in one file
  vmpin unpin SANDBOX        give its threads the masks they had before vmpin (--every: each sandbox's)

exit codes: 0 as asked, 1 something is not as it should be, 2 the command or a file cannot be used, 3 (verify) it could
not be looked at; docs/exit-codes.md has them by command
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
    except SystemExit as ending:  # argparse, after --help or of a command that it does not understand
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
    """:raises BrokenPipeError: when the reader of the output went away."""
    try:
        gc.disable()  # modules that are loaded hold no garbage, and to look through them costs a tenth of their time
        try:
            parsed = _parser(arguments).parse_args(arguments)
        finally:
            gc.enable()
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except VmpinError as err:
        _complain(f"vmpin: {err}", *([f"  {err.hint}"] if err.hint else []))
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


def _complain(*lines: str) -> None:
    """To standard error; one that nothing reads any more changes no exit code."""
    with contextlib.suppress(BrokenPipeError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def _flushed(stream: TextIO) -> bool:
    """Write what is left. Where the reader went away (`vmpin status | head`) the stream becomes /dev/null: what is
    still in its buffer fails again when Python ends, which prints an error and makes the exit code 120.

    Not by SIGPIPE, as other tools do it: that would end the watcher, too, when a client goes away before its answer.
    """
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


def _open_closed() -> None:
    """A standard stream that came closed (`vmpin verify >&-`) is /dev/null: Python has None for it, an error would be
    printed among the output, and the next file opened would have its number, also in programs that we start."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  # the lowest number that is free, which is the stream's
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    from vmpin.cli.common import HelpFormatter

    # For each of its own texts argparse searches the disk for a catalog of translations; vmpin has none.
    vars(argparse)["_"] = lambda text: text
    parser = argparse.ArgumentParser("vmpin", description=_ABOUT, epilog=_EXAMPLES, formatter_class=HelpFormatter)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: /etc/vmpin/vmpin.yaml if it is "
                        "there)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[],
                        help="set a configuration key, e.g. --set node.shared_pool=0-1 (repeatable)")
    verbs = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", prog="vmpin")
    # Only the verb's own module is loaded when the verb is plain to see: a short command starts in half the time.
    named = next((word for word in arguments if word in VERBS), None)
    plain = named is not None and not any(word.startswith("-") for word in arguments[: arguments.index(named)])
    for module in [VERBS[named]] if plain and named else dict.fromkeys(VERBS.values()):
        importlib.import_module(f"vmpin.cli.{module}").add_parser(verbs)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib import metadata

        try:
            print(f"vmpin {metadata.version('vmpin')}")
        except metadata.PackageNotFoundError:
            print("vmpin, run without having been installed")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
