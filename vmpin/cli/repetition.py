"""`--watch`: the output of a verb again and again, redrawn at a terminal and appended in a pipe (and at a
terminal that cannot redraw, TERM=dumb), until Ctrl-C."""

import argparse
import contextlib
import gc
import io
import os
import shutil
import sys
import time

from vmpin.errors import VmpinError
from vmpin.status.collector import when

#: From the top, each line over the one that was there, and nothing below.
_TOP, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def repeat(args: argparse.Namespace) -> int:
    """Carry the verb out every `args.watch` seconds, `args.count` times (0, or none: without end). An error of the
    first time ends it; a later one is shown in place of the output: the watcher may have been restarted, or a pod have
    ended. :returns: the exit code 0.
    :raises VmpinError: the error of the first time. :raises KeyboardInterrupt: at Ctrl-C."""
    gc.enable()
    redrawn = sys.stdout.isatty() and args.output not in ("json", "yaml") and os.environ.get("TERM") != "dumb"
    first, left = True, getattr(args, "count", 0)
    try:
        while True:
            try:
                _once(args, redrawn, first)
            except VmpinError as err:
                if first:
                    raise
                _show_error(err, redrawn, args.watch)
            sys.stdout.flush()
            first, left = False, left - 1
            if not left:
                return 0
            time.sleep(args.watch)
    except KeyboardInterrupt:
        if redrawn:
            print()  # the shell's prompt, after ^C
        raise


def _once(args: argparse.Namespace, redrawn: bool, first: bool) -> None:
    """Print one output: of JSON a line, of YAML a document with the time above it."""
    if args.output == "json":
        args.run(args)
        return
    with contextlib.redirect_stdout(Screen() if redrawn else io.StringIO()) as page:
        args.run(args)
    if redrawn:
        draw(_head(args.watch) + page.getvalue(), first)
    else:
        print(f"{'--- # ' * (args.output == 'yaml')}{when(time.time())}\n{page.getvalue()}", end="")


def _show_error(err: VmpinError, redrawn: bool, seconds: float) -> None:
    text = f"vmpin: {err}\n" + f"  {err.hint}\n" * bool(err.hint)
    if redrawn:
        draw(_head(seconds) + text, False)
    else:
        print(f"{when(time.time())} {text}", end="", file=sys.stderr, flush=True)


class Screen(io.StringIO):
    """Stands in for the terminal while a verb prints, so that one page replaces another at once."""

    encoding = property(lambda self: getattr(sys.__stdout__, "encoding", "utf-8"))

    def isatty(self) -> bool:
        return True


def _head(seconds: float) -> str:
    return f"every {seconds:g} s: {os.uname().nodename}, {when(time.time())}\n\n"


def draw(text: str, clear: bool) -> None:
    """Over what is on the screen; what is longer than the screen is cut, and counted."""
    lines, room = text.splitlines(), shutil.get_terminal_size().lines - 1
    if len(lines) > room > 1:
        lines[room - 1:] = [f"… {len(lines) - room + 1} more lines"]
    page = "".join(f"{line}{_REST_OF_LINE}\n" for line in lines)
    sys.stdout.write("\x1b[2J" * clear + _TOP + page + _BELOW)

