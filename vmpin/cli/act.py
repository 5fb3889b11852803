"""`vmpin reconcile` and `vmpin unpin`: act now, through the watcher or without one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vmpin.cli.common import (
    Document,
    Verbs,
    ask,
    load_config,
    output_flag,
    print_data,
    quiet_log,
    shown,
    status_document,
    verb,
)
from vmpin.config import Config
from vmpin.errors import UsageError

if TYPE_CHECKING:
    from vmpin.model import SandboxId
    from vmpin.reconciler import Reconciler

_RECONCILE = """\
One full pass: read everything again and put every thread in its place. Through the watcher when one runs, else
without one. Sandboxes that `vmpin unpin` let go are taken back (all of them, or the one named).
"""

_UNPIN = """\
Give threads the masks they had before vmpin first touched them, and leave their sandbox alone until
`vmpin reconcile`. Threads born since get what they would have inherited. Guests that answer take back what they were
told, too.
"""


def add_parser(verbs: Verbs) -> None:
    for name, summary, about, run in (
            ("reconcile", "put every thread in its place, now", _RECONCILE, reconcile),
            ("unpin", "give threads the masks from before vmpin", _UNPIN, unpin)):
        parser = verb(verbs, name, summary, about=about)
        parser.add_argument("sandbox", nargs="?", metavar="SANDBOX", help="only this one (default: all)")
        if name == "unpin":
            parser.add_argument("--all", action="store_true", help="leave the node for good: all masks, and nothing "
                                "is left in the run directory; takes a watcher that was ended")
        output_flag(parser, ("text", "json"))
        parser.set_defaults(run=run)


def reconcile(args: argparse.Namespace) -> int:
    config = load_config(args)
    args.sandbox = _whole(config, args.sandbox)
    found = ask(config, {"op": "reconcile", "sandbox": args.sandbox})
    if found is None:
        from vmpin import oneshot, snapshot
        from vmpin.model import SandboxId

        quiet_log(config)
        only = None if args.sandbox is None else [SandboxId(args.sandbox)]
        found = snapshot.outcome(oneshot.reconcile(config, only)[1])
    return _told(args, found, f"{found['vms']} VM sandboxes, nothing to change")


def unpin(args: argparse.Namespace) -> int:
    config = load_config(args)
    if args.all:
        return _leave(args, config)
    args.sandbox = _whole(config, args.sandbox)
    found = ask(config, {"op": "unpin", "sandbox": args.sandbox})
    if found is None:
        from vmpin import oneshot, snapshot
        from vmpin.model import SandboxId

        quiet_log(config)
        only = None if args.sandbox is None else [SandboxId(args.sandbox)]
        reconciler, report = oneshot.unpin(config, only)
        wanted = only or reconciler.touched()
        found = snapshot.unpinned(list(report.results), reconciler.pinner.before.keys() & wanted) | {
            "guests": _in_guests(reconciler, only or list(reconciler.state.sandboxes))}
    return _told(args, found, "nothing to give back")


def _leave(args: argparse.Namespace, config: Config) -> int:
    if args.sandbox is not None:
        raise UsageError("--all goes without a SANDBOX", "`vmpin unpin SANDBOX` is for one")
    from vmpin import oneshot, snapshot

    quiet_log(config)
    reconciler, results, guests = oneshot.leave(config, lambda known: _in_guests(known, known.touched()))
    found = snapshot.unpinned(results, reconciler.pinner.before) | {
        "guests": guests, "gone": not reconciler.pinner.before}
    return _told(args, found, "nothing to give back")


def _in_guests(reconciler: Reconciler, sandboxes: Sequence[SandboxId]) -> dict[SandboxId, str]:
    """Have their guests take back what a watcher told them. :returns: what became of it, in words."""
    if not any(sandbox in reconciler.observer.vms for sandbox in sandboxes):
        return {}
    import asyncio

    from vmpin.guests import Guests

    return asyncio.run(Guests().take_back(reconciler, sandboxes))


def _whole(config: Config, sandbox: str | None) -> str | None:
    """The whole id of a sandbox that may be given by its first digits."""
    if sandbox is None:
        return None
    found: str = status_document(config, sandbox)["sandboxes"][0]["id"]
    return found


def _told(args: argparse.Namespace, found: Document, nothing: str) -> int:
    """Print what was done; exit code 1 when not everything could be done, or a guest keeps what it was told."""
    operations = found["operations"]
    refused = [operation for operation in operations if operation["outcome"] == "refused"]
    guests = found.get("guests", {})
    # Where nobody is in the guest nothing was told either.
    told = [word for word in guests.values() if word.startswith(("no answer", "not all"))]
    kept = found.get("kept", ())
    code = 1 if refused or told or kept else 0
    if args.output == "json":
        print_data(found, "json")
        return code
    for operation in operations:
        outcome = operation["outcome"]
        more = {"done": "", "gone": ": the thread has ended", "refused": f": {operation['why']}",
                "trimmed": f": the cpuset cgroup leaves {operation['got']}"}[outcome]
        print(shown(operation["what"] + more))
    for sandbox in kept:
        print(shown(f"sandbox {sandbox}: not all of its threads have their masks from before; try again"))
    if not operations and not kept:
        print(nothing)
    for sandbox, word in guests.items():
        print(shown(f"sandbox {sandbox}: in its guest: {word}"))
    return code
