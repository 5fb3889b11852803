"""`vmpin alloc`: which container was given which CPUs; and that report for `map`, `verify` and `status --explain`."""

from __future__ import annotations

import argparse
import contextlib
import time
from datetime import UTC, datetime

from vmpin.cli.control_client import Document, ask
from vmpin.cli.output import print_data, print_text, table
from vmpin.cli.verbs import Verbs, output_flag, usable_config, verb, watch_flag
from vmpin.config.settings import Config
from vmpin.errors import UsageError
from vmpin.feature import Comparison, ExplainedPods
from vmpin.features.allocator.verbs import alloc_set
from vmpin.features.allocator.verbs.watcher_answer import answer_of
from vmpin.status.pod_arguments import NamedSandbox

_ABOUT = """\
The CPUs that vmpin itself gives out (allocate.mode): which container has which, since when, and by which annotation;
what is free, by NUMA node; and which requests were refused, with the reason. The running watcher answers. `vmpin alloc
set` changes what a running container has.
"""

_EXAMPLES = """\
examples:
  vmpin alloc                containers with CPUs of their own, and what is free
  vmpin alloc -o wide        also those on the pool, with the cpusets that the runtime has for them
  vmpin alloc -o json | jq -r '.refused[].reason'
  vmpin alloc set shop/web policy=fixed --dry-run

states: reserved (given, and not started yet), running, lapsed (the container has stopped; its pod keeps the CPUs until
it ends, and its next container uses them first)
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "alloc", "show which container was given which CPUs, and what was refused", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    watch_flag(parser)
    output_flag(parser, ("table", "wide", "json", "yaml"))
    alloc_set.add_parser(parser.add_subparsers(metavar="[ACTION]", title="actions"))


def run(args: argparse.Namespace) -> int:
    from vmpin.features.allocator.allocation_report import grant_columns, grant_rows, refusals, summary
    report = answer_of(usable_config(args), {"op": "allocations"})
    if args.output in ("json", "yaml"):
        print_data(report, args.output)
        return 0
    wide = args.output == "wide"
    for line in summary(report):
        print_text(line)
    now = _now()
    rows = grant_rows(report, now, wide)
    if rows:
        print()
        table(grant_columns(wide), rows, {"running": "green", "reserved": "cyan", "lapsed": "yellow"},
              spare=() if wide else ("WHY", "SINCE"), also="`vmpin alloc -o wide`", keys=("POD", "CONTAINER"))
    else:
        print("no container has CPUs of its own")
    for line in refusals(report, now):
        print_text(line)
    return 0


def _now() -> datetime:
    return datetime.now(UTC)


def ledger_report(config: Config, actual: bool = False) -> Document | None:
    """Ask the watcher for the report of `vmpin alloc`. None where it gives out nothing, before the runtime's
    first list, and without a watcher. :param actual: with the CPUs that containers' cgroups have."""
    with contextlib.suppress(UsageError):
        report = ask(config, {"op": "allocations", "actual": actual})
        return report if report is not None and report["mode"] == "on" else None
    return None


def compared(config: Config, sandbox: str | None, namespace: str) -> Comparison | None:
    """Compare the CPUs that containers have with those that vmpin has given them, now and, where they differ, a second
    later: a runtime applies an answer some milliseconds after it. None where vmpin gives out no CPUs."""
    grants = _misplaced(config, sandbox, namespace)
    if grants is None:
        return None
    if grants:
        time.sleep(1.0)
        grants = [grant for grant in _misplaced(config, sandbox, namespace) or () if grant in grants]
    lines = [f"{grant['namespace']}/{grant['pod']}/{grant['container']} has CPUs {grant['actual'] or 'none'}, and not "
             f"{grant['cpuset']}, which vmpin has given it ({grant['policy']})" for grant in grants]
    return Comparison(good=not grants, members={"grants": grants},
                      lines=lines or ["each container outside of VMs has the CPUs that vmpin has given it"])


def _misplaced(config: Config, sandbox: str | None, namespace: str) -> list[Document] | None:
    report = ledger_report(config, actual=True)
    if report is None:
        return None
    from vmpin.features.allocator.allocation_report import misplaced
    return [grant for grant in misplaced(report) if sandbox in (None, grant["sandbox"])
            and namespace in ("", grant["namespace"])]


def explained_pods(config: Config) -> ExplainedPods:
    """The pods of the ledger, and, without their ids, those of which it has refused requests; none without a watcher,
    which alone gives out CPUs, and before the runtime has listed its containers."""
    try:
        report = ask(config, {"op": "allocations"})
    except UsageError:
        report = None
    pods: dict[str, list[Document]] = {}
    for grant in () if report is None else report["grants"]:
        pods.setdefault(grant["sandbox"], []).append(grant)

    def sentences(id: str) -> list[str]:
        answer = ask(config, {"op": "allocations", "explain": id})
        return [] if answer is None else [f"{text[0].upper()}{text[1:]}." for text in answer["sentences"]]

    given = [NamedSandbox(sandbox, grants[0]["namespace"], grants[0]["pod"],
                          [(grant["id"], grant["container"]) for grant in grants]) for sandbox, grants in pods.items()]
    refused: dict[tuple[str, str], list[str]] = {}
    for request in () if report is None else report["refused"]:
        refused.setdefault((request["namespace"], request["pod"]), []).append(request["container"])
    return ExplainedPods(sentences=sentences, pods=given + [
        NamedSandbox(f"{namespace}/{pod}", namespace, pod,
                     [(f"{namespace}/{pod}/{name}", name) for name in dict.fromkeys(containers)])
        for (namespace, pod), containers in refused.items()])
