"""`vmpin isolation`: what share of its exclusive CPUs' time a pod had for itself, and what took the rest."""

import argparse
import contextlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from vmpin.bounded import parse_real
from vmpin.cli.control_client import Document, ask
from vmpin.cli.output import print_data, print_text, table
from vmpin.cli.verbs import Verbs, answering, namespace_flag, output_flag, usable_config, verb, watch_flag
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.errors import UnseenError, UsageError, WatcherError
from vmpin.feature import notes_on_cpus
from vmpin.features.common.option_values import duration
from vmpin.status.pod_arguments import NamedSandbox, only_match

_ABOUT = """\
Shows which share of its exclusive CPUs' time a pod had for itself, running or idle; which share the kernel and other
programs had; and the worst minute, with its cause and a remedy. The watcher reads each exclusive CPU every
proof.sample_seconds and keeps sums for each minute of the last 24 hours, of VMs and of containers without a VM.

The share has a lower and an upper bound: between two samples the CPU of a thread that may also run elsewhere is not
certain. Time without samples, for example while no watcher ran, lowers only the lower bound.
"""

_EXAMPLES = """\
examples:
  vmpin isolation demo/shop                          the last 24 hours of one pod
  vmpin isolation --all --since 1h                   every pod with exclusive CPUs, a line each
  vmpin isolation --all --slo 99.9                   for scripts: exit code 1 if a pod had less than 99.9 %
  vmpin isolation demo/shop --since 5m --watch       again every two seconds

exit codes:
  0  without --slo, or every pod had at least that share
  1  a pod had less
  2  the command line cannot be used, or samples are off
  3  the objective lies between the bounds of a share; or the watcher does not answer
"""

#: The books go back that far.
_LONGEST = 24 * 3600


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "isolation", "what share of its exclusive CPUs' time a pod had for itself", run, about=_ABOUT,
                  epilog=_EXAMPLES)
    parser.add_argument("pod", nargs="?", metavar="POD",
                        help="POD, NAMESPACE/POD, or the first digits of its sandbox's id; also one that has ended")
    namespace_flag(parser)
    parser.add_argument("--all", action="store_true", help="every pod that has, or had, exclusive CPUs")
    parser.add_argument("--since", metavar="DURATION", default="24h", help="90s, 30m, 24h (the default, and the most)")
    parser.add_argument("--slo", metavar="PERCENT", help="the share that each pod should have had at least: 99.9")
    watch_flag(parser)
    output_flag(parser, ("text", "json"))


@answering(UnseenError)
def run(args: argparse.Namespace) -> int:
    if bool(args.pod) == args.all:
        raise UsageError("give a pod, or --all", "`vmpin isolation --all` lists the pods with exclusive CPUs")
    config, since = usable_config(args), duration(args.since)
    if since > _LONGEST:
        raise UsageError(f"--since {args.since}: the books of isolation go back 24 hours", "e.g. --since 24h")
    objective = None if args.slo is None else _objective(args.slo)
    report = _document(config, since)
    if args.pod:
        report["pods"] = [_chosen(report["pods"], args.pod, args.namespace)]
    elif args.namespace:
        report["pods"] = [pod for pod in report["pods"] if pod["pod"] and pod["pod"]["namespace"] == args.namespace]
    if objective is not None:
        from vmpin.features.isolation.isolation_report import with_slo
        report = with_slo(report, objective)
    if args.output == "json":
        print_data(report, "json")
    else:
        _print_text(report, objective, bool(args.pod))
        for line in _notes(config, report["pods"][0]) if args.pod else ():
            print_text(line)
    if objective is None:
        return 0
    return {"kept": 0, "missed": 1, "undecided": 3}[report["slo"]["verdict"]]


def _objective(text: str) -> float:
    """A number above 0, up to 100. :raises UsageError: for any other text."""
    if percent := parse_real(text, 100):
        return percent
    raise UsageError(f"--slo {text}: is no percentage above 0", "e.g. --slo 99.9")


def _document(config: Config, since: int) -> Document:
    """Ask the watcher for the isolation of the last `since` seconds. :raises WatcherError: without a watcher."""
    report = ask(config, {"op": "isolation", "since": since})
    if report is None:
        raise WatcherError("no watcher runs, and only a watcher records what runs on exclusive CPUs",
                           "start `vmpin watch`; `vmpin verify --others` samples the CPUs for some seconds without "
                           "one")
    return report


def _chosen(pods: Sequence[Document], text: str, namespace: str) -> Document:
    """Return the pod that an argument names. :raises UsageError: for none, and for several."""
    named = [NamedSandbox(pod["sandbox"], pod["pod"]["namespace"] if pod["pod"] else "",
                          pod["pod"]["name"] if pod["pod"] else "") for pod in pods]
    chosen = only_match(text, namespace, named, "pod with exclusive CPUs in that time", "vmpin isolation --all")
    return next(pod for pod in pods if pod["sandbox"] == chosen.sandbox.id)


def _print_text(report: dict[str, Any], objective: float | None, single: bool) -> None:
    from vmpin.features.isolation import isolation_text as texts
    pods = report["pods"]
    width = max(texts.WIDTH, min(120, shutil.get_terminal_size((texts.WIDTH, 24)).columns)) - 1
    if single:
        for line in texts.lines(pods[0], objective, width):
            print(line)
        return
    if not pods:
        print("no pod has, or had, exclusive CPUs in that time: nothing was compared")
        return
    table([*texts.TABLE, *(["SLO"] if objective is not None else [])],
          [texts.row(pod, objective is not None) for pod in pods], {"missed": "yellow", "undecided": "yellow"},
          spare=("KERNEL", "AT LEAST"), also="`vmpin isolation POD`")
    for pod in pods:
        if pod["worst"] is not None:
            print()
            for line in texts.worst_lines(pod, width):
                print(line)
    print(f"\nsince {report['since']}; `vmpin isolation POD` has the details of a pod")


def _notes(config: Config, pod: Document) -> Iterator[str]:
    """Lines with what features note now on a pod's exclusive CPUs."""
    if pod["ended"]:
        return
    with contextlib.suppress(UsageError, WatcherError):  # it has just ended
        status = ask(config, {"op": "status", "sandbox": pod["sandbox"]})
        cpus = CpuSet.parse(pod["cpus"])
        notes = [note for cpu, notes in notes_on_cpus(status or {}).items() if cpu in cpus for note in notes]
        yield from ("  in the last interval:", *(f"    {note}" for note in notes)) if notes else ()
