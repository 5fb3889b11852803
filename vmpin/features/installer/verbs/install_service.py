"""`vmpin install service`: the watcher as a service of systemd."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vmpin.cli.output import VERSION, print_data
from vmpin.cli.this_program import own_program
from vmpin.cli.verbs import Verbs, output_flag, verb
from vmpin.errors import UsageError, VmpinError
from vmpin.features.common.option_values import directory
from vmpin.features.installer.file_operations import Operation, RemoveFile, WriteFile
from vmpin.install import data_files

#: Where an administrator's units are.
UNITS = Path("/etc/systemd/system")
#: The unit of the Debian package and the RPM.
PACKAGED = Path("/usr/lib/systemd/system/vmpin.service")
#: Exists while systemd is the machine's init (sd_booted(3)).
RUNNING = Path("/run/systemd/system")
#: Seconds: the start ends when every thread is placed.
_DEADLINE = 120

_EXEC_START = re.compile(r"^ExecStart=.*$", re.MULTILINE)
_CONFIG = re.compile(r'^ExecStart=.* --config (?:"((?:[^"\\]|\\.)*)"|(\S+)) watch$', re.MULTILINE)
_HEAD = """\
# The watcher's unit, written by `vmpin install service`. Changes of your own go into a drop-in: systemctl edit vmpin
# vmpin install service: """

_ABOUT = """\
Write the systemd unit of the watcher, with the path of this vmpin (and with --config FILE, if it is given), and have
systemd read it. --now also enables and starts the watcher, or restarts it if the unit changed; threads keep their
masks meanwhile. A second run changes only what differs. A unit that was changed by hand is overwritten or removed only
with --force; a drop-in (systemctl edit vmpin) is never touched. Without systemd the command writes the file, and
leaves the rest to you.
"""

_EXAMPLES = """\
examples:
  vmpin install service --print            the unit, and nothing more
  vmpin install service --dry-run          what would be done
  vmpin install service --now              write it, enable and start it
  vmpin install service --remove           stop, disable and remove it; `vmpin unpin --all` restores the masks
"""


def add_parser(kinds: Verbs) -> None:
    parser = verb(kinds, "service", "run the watcher as a service of systemd", run, about=_ABOUT, epilog=_EXAMPLES)
    parser.add_argument("--now", action="store_true", help="also enable it, and start or restart it")
    parser.add_argument("--print", action="store_true", help="print the unit, and do nothing")
    parser.add_argument("--remove", action="store_true", help="stop and disable it, and remove the unit")
    parser.add_argument("--force", action="store_true", help="also a unit that was changed by hand")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    parser.add_argument("--dir", type=directory, metavar="DIR", help="where the unit is put; any other "
                        f"directory than {UNITS} is that of an image, whose systemd does not run here")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    if args.set or args.set_here:
        raise UsageError("--set is not written into the unit",
                         "put the key into /etc/vmpin/vmpin.yaml, or name another file with --config FILE")
    if args.remove and (args.now or args.print):
        raise UsageError("--remove goes neither with --now nor with --print", "give one of them")
    if args.print and args.output != "text":
        raise UsageError("--print prints the unit: it goes without -o", "--dry-run -o json has what would be done")
    shipped = data_files.path("config/vmpin.service").read_text(encoding="utf-8")
    options = [] if args.config is None else ["--config", os.path.abspath(args.config)]
    text = unit_text(shipped, [*own_program(), *options, "watch"])
    if args.print:
        print(text, end="")
        return 0
    args.dir = args.dir or UNITS
    file = args.dir / "vmpin.service"
    present = _present(file)
    if present != text:
        _refuse_changed(file, present, args.force, "remove" if args.remove else "overwrite")
    systemd = RUNNING.is_dir() and args.dir == UNITS
    steps = _possible(_steps(args, file, text, present), systemd)
    _report(args, file, [step.describe() for step in steps])
    if not args.dry_run:
        for step in steps:
            step.execute()
        if args.output == "text":
            print(_next(args, systemd, file))
    return 0


@dataclass(frozen=True)
class Systemctl:
    """A call of systemctl."""

    words: tuple[str, ...]

    def describe(self) -> str:
        return " ".join(("systemctl", *self.words))

    def execute(self) -> None:
        """Call it. :raises VmpinError: where systemd refuses."""
        hint = "systemctl status vmpin; journalctl -u vmpin"
        try:
            subprocess.run([shutil.which("systemctl") or "systemctl", *self.words], capture_output=True, text=True,
                           check=True, timeout=_DEADLINE)
        except subprocess.CalledProcessError as err:
            why = err.stderr.strip() or f"exit code {err.returncode}"
            raise VmpinError(f"{self.describe()}: {why}", hint) from err
        except (OSError, subprocess.TimeoutExpired) as err:
            raise VmpinError(f"{self.describe()}: {err}", hint) from err


def _present(file: Path) -> str | None:
    """The text of the present unit; None without one. :raises UsageError: where it is masked, or cannot be read."""
    try:
        if os.path.realpath(file) == os.devnull:
            raise UsageError(f"{file} is masked: systemd starts no such service", "systemctl unmask vmpin")
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as err:
        raise UsageError(f"cannot read {file}: {err.strerror}", "run this as root") from err


def unit_config() -> str | None:
    """The file that the unit gives the watcher as its configuration; None without one, and where it is gone."""
    try:
        match = _CONFIG.search((UNITS / "vmpin.service").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    text = "" if match is None else re.sub(r"\\(.)", r"\1", match[1] or match[2])
    path = text.replace("%%", "%").replace("$$", "$")
    return path if os.path.exists(path) else None


def plan_remove(force: bool) -> list[Operation | Systemctl]:
    """The steps that stop the watcher's service and remove its unit, in order; a package's own unit stays.
    :raises UsageError: for a unit that was changed by hand, without `force`."""
    file = UNITS / "vmpin.service"
    present = _present(file)
    _refuse_changed(file, present, force, "remove")
    return _possible(_removal(file, present, PACKAGED.exists()), RUNNING.is_dir())


def _removal(file: Path, present: str | None, packaged: bool = False) -> list[Operation | Systemctl]:
    """The steps of a removal, in order. :param packaged: whether a package has a unit, which is stopped and stays."""
    steps: list[Operation | Systemctl] = []
    if packaged or present is not None:
        steps.append(Systemctl(("disable", "--now", "vmpin")))
    if present is not None:
        steps += [RemoveFile(file), Systemctl(("daemon-reload",))]
    return steps


def _possible(steps: Sequence[Operation | Systemctl], systemd: bool) -> list[Operation | Systemctl]:
    """The steps without calls of systemctl where systemd does not run."""
    return [step for step in steps if systemd or not isinstance(step, Systemctl)]


def _refuse_changed(file: Path, present: str | None, force: bool, verb: str) -> None:
    shipped = data_files.path("config/vmpin.service").read_text(encoding="utf-8")
    if present is not None and not force and not is_untouched(present, shipped):
        raise UsageError(f"{file} was changed by hand", "keep the changes in a drop-in (systemctl edit vmpin), then "
                         f"{verb} it with --force")


def _steps(args: argparse.Namespace, file: Path, text: str, present: str | None) -> Sequence[Operation | Systemctl]:
    """The steps of an installation or removal, in order; none where the unit is as it should be."""
    if args.remove:
        return _removal(file, present)
    changed = present != text
    steps: list[Operation | Systemctl] = []
    if changed:
        steps += [WriteFile(file, text.encode()), Systemctl(("daemon-reload",))]
    if args.now:
        steps += [Systemctl(("enable", "vmpin")), Systemctl(("restart" if changed else "start", "vmpin"))]
    return steps


def _report(args: argparse.Namespace, file: Path, lines: Sequence[str]) -> None:
    """Print what is done now, or would be done. :param lines: the description of each step."""
    if args.output == "json":
        print_data({"version": VERSION, "dry_run": args.dry_run, "unit": str(file), "done": lines}, "json")
        return
    for line in lines or ["nothing to do"]:
        print(f"would {line}" if args.dry_run and lines else line, flush=True)


def _next(args: argparse.Namespace, systemd: bool, file: Path) -> str:
    if args.remove:
        return "\nnext: threads keep their masks until `vmpin unpin --all`, which also removes vmpin's files in /run"
    if not systemd:
        return (f"\nsystemd does not run here: nothing was started. Where it does, {file} is started by\n"
                "  systemctl daemon-reload && systemctl enable --now vmpin")
    if args.now:
        return "\nnext: `vmpin status`, and `vmpin doctor` if something is missing"
    return "\nnext: systemctl enable --now vmpin, then `vmpin status`"


def unit_text(shipped: str, command: Sequence[str]) -> str:
    """The shipped unit with the command that starts the watcher, below a line that has the sum of the rest.
    :raises UsageError: for a command that systemd refuses (src/basic/string-util.c: string_is_safe)."""
    if re.search(r"[\"'\\\x00-\x1f\x7f]", command[0]) or any("\n" in argument for argument in command):
        raise UsageError(f"systemd cannot start {' '.join(command)!r}: it takes no quote, backslash or control "
                         "character in a program's path, and no line break", "install vmpin in another directory")
    start = f"ExecStart={_quoted(command[0], program=True)} {' '.join(map(_quoted, command[1:]))}"
    body = _EXEC_START.sub(lambda _: start, shipped[shipped.index("[Unit]"):])
    return f"{_HEAD}{_sum(body)}\n{body}"


def is_untouched(text: str, shipped: str) -> bool:
    """True for a unit that this or an older vmpin wrote and that was not changed since, and for a copy of the shipped
    one, whatever its ExecStart."""
    _, mark, rest = text.partition("# vmpin install service: ")
    checksum, _, body = rest.partition("\n")
    return bool(mark and checksum == _sum(body)) or _EXEC_START.sub("", text) == _EXEC_START.sub("", shipped)


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _quoted(argument: str, program: bool = False) -> str:
    """Quote an argument as systemd reads it in ExecStart= (systemd.service(5), systemd.syntax(7)).
    :param program: whether it is the program's path, in which no variables are replaced."""
    text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    text = text if program else text.replace("$", "$$")
    return text if re.fullmatch(r"[\w./+=:,@%$-]+", text) else f'"{text}"'
