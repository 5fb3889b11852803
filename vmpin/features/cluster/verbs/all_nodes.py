"""`vmpin status|verify --all-nodes`: every node of a cluster by its NodePinning."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from vmpin.cli.output import print_data, print_text, table
from vmpin.cli.verbs import answering
from vmpin.errors import UnseenError, UsageError
from vmpin.features.cluster.fleet.fleet_reading import read_fleet
from vmpin.features.cluster.fleet.fleet_views import (
    STYLES,
    TextTable,
    document_parts,
    findings,
    misplaced_table,
    node_table,
    overview,
    pod_table,
    remarks,
    verify_document,
)
from vmpin.features.cluster.fleet.node_record import Fleet, NodeRecord
from vmpin.features.cluster.reporter.api_server import ApiServer


def status(args: argparse.Namespace) -> int:
    _refuse(args, "sandbox", "explain", "direct", "watch", "inspect", "problems", "no_headers")
    if args.output == "name":
        raise UsageError("-o name is about this node: it does not go with --all-nodes",
                         "`kubectl get nodepinnings -o name` lists the nodes")
    fleet = _read(args, everything=args.output != "table")
    if args.output in ("json", "yaml"):
        return _print_document(fleet, args.output)
    wide = args.output == "wide"
    print_text(overview(fleet))
    _print_table(node_table(fleet, wide))
    _print_table(pod_table(fleet, wide))
    _print_lines(remarks(fleet))
    return 0


@answering(UnseenError)
def verify(args: argparse.Namespace) -> int:
    _refuse(args, "sandbox", "others", "direct", "since", "tolerate", "watch")
    fleet = _read(args)
    if args.output == "json":
        print_data(verify_document(fleet), "json")
    else:
        _print_table(misplaced_table(fleet))
        _print_lines(remarks(fleet))
        _print_lines(findings(fleet))
    return fleet.verdict


#: The function of each verb.
VERBS: dict[str, Callable[[argparse.Namespace], int]] = {"status": status, "verify": verify}


def _read(args: argparse.Namespace, everything: bool = False) -> Fleet:
    """Read all nodes' records from the API server. :param everything: also the pods that are in place.
    :raises ConfigError, ClusterError, UsageError: no answer."""
    server = ApiServer(args.kubeconfig and Path(args.kubeconfig), args.context, as_kubectl=True)
    server.check()
    return read_fleet(server.send, time.time, (lambda record: record) if everything else NodeRecord.attention,
                      args.node, args.selector, args.namespace)


def _refuse(args: argparse.Namespace, *flags: str) -> None:
    """Refuse flags and arguments of this node alone; some are of features that may be left out. :raises UsageError:"""
    for flag in flags:
        given = vars(args).get(flag)
        if given is not None and given is not False:
            name = "SANDBOX" if flag == "sandbox" else f"--{flag.replace('_', '-')}"
            raise UsageError(f"{name} is about this node: it does not go with --all-nodes",
                             "-n NAMESPACE and --node NAME choose; `kubectl get nodepinnings --watch` follows")


def _print_document(fleet: Fleet, output: str) -> int:
    if output == "yaml":
        import json
        print_data(json.loads("".join(document_parts(fleet))), "yaml")
    else:
        sys.stdout.writelines(document_parts(fleet))
    return 0


def _print_table(text: TextTable) -> None:
    if text.rows:
        table(text.columns, text.rows, {str(name): style for name, style in STYLES.items()})
    if text.left:
        print(f"… and {text.left} more: -n NAMESPACE and --node NAME choose, -o json has all")


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print_text(line)
