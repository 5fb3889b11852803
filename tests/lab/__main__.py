"""The lab's command line.

Exit codes: 0 the tests passed, 1 some failed, 2 the lab itself failed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from lab import cache, node, results
from lab.cache import say
from lab.containerd_layer import moving_layers
from lab.errors import LabError
from lab.guest_image import guest_layer
from lab.kernel import Built, kernel
from lab.rootfs import mirror_of, rootfs
from lab.variant import Cgroup, Kernel, Topology, Variant

NEEDS = ("unshare", "setpriv", "git")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    cache.find_system_tools()
    for each in _ENDS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(each, _end)
    try:
        _needs()
        code: int = parsed.run(parsed)
    except LabError as err:
        print(f"lab: {err}", file=sys.stderr)
        return 2
    return code


def _end(number: int, _: FrameType | None) -> None:
    """An end by a signal is an end like any other: everything that was started is ended too. Ctrl-C in pytest is two
    signals, and a second one must not cut that short."""
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lab", description="A node in a virtual machine, and vmpin's tests in it.")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    build = verbs.add_parser("build", help="build what is missing of root file system, kernels and guest image")
    build.add_argument("--kernel", type=Kernel, choices=list(Kernel), action="append", help="only this one")
    build.add_argument("--fresh", action="store_true", help="build it again, with today's packages")
    build.set_defaults(run=_build)

    run = verbs.add_parser("run", help="run tests in the node", epilog="what follows -- is for pytest in the node")
    _variant_flags(run)
    run.add_argument("--timeout", type=float, default=node.DEADLINE, metavar="S",
                     help="end the node after so many seconds (default: %(default).0f)")
    run.add_argument("--results", type=Path, metavar="DIR",
                     help="emptied if it is of a run before (default: build/lab/KERNEL-CGROUP-TOPOLOGY)")
    run.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", type=_assignment,
                     help="an environment variable for the tests")
    run.add_argument("pytest", nargs="*", help="arguments for pytest, e.g. tests/lab/node_tests/test_node.py")
    run.set_defaults(run=_run)

    shell = verbs.add_parser("shell", help="a shell in the node")
    _variant_flags(shell)
    shell.set_defaults(run=_shell)

    verbs.add_parser("clean", help="empty the cache").set_defaults(run=_clean)
    return parser


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _variant_flags(parser: argparse.ArgumentParser) -> None:
    default = Variant()
    parser.add_argument("--kernel", type=Kernel, choices=list(Kernel), default=default.kernel)
    parser.add_argument("--cgroup", type=Cgroup, choices=list(Cgroup), default=default.cgroup)
    parser.add_argument("--topology", type=Topology, choices=list(Topology), default=default.topology)


def _variant(args: argparse.Namespace) -> Variant:
    try:
        return Variant(args.kernel, args.cgroup, args.topology)
    except ValueError as err:
        raise LabError(str(err)) from err


def _needs() -> None:
    if os.geteuid() != 0:
        raise LabError("needs root: it mounts, and debootstrap makes other users' files")
    cache.need(*NEEDS)


@contextlib.contextmanager
def _machine(which: Kernel) -> Iterator[tuple[Path, Built]]:
    with rootfs() as root, kernel(which, root) as built, guest_layer(mirror_of(root)) as guest, \
            moving_layers(mirror_of(root)) as more:
        yield root, dataclasses.replace(built, layers=(*built.layers, guest, *more))


def _build(args: argparse.Namespace) -> int:
    with rootfs(args.fresh) as root:
        say(f"root file system: {root}")
        for which in args.kernel or list(Kernel):
            with kernel(which, root, args.fresh) as built:
                say(f"kernel {which}: {built.version}")
        with guest_layer(mirror_of(root), args.fresh) as guest:
            say(f"what guests boot: {guest}")
    return 0


def _run(args: argparse.Namespace) -> int:
    variant = _variant(args)
    where = args.results or node.REPOSITORY / "build/lab" / str(variant)
    with _machine(variant.kernel) as (root, built):
        say(f"{variant}: starting, Linux {built.version}")
        started = time.monotonic()
        status = node.run_tests(variant, root, built, where, args.pytest, args.timeout, dict(args.env))
    if status not in (0, 1):
        raise LabError(f"pytest ended with {status}, see {where}/console.log")
    found = results.cases(where / "junit.xml")
    counts = {outcome: sum(case.outcome == outcome for case in found) for outcome in ("passed", "failed", "skipped")}
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    say(f"{variant}: {said} in {time.monotonic() - started:.0f} s; {where}")
    return status


def _shell(args: argparse.Namespace) -> int:
    variant = _variant(args)
    with _machine(variant.kernel) as (root, built):
        node.shell(variant, root, built, node.REPOSITORY / "build/lab/shell")
    return 0


def _clean(_: argparse.Namespace) -> int:
    cache.clean()
    return 0


if __name__ == "__main__":
    sys.exit(main())
