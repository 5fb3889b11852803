"""`vmpin doctor`: what is right and wrong on this node, with evidence and what to do about it."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vmpin.cli.common import (
    Document,
    Verbs,
    load_config,
    node_root,
    output_flag,
    print_data,
    print_styled,
    shown,
    verb,
)
from vmpin.doctor.checks import CHECKS, examine
from vmpin.doctor.finding import Finding, Level
from vmpin.errors import UsageError

#: Of the JSON document.
VERSION = 1

_ABOUT = """\
Look at this node for what helps and what hinders vmpin: what the watcher may do, the kernel, the kubelet, the
container runtime, Kata's configurations, other programs that set masks, and the watcher itself. Each check says what
it saw and, where something is not right, what to do. Nothing is changed. Run it as root.
"""

_LEVELS = """\
levels:
  ok       nothing to do
  warn     it works, with less than could be had, or only until something happens
  bad      threads are not kept where they belong, or will not be: no watcher runs, for one
  unknown  it could not be looked at (not root?), or there is none of it on this node
"""

_EXAMPLES = """\
examples:
  vmpin doctor                        what is not right in full, what is right in a line each
  vmpin doctor -o wide                with the evidence for everything
  vmpin doctor kata nri               some checks: by name, or all that begin with it (kata: kata-pinning, …)
  vmpin doctor -o json | jq -r '.findings[] | select(.level == "bad") | .what'
  vmpin doctor --root /host           in a pod that has the node's file system at /host
for a bug report: vmpin gather packs this and what it was judged by

exit codes: 0 nothing is bad, 1 something is (as on a node where no watcher runs, or one that does not answer, receives
no events or makes no passes: nothing keeps threads in their places there), 2 the command cannot be carried out
"""

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red", "unknown": "dim"}


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "doctor", "say what is right and wrong on this node, and what to do (exit 1 on bad)",
                  about=_ABOUT, epilog=f"{_LEVELS}\n{_list()}\n{_EXAMPLES}")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="only these (default: all)")
    parser.add_argument("--root", type=node_root, default=Path("/"), metavar="DIR", help="where the node's file "
                        "system is: other programs' configuration is looked for below it (default: /)")
    output_flag(parser, ("text", "wide", "json"))
    parser.set_defaults(run=run)


def _list() -> str:
    """The checks, for the help."""
    width = max(len(check.name) for check in CHECKS)
    return "checks:\n" + "".join(f"  {check.name:{width}}  {check.about}\n" for check in CHECKS)


def run(args: argparse.Namespace) -> int:
    from vmpin.cli.questions import read_facts

    _refuse_unknown(args.checks)
    findings = examine(read_facts(load_config(args), args.root), args.checks)
    if args.output == "json":
        print_data(data(findings), "json")
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print_styled(text(findings, args.output == "wide", columns))
    return 1 if any(finding.verdict.level is Level.BAD for finding in findings) else 0


def data(findings: Sequence[Finding]) -> Document:
    """The JSON document."""
    counts = _counts(findings)
    return {"version": VERSION, "ok": not counts[Level.BAD],
            "counts": {str(level): counts[level] for level in Level},
            "findings": [finding.data() for finding in findings]}


#: A line, as words with their styles.
Line = list[tuple[str, str]]


def text(findings: Sequence[Finding], wide: bool, columns: int = 0) -> list[Line]:
    """In the order of the checks, which is one of causes.

    :param columns: of the terminal, 0 for none: its lines are as long as they are.
    """
    lines: list[Line] = []
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        level, told = finding.verdict.level, finding.verdict
        lines += _folded([(f"{level:<8}", _STYLES[level]),
                          (f"{finding.check:<{width}}  ", "bold" if told.remedy else "")], told.what, "", columns)
        if wide or level in (Level.WARN, Level.BAD):
            for each in told.evidence:
                lines += _folded([(" " * 12, "")], each, "dim", columns)
        if told.remedy:
            lines += _folded([(f"{'':10}→ ", "")], told.remedy, "", columns)
    counts = _counts(findings)
    lines.append([(", ".join(f"{counts[level]} {level}" for level in Level if counts[level]), "bold")])
    return lines


def _folded(head: Line, words: str, style: str, columns: int) -> list[Line]:
    """A sentence behind its head, and under itself where it is too long for the terminal."""
    indent = sum(len(word) for word, _ in head)
    parts = textwrap.wrap(shown(words), max(columns - indent, 40), break_on_hyphens=False) if columns else [
        shown(words)]
    return [[*head, (part, style)] if not at else [(" " * indent, ""), (part, style)]
            for at, part in enumerate(parts or [""])]


def _counts(findings: Sequence[Finding]) -> Counter[Level]:
    return Counter(finding.verdict.level for finding in findings)


def _refuse_unknown(names: Sequence[str]) -> None:
    """:raises UsageError: for a name that is no check's, nor the beginning of one's."""
    known = [check.name for check in CHECKS]
    for name in names:
        if not any(each == name or each.startswith(f"{name}-") for each in known):
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(f"there is no check {name!r}",
                             f"did you mean {near[0]!r}?" if near else "`vmpin doctor --help` lists them")
