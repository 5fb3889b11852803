"""`vmpin gather`: the data for a bug report, in one file."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vmpin.cli.control_client import ask
from vmpin.cli.output import VERSION, plain_lines, print_data, print_text
from vmpin.cli.verbs import Verbs, output_flag, usable_config, verb
from vmpin.config.settings import Config
from vmpin.domain.terminal import number_of, printable
from vmpin.errors import UsageError, VmpinError
from vmpin.features.common.option_values import new_file
from vmpin.features.doctor.verbs.doctor import data, node_root, read_facts, text

if TYPE_CHECKING:
    from vmpin.features.doctor.pieces import Pieces

_ABOUT = """\
Pack the data for a bug report into a .tar.gz: doctor, status, explain, the configuration, the state file, the
watcher's log, and the processes, threads and cgroups of the managed VMs, read from the kernel. Run it as root, inspect
the result, then send it.
"""

_EPILOG = """\
left out: environments of processes; command lines of processes other than the VMs'; pod annotations; keys of other
programs' configurations that do not concern CPUs. Possible secrets are removed from the VMs' command lines and from
the log. It names pods and containers.

examples:
  vmpin gather                          writes vmpin-gather-TIME.tar.gz, readable by its owner only (mode 0600)
  vmpin gather --dry-run                lists its contents, without writing it
  vmpin gather --out - | ssh …          to standard output, as from a pod
"""

#: Lines of the journal, how far back, and how long it may take (seconds).
_LINES, _SINCE, _PATIENCE = 10_000, "-2d", 30


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "gather", "pack the data for a bug report into one file, without secrets", run, about=_ABOUT,
                  epilog=_EPILOG)
    parser.add_argument("--out", type=new_file, metavar="FILE", help="the file to write, which must not "
                        "exist; - is standard output (default: vmpin-gather-TIME.tar.gz here)")
    parser.add_argument("--dry-run", action="store_true", help="list the pieces with their sizes, and write nothing")
    parser.add_argument("--limit", type=int, default=64, metavar="MIB", help="size of all pieces together, before "
                        "compression (default: 64); the rest is cut")
    parser.add_argument("--root", type=node_root, default=Path("/"), metavar="DIR", help="as for `vmpin doctor`")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    from vmpin.features.doctor.pieces import write
    if not 1 <= args.limit <= 4096:
        raise UsageError(f"--limit {args.limit}: is not between 1 and 4096 MiB")
    config = usable_config(args)
    when = int(time.time())
    top = f"vmpin-gather-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(when))}"
    out = args.out or f"{top}.tar.gz"
    if out == "-" and sys.stdout.isatty() and not args.dry_run:
        raise UsageError("an archive cannot be printed to a terminal", "`vmpin gather --out - >FILE`")
    with contextlib.nullcontext(sys.stdout.buffer) if args.dry_run or out == "-" else _new_archive(Path(out)) as to:
        pieces = _collect(config, args)
        if not args.dry_run:
            write(to, pieces.all(), top, when)
    _report(args, pieces, "" if args.dry_run else out)
    return 0


@contextlib.contextmanager
def _new_archive(path: Path) -> Iterator[BinaryIO]:
    """A new file, readable by its owner only. After an error it is removed: an incomplete archive is useless.

    :raises UsageError: if it cannot be created.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists", "give another name, or remove it") from None
    except OSError as err:
        raise UsageError(f"cannot write {path}: {err.strerror}", "give another place: --out FILE") from err
    try:
        with open(file, "wb") as to:
            yield to
            to.flush()
            os.fsync(file)
    except BaseException:
        os.unlink(path)
        raise


def _collect(config: Config, args: argparse.Namespace) -> Pieces:
    from vmpin.features.doctor.checks import examine
    from vmpin.features.doctor.report import collect
    facts = read_facts(config, args.root)
    findings = examine(facts)
    report = "".join(f"{line}\n" for line in plain_lines(text(findings, wide=True)))
    pieces = collect(config, facts, data(findings), report, args.limit << 20)
    try:
        plan = ask(config, {"op": "plan"})
        if plan is None:
            pieces.missing["vmpin/plan.json"] = "no watcher runs"
        else:
            pieces.add_json("vmpin/plan.json", plan)
    except VmpinError as err:
        pieces.missing["vmpin/plan.json"] = str(err)
    _add_log(pieces, facts.watcher.unit or "vmpin.service")
    return pieces


def _add_log(pieces: Pieces, unit: str) -> None:
    """Add the end of the watcher's log, if the journal has it."""
    import subprocess

    from vmpin.features.doctor.redact import cleaned
    lines = []
    try:
        done = subprocess.run(
            ["journalctl", "--no-pager", "--quiet", f"--unit={unit}", f"--lines={_LINES}", f"--since={_SINCE}",
             "--output=short-iso-precise", "--utc"], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_PATIENCE, check=False)
        lines = [cleaned(line) for line in done.stdout.decode("utf-8", "replace").splitlines()]
        why = done.stderr.decode("utf-8", "replace").strip()[:200] or (
            f"the journal has no line of {unit} in the last two days")
    except FileNotFoundError:
        why = "journalctl was not found"
    except (OSError, subprocess.SubprocessError) as err:
        why = f"journalctl: {err}"
    if lines:
        pieces.add("vmpin/log.txt", "\n".join(lines) + "\n", tail=True)
    else:
        pieces.missing["vmpin/log.txt"] = why


def _report(args: argparse.Namespace, pieces: Pieces, out: str) -> None:
    """Print the contents; on standard error if the archive uses standard output."""
    listed = pieces.all()
    line = partial(print, file=sys.stderr) if out == "-" else print_text
    if args.output == "json" and out != "-":
        print_data({"version": VERSION, "file": out or None, "bytes": os.stat(out).st_size if out else None,
                    "pieces": [{"name": piece.name, "bytes": len(piece.data), "cut": piece.cut} for piece in listed],
                    "missing": pieces.missing}, "json")
        return
    if args.dry_run:
        for piece in listed:
            print_text(f"{len(piece.data):>9}  {piece.name}" + (f" (cut by {piece.cut})" if piece.cut else ""))
    for name, why in pieces.missing.items():
        line(f"without {printable(name)}: {printable(why)}")
    if out and out != "-":
        print_text(f"{out}: {number_of(len(listed), 'piece')}, {os.stat(out).st_size} bytes. "
                   "Inspect it before you send it.")
