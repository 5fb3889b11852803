"""`vmpin doctor`: checks this node, and prints findings with evidence and remedy."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.cli.control_client import Document, ask, read_status
from vmpin.cli.output import Line, print_data, print_styled
from vmpin.cli.verbs import Verbs, completed_by, did_you_mean, output_flag, usable_config, verb, watch_flag
from vmpin.config.settings import Config
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import printable
from vmpin.domain.wrapping import wrapped
from vmpin.errors import UsageError, VmpinError, WatcherError, WatcherStopped
from vmpin.feature import inspect_vms
from vmpin.features.common.finding import Finding, Level
from vmpin.features.common.option_values import directory
from vmpin.features.doctor.checks import all_checks, examine

if TYPE_CHECKING:
    from vmpin.domain.facts import NodeFacts, WatcherFacts

#: Of the JSON document.
VERSION = 1

_ABOUT = """\
Check this node for what helps and what hinders vmpin: the watcher's privileges, the kernel, the kubelet, the container
runtime, Kata's configurations, other programs that set masks, and the watcher itself. Each check prints its evidence
and, after a problem, the remedy. It changes nothing. Run it as root.
"""

_LEVELS = """\
levels:
  ok       nothing to do
  warn     it works, but less than it could, or only until a certain event
  bad      threads are not kept where they belong, or will not be: no watcher runs, for one
  unknown  it could not be read (not root?), or this node does not have it
"""

_EXAMPLES = """\
examples:
  vmpin doctor                        problems in full and last, passed checks in one line each
  vmpin doctor -o wide                with the evidence for every check
  vmpin doctor kata nri               some checks: by name, or all with this prefix (kata: kata-pinning, …)
  vmpin doctor -o json | jq -r '.findings[] | select(.level == "bad") | .what'
  vmpin doctor --root /host           in a pod that has the node's file system at /host

for a bug report: vmpin gather packs the findings and the facts behind them

exit codes: 0 no check is bad, 1 a check is bad (also if no watcher runs, or if it does not answer, receives no events
or makes no passes: nothing keeps threads in place then), 2 the command cannot be carried out
"""

#: The order of the text.
_LAST = (Level.OK, Level.UNKNOWN, Level.WARN, Level.BAD)
_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red", "unknown": "dim"}


def add_parser(verbs: Verbs) -> None:
    table = all_checks()
    width = max(len(check.name) for check in table)
    checks = "".join(f"  {check.name:{width}}  {check.about}\n" for check in table)
    parser = verb(verbs, "doctor", "check this node, and print problems with their remedies (exit 1 on bad)", run,
                  about=_ABOUT, epilog=f"{_LEVELS}\nchecks:\n{checks}\n{_EXAMPLES}")
    completed_by(parser.add_argument("checks", nargs="*", metavar="CHECK", help="only these (default: all)"),
                 lambda: (check.name for check in all_checks()))
    parser.add_argument("--root", type=node_root, default=Path("/"), metavar="DIR", help="the mount of the node's "
                        "file system, with other programs' configuration (default: /)")
    watch_flag(parser)
    output_flag(parser, ("text", "wide", "json"))


def run(args: argparse.Namespace) -> int:
    _refuse_unknown(args.checks)
    facts = read_facts(usable_config(args), args.root)
    findings = examine(facts, args.checks)
    if args.output == "json":
        print_data(data(findings), "json")
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print_styled(text(findings, args.output == "wide", columns, names_of(facts.status) if facts.status else {}))
    return 1 if any(finding.verdict.level is Level.BAD for finding in findings) else 0


def node_root(text: str) -> Path:
    """The mount of the node's file system. :raises UsageError: if it is missing or empty, which would look like a node
    without any configuration."""
    root = directory(text)
    try:
        if os.listdir(root):
            return root
        why = "is empty"
    except OSError as err:
        why = err.strerror or str(err)
    raise UsageError(f"--root {text}: {why}", "give the directory at which the node's file system is mounted")


def data(findings: Sequence[Finding]) -> Document:
    """The JSON document."""
    counts = Counter(finding.verdict.level for finding in findings)
    return {"version": VERSION, "ok": not counts[Level.BAD],
            "counts": {str(level): counts[level] for level in Level},
            "findings": [finding.data() for finding in findings]}


def text(findings: Sequence[Finding], wide: bool, columns: int = 0,
         names: Mapping[str, str] | None = None) -> list[Line]:
    """The findings as lines, the worst last: a terminal's last screen has what is to be done.

    :param columns: width of the terminal; 0 for no wrapping.
    :param names: of pods and containers by their ids, for a person; None keeps the ids whole, for a bug report.
    """
    def named(sentence: str) -> str:
        return sentence if names is None else with_names(sentence, names)

    lines: list[Line] = []
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in sorted(findings, key=lambda finding: _LAST.index(finding.verdict.level)):
        result = finding.verdict
        head = [(f"{result.level:<8}", _STYLES[result.level]),
                (f"{finding.check:<{width}}  ", "bold" if result.remedy else "")]
        lines += _folded(head, named(result.what), "", columns)
        if wide or result.level in (Level.WARN, Level.BAD):
            for sentence in result.evidence:
                lines += _folded([(" " * 12, "")], named(sentence), "dim", columns)
        if result.remedy:
            lines += _folded([(f"{'':10}→ ", "")], result.remedy, "", columns)
    counts = Counter(finding.verdict.level for finding in findings)
    lines.append([(", ".join(f"{counts[level]} {level}" for level in Level if counts[level]), "bold")])
    return lines


def _folded(head: Line, sentence: str, style: str, columns: int) -> list[Line]:
    """A sentence after its head, wrapped and indented to the width of the terminal."""
    indent = sum(len(part) for part, _ in head)
    first, *others = wrapped(printable(sentence), max(columns - indent, 40)) if columns else [printable(sentence)]
    return [[*head, (first, style)], *([(" " * indent, ""), (part, style)] for part in others)]


def _refuse_unknown(names: Sequence[str]) -> None:
    """Refuse a name that is neither a check's nor a prefix of one. :raises UsageError:"""
    checks = [check.name for check in all_checks()]
    for name in names:
        if not any(check == name or check.startswith(f"{name}-") for check in checks):
            raise UsageError(f"there is no check {name!r}",
                             did_you_mean(name, checks, "`vmpin doctor --help` lists them"))


def read_facts(config: Config, root: Path) -> NodeFacts:
    """All facts for the doctor and for a bug report. Faults of the node are facts, too, and raise nothing."""
    from vmpin.features.doctor.node_facts import collect_facts
    watcher = _watcher_facts(config)
    return collect_facts(config, root, watcher, *_status(config, watcher))


def _watcher_facts(config: Config) -> WatcherFacts:
    """The state of the watcher, and its own description."""
    from dataclasses import replace

    from vmpin.domain.facts import WatcherFacts
    from vmpin.host.daemons import unit
    from vmpin.host.lock import lock_holder
    from vmpin.host.procfs import Procfs
    from vmpin.install.own_version import installed_version
    proc = Procfs(config.paths.proc)
    holder = lock_holder(config.paths.lock_file, proc)
    facts = WatcherFacts(pid=holder, version=installed_version() or "", config=config.data(),
                         config_errors=tuple(map(str, config.errors)),
                         config_warnings=tuple(map(str, config.warnings)),
                         unit="" if holder is None else unit(proc, holder))
    try:
        about = ask(config, {"op": "about"})
    except UsageError as err:  # it refused: we are not root
        return replace(facts, state="running", why=str(err))
    except (WatcherError, ValueError) as err:
        if isinstance(err.__context__, PermissionError):  # this user may not connect: no fault of the watcher
            return replace(facts, state="hidden" if holder is None else "running", why=str(err))
        return replace(facts, state="stopped" if isinstance(err, WatcherStopped) else "mute", why=str(err))
    if about is not None:
        pid = int(about["pid"])
        return replace(facts, state="running", pid=pid, about=about, unit=unit(proc, pid))
    if holder is None:
        return facts
    return replace(facts, state="mute",
                   why=f"process {holder} holds {config.paths.lock_file}, but its socket is closed")


def _status(config: Config, watcher: WatcherFacts) -> tuple[Document, str]:
    """The status document with the VMMs' cgroups, or {} and the reason."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the checks report problems
    try:
        answers = watcher.state in ("running", "hidden")  # to ask a mute one would cost a second deadline
        status = (ask(config, {"op": "status", "wide": True}) if answers else None) or read_status(config, wide=True)
        inspect_vms(config, status["sandboxes"])
        return status, ""
    except (VmpinError, OSError, ValueError) as err:
        return {}, str(err)
    finally:
        logging.disable(disabled)
