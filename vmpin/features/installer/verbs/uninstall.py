"""`vmpin uninstall`: undoes `vmpin install`, and restores the masks."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmpin.bounded import load_json
from vmpin.cli import unpin
from vmpin.cli.output import VERSION, print_data
from vmpin.cli.verbs import Verbs, output_flag, usable_config, verb
from vmpin.config import loading
from vmpin.config.settings import Config
from vmpin.errors import LockHeldError, SourceError
from vmpin.features.common.option_values import directory
from vmpin.features.installer import oci_hook
from vmpin.features.installer.file_operations import Operation, RemoveFile, WriteFile
from vmpin.features.installer.verbs import install_service

Step = Operation | install_service.Systemctl

_ABOUT = """\
Leave this node: take the OCI hook out of every directory and OCI spec in which a runtime of this node reads it, stop
and disable the watcher's service, restore the original masks of all threads, and remove vmpin's files, the service's
unit and the empty directories that the installation made. Containers and VMs keep running. It can be repeated.

The configuration stays, and so does the program: remove them as you installed them.
"""

_EXAMPLES = """\
examples:
  vmpin uninstall --dry-run                       what would be done
  vmpin uninstall
  vmpin uninstall --hooks-dir /opt/hooks.d        also in a directory that no runtime's configuration names
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "uninstall", "remove the hook and the service, and restore all masks", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    parser.add_argument("--hooks-dir", type=directory, action="append", default=[], metavar="DIR",
                        help="a further directory with the hook, repeatable")
    parser.add_argument("--force", action="store_true", help="also a unit that was changed by hand")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    from vmpin.reconcile import teardown
    # The watcher's own names the run directory, and the channels into the guests.
    args.config = args.config or install_service.unit_config()
    config = usable_config(args)
    hooks, kept = _hooks(registered(config), args.hooks_dir)
    service = install_service.plan_remove(args.force)
    _refuse_other_watcher(config, stopped=bool(service))
    files, done = teardown.left(config), list[str]()

    def report(line: str) -> None:
        done.append(line)
        if args.output == "text":
            print(f"would {line}" if args.dry_run else line, flush=True)

    def carry_out(steps: Iterable[Step]) -> None:
        for step in steps:
            report(step.describe())
            if not args.dry_run:
                step.execute()

    unit = next((at for at, step in enumerate(service) if isinstance(step, RemoveFile)), len(service))
    carry_out((*hooks, *service[:unit]))
    masks = _leave(config, args.dry_run, bool(files))
    for path in files:
        if args.dry_run or not os.path.lexists(path):
            report(f"remove {path}")
    gone = masks.get("gone", True)
    if gone:  # until then it names the configuration of the next call
        carry_out(service[unit:])
    elif service[unit:]:
        kept.append(f"{install_service.UNITS}/vmpin.service: the next `vmpin uninstall` reads it")
    kept += _others(args.config, None if args.dry_run or not gone else config.paths.run)
    if args.output == "json":
        outcomes = [operation.get("outcome") for operation in masks["operations"]
                    if operation.get("got") != operation["was"]]
        refused = outcomes.count("refused")
        print_data({"version": VERSION, "dry_run": args.dry_run, "done": done,
                    "kept": kept, "of_features": masks.get("of_features", []),
                    "threads": len(outcomes) - refused - outcomes.count("gone"), "refused": refused},
                   "json")
        return 1 if refused or not gone else 0
    code = unpin.print_plan(args, masks, {}) if args.dry_run else unpin.print_restored(args, masks)
    for line in kept:
        print(f"kept {line}")
    return code


def _leave(config: Config, dry_run: bool, with_files: bool) -> dict[str, Any]:
    """Restore all masks, and remove vmpin's files, of which it returns none. :param with_files: whether there are any.
    """
    from vmpin.status import collector
    try:
        return unpin.leave(config, dry_run) | {"files": []}
    except SourceError:
        if with_files:
            raise
        # An image or chroot without /sys, in which no watcher has run.
        return collector.unpinned([], ()) | {"guests": {}, "suspended": [], "of_features": [], "files": []}


def _others(config_file: str | None, run_directory: Path | None) -> Iterable[str]:
    """Yield what stays as others made it, and why. :param run_directory: None where vmpin's files are in it."""
    default, drop_ins = loading.DEFAULT_FILE, install_service.UNITS / "vmpin.service.d"
    for path in dict.fromkeys((Path(config_file or default), default)):
        if path.exists():
            yield f"{path}: the configuration"
    if drop_ins.exists():
        yield f"{drop_ins}: the drop-ins of the service"
    if run_directory is not None and run_directory.is_dir() and os.listdir(run_directory):
        yield f"{run_directory}: what is left there is not vmpin's"


@dataclass(frozen=True)
class Registrations:
    """:ivar files: the files that register the hook, each with its script.
    :ivar usual: hooks directories that runtimes read without being told to.
    :ivar named: the hooks directories that a runtime's configuration names: podman starts no container without them.
    """

    files: Sequence[tuple[Path, Path]] = ()
    usual: Collection[Path] = ()
    named: Collection[Path] = ()


def registered(config: Config) -> Registrations:
    """The registrations of this node, by the runtimes' configuration."""
    from vmpin.features.common.registered_hooks import USUAL, hooks
    from vmpin.host import daemons
    from vmpin.host.files import Files
    from vmpin.host.procfs import Procfs
    from vmpin.runtime.engines import engines

    files = Files("/")
    programs = daemons.programs(Procfs(config.paths.proc), daemons.CONFIGURED)
    running = engines(files, programs)
    usual = [*map(Path, USUAL)]
    return Registrations([(Path(hook.file), Path(hook.script)) for hook in hooks(files, running)], usual,
                         {Path(place) for engine in running for place in engine.hooks_dirs} - {*usual})


def _refuse_other_watcher(config: Config, stopped: bool) -> None:
    """Refuse while another process sets masks that the service's stop does not end: nothing is done then.
    :param stopped: whether the service is to be stopped. :raises LockHeldError: naming the process."""
    from vmpin.host.daemons import unit
    from vmpin.host.lock import lock_holder
    from vmpin.host.procfs import Procfs

    proc = Procfs(config.paths.proc)
    holder = lock_holder(config.paths.lock_file, proc)
    if holder is not None and not (stopped and unit(proc, holder) == "vmpin.service"):
        raise LockHeldError(f"another vmpin (pid {holder}) is at work on {config.paths.run}",
                            "stop it first: it would set the masks again")


def _hooks(there: Registrations, further: Sequence[Path]) -> tuple[list[Step], list[str]]:
    """The steps that take the hook out of the runtimes' configuration; and what stays, with the reason."""
    directories, specs = dict.fromkeys((*further, *there.usual, *there.named)), {}
    for file, script in there.files:
        if os.path.realpath(file.parent) == os.path.realpath(script.parent):
            directories[file.parent] = None
        else:
            specs[file] = script
    steps: list[Step] = []
    kept = []
    in_specs = {os.path.realpath(script) for script in specs.values()}
    for place in directories:
        own = oci_hook.script_path(place)
        if os.path.realpath(own) in in_specs:  # containerd runs it until it is restarted
            steps += [step for step in oci_hook.plan_remove(place) if step.path != own]
        elif place not in there.named:
            steps += oci_hook.plan_leave(place)
        elif removals := oci_hook.plan_remove(place):
            steps += removals
            kept.append(f"{place}: a runtime's configuration names it")
    for spec, script in specs.items():
        emptied = [f"rmdir {path}" for path in oci_hook.made_directories(script)]
        edited = oci_hook.without_hook(load_json(spec.read_bytes()), script)
        steps.append(WriteFile(spec, (json.dumps(edited, indent=2) + "\n").encode()))
        kept.append(f"{script}: containerd read {spec} at its start, and containers would not start without the hook. "
                    f"Restart containerd, then: {' && '.join([f'rm {script}', *emptied])}")
    return steps, kept
