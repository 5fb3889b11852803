"""The option --others of `vmpin verify`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from vmpin.cli.this_program import about_this_node
from vmpin.cli.verbs import seconds_from
from vmpin.errors import UsageError

_ABOUT = """
With --others check instead that the owners of exclusive CPUs are alone there. Every thread of the machine is sampled,
not only those of VM sandboxes: its mask (may run), and for --seconds its run time and CPU (did run).
"""

_EPILOG = """
exit code 1 with --others: another pod may run on exclusive CPUs of a pod or did (with --strict: any process)

classes of --others:
  vm         a thread of another VM sandbox: `vmpin verify` and `vmpin status POD --explain` have the reason
  container  a process of another container: its cpuset reaches into exclusive CPUs
  host       a daemon: CPUAffinity= of systemd keeps it off, for all of them in system.conf
  kernel     a kernel thread that is not bound to one CPU: isolcpus= or taskset keeps it off, and a kworker/u* the
             file /sys/devices/virtual/workqueue/cpumask. A thread that is bound to its CPU is no finding
  pause      a pod's pause process, which sleeps, whatever its mask: left out except with --strict. If it ran there,
             its class is container

The kubelet keeps pods apart, but does not keep daemons and kernel threads off a pod's CPUs: these are listed, and
cause exit code 1 only with --strict.
This command is a host process as well, and may run where its shell may: `taskset -c 0 vmpin verify --others`.

columns of run time on each owner's CPUs:
  BUSY       the kernel's own count
  BY OWNER   threads of the owner
  BY KERNEL  kernel threads bound to that CPU
  BY OTHERS  the findings
  UNSEEN     the rest: interrupts, and threads that started and ended between two samples
"""

_EXAMPLES = """\
  vmpin verify --others                             five seconds
  vmpin verify --others --seconds 60 -o json        a minute, every finding with its threads
  vmpin verify --others --seconds 0                 masks only, at once
  vmpin verify --others --ignore host kernel        other pods only
  vmpin verify --others --strict                    exit code 1 also for daemons and kernel threads
"""

#: As `others` has them, which is imported where they are used.
CLASSES = ("vm", "container", "host", "kernel", "pause")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of --others to the parser of `vmpin verify`, which they carry out instead."""
    parser.description = f"{parser.description}{_ABOUT}"
    before, examples, after = str(parser.epilog).partition("\nexamples:\n")
    own, _, rest = after.partition("\n\n")  # the rest is another feature's
    parser.epilog = f"{before}{_EPILOG}{examples}{own.rstrip()}\n{_EXAMPLES}" + f"\n{rest}" * bool(rest)
    parser.add_argument("--others", action="store_true", help=about_this_node(
        "check that owners of exclusive CPUs are alone there"))
    parser.add_argument("--seconds", type=seconds_from(0), metavar="N", help=about_this_node(
        "with --others, for how long to sample run times; 0: masks only (default: 5)"))
    parser.add_argument("--ignore", nargs="+", action="extend", default=[], choices=CLASSES, metavar="CLASS",
                        help=about_this_node(f"with --others, leave out findings of a class: {', '.join(CLASSES)}"))
    parser.add_argument("--strict", action="store_true", help=about_this_node(
        "with --others, exit 1 for every finding, also daemons, kernel threads and pause processes"))
    parser.set_defaults(run_instead=(*parser.get_default("run_instead"), _run_instead))


def _run_instead(args: argparse.Namespace) -> Callable[[argparse.Namespace], int] | None:
    """The function of --others; None without it. :raises UsageError: for what it does not go with, or what goes with
    it alone."""
    if args.others:
        given = {"a SANDBOX": args.sandbox is not None, "-n": args.namespace,
                 "--since": vars(args).get("since") is not None,
                 "--tolerate": vars(args).get("tolerate") is not None}
        if name := next((name for name, there in given.items() if there), ""):
            raise UsageError(f"--others is about all exclusive CPUs of this node: it goes without {name}",
                             "`vmpin isolation POD` has how much of its CPUs' time others took from a pod")
        from vmpin.features.isolation.verbs.verify_others import run

        return run
    if args.seconds is not None or args.ignore or args.strict:
        raise UsageError("--seconds, --ignore and --strict go with --others", "`vmpin verify --others`")
    return None
