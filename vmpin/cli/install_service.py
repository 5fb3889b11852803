"""`vmpin install-service`: the watcher as a service of systemd."""

import argparse
import os
import shutil
import subprocess
from pathlib import Path

from vmpin.cli.output import VERSION, print_data
from vmpin.cli.this_program import own_program
from vmpin.cli.verbs import Verbs, directory, output_flag, verb
from vmpin.errors import UsageError, VmpinError
from vmpin.install import data_files, file_operations
from vmpin.install.service_unit import is_untouched, unit_text

#: Where an administrator's units are.
UNITS = Path("/etc/systemd/system")
#: Is there while systemd is the machine's init (sd_booted(3)).
RUNNING = Path("/run/systemd/system")
#: Seconds: the start ends when every thread is placed.
_DEADLINE = 120

_ABOUT = """\
Write the systemd unit of the watcher, with the path of this vmpin (and --config FILE, where it is given), and have
systemd read it. With --now also enable and start the watcher, or restart it where the unit changed: threads keep their
masks meanwhile. Again, it changes only what differs. A unit that was changed by hand is not overwritten, and not
removed, except with --force; a drop-in (systemctl edit vmpin) is never touched. Without systemd the file is written,
and the rest left to you.
"""

_EXAMPLES = """\
examples:
  vmpin install-service --print            the unit, and nothing more
  vmpin install-service --dry-run          what would be done
  vmpin install-service --now              write it, enable and start it
  vmpin install-service --remove           stop, disable and remove it; `vmpin unpin --all` restores the masks
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "install-service", "run the watcher as a service of systemd", run, about=_ABOUT,
                  epilog=_EXAMPLES)
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
    shipped = data_files.path("config/vmpin.service").read_text(encoding="utf-8")
    options = [] if args.config is None else ["--config", os.path.abspath(args.config)]
    text = unit_text(shipped, [*own_program(), *options, "watch"])
    if args.print:
        print(text, end="")
        return 0
    args.dir = args.dir or UNITS
    file = args.dir / "vmpin.service"
    there = _present(file)
    if there is not None and there != text and not args.force and not is_untouched(there, shipped):
        raise UsageError(f"{file} was changed by hand", "keep the changes in a drop-in (systemctl edit vmpin), then "
                         f"{'remove' if args.remove else 'overwrite'} it with --force")
    systemd = RUNNING.is_dir() and args.dir == UNITS
    operation, commands = _planned(args, file, text, there)
    _carry_out(args, operation, commands if systemd else [])
    if args.output == "text" and not args.dry_run:
        print(_next(args, systemd, file))
    return 0


def _present(file: Path) -> str | None:
    """The unit that is there. :raises UsageError: where it is masked, or cannot be read."""
    try:
        if os.path.realpath(file) == os.devnull:
            raise UsageError(f"{file} is masked: systemd starts no such service", "systemctl unmask vmpin")
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as err:
        raise UsageError(f"cannot read {file}: {err.strerror}", "run this as root") from err


def _planned(args: argparse.Namespace, file: Path, text: str,
             there: str | None) -> tuple[file_operations.Operation | None, list[list[str]]]:
    """The operation on the file, None for one that is as it should be, and systemctl's commands around it: those
    before the removal, else those after the writing."""
    if args.remove:
        return (None, []) if there is None else (file_operations.RemoveFile(file), [["disable", "--now", "vmpin"]])
    operation = None if there == text else file_operations.WriteFile(file, text.encode())
    commands = [["daemon-reload"]] if operation else []
    if args.now:
        commands += [["enable", "vmpin"], ["restart" if operation else "start", "vmpin"]]
    return operation, commands


def _carry_out(args: argparse.Namespace, operation: file_operations.Operation | None,
               commands: list[list[str]]) -> None:
    """Print what is done, and do it unless it is a dry run.
    :raises UsageError: where the file cannot be written. :raises VmpinError: where systemd refuses."""
    lines = [operation.describe()] if operation else []
    called = [" ".join(["systemctl", *each]) for each in commands]
    lines = [*called, *lines] if args.remove else [*lines, *called]
    if args.remove and commands:
        commands, lines = [*commands, ["daemon-reload"]], [*lines, "systemctl daemon-reload"]
    if args.output == "json":
        print_data({"version": VERSION, "dry_run": args.dry_run, "unit": str(args.dir / "vmpin.service"),
                    "done": lines}, "json")
    else:
        for line in lines or ["nothing to do"]:
            print(f"would {line}" if args.dry_run and lines else line, flush=True)
    if args.dry_run:
        return
    before, after = (commands[:1], commands[1:]) if args.remove else ([], commands)
    for command in before:
        _systemctl(command)
    if operation:
        operation.execute()
    for command in after:
        _systemctl(command)


def _systemctl(command: list[str]) -> None:
    line = " ".join(["systemctl", *command])
    try:
        subprocess.run([shutil.which("systemctl") or "systemctl", *command], capture_output=True, text=True,
                       check=True, timeout=_DEADLINE)
    except subprocess.CalledProcessError as err:
        raise VmpinError(f"{line}: {err.stderr.strip() or f'exit code {err.returncode}'}",
                         "systemctl status vmpin; journalctl -u vmpin") from err
    except (OSError, subprocess.TimeoutExpired) as err:
        raise VmpinError(f"{line}: {err}", "systemctl status vmpin; journalctl -u vmpin") from err


def _next(args: argparse.Namespace, systemd: bool, file: Path) -> str:
    if args.remove:
        return "\nnext: threads keep their masks until `vmpin unpin --all`, which also removes vmpin's files in /run"
    if not systemd:
        return (f"\nsystemd does not run here: nothing was started. Where it does, {file} is started by\n"
                "  systemctl daemon-reload && systemctl enable --now vmpin")
    if args.now:
        return "\nnext: `vmpin status`, and `vmpin doctor` if something is missing"
    return "\nnext: systemctl enable --now vmpin, then `vmpin status`"
