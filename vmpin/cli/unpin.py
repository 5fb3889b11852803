"""`vmpin unpin`: restores the original masks, through the watcher or without one."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from vmpin.cli.control_client import Document, ask, known_names, quiet_log
from vmpin.cli.output import print_data, print_lines, print_text
from vmpin.cli.repin import finish, named_sandbox
from vmpin.cli.verbs import Verbs, namespace_flag, output_flag, sandbox_argument, usable_config, verb
from vmpin.config.settings import Config
from vmpin.domain.pod_names import by_sandbox, threads_of
from vmpin.domain.terminal import number_of
from vmpin.errors import UsageError

if TYPE_CHECKING:
    from vmpin.domain.model import SandboxId
    from vmpin.reconcile.view import NodeView

_EXITS = """\
exit codes: 0 done, also for threads whose original masks are not known, 1 a part failed, or the watcher does not
answer, 2 the command cannot be used
"""

_ABOUT = """\
Restore the masks that threads had before vmpin's first change, and leave their sandbox alone until `vmpin repin`.
A thread created since then gets the mask that it would have inherited. Guests that answer drop their maps as well.
The output lists the changes; threads that already have their original mask are only counted.

If the record of the original masks is lost, threads get all CPUs that their cgroup allows, and the output counts their
original masks as not known. If the whole run directory is gone, nothing shows that vmpin was at work: no mask is
restored, and the next watcher takes the present masks for the original ones.

Give one sandbox, or --every for all current ones: the watcher restores their masks, keeps running and places new
sandboxes. Without a watcher this command restores them. --all is for leaving the node.
"""

_EXAMPLES = """\
examples:
  vmpin unpin shop --dry-run    what it would change for the VM of one pod
  vmpin unpin demo/shop         do it; `vmpin repin demo/shop` undoes it
  vmpin unpin --every           the same for each sandbox of the node
  vmpin unpin --all             after systemctl disable --now vmpin: vmpin leaves the node
"""


#: Not that no mask is set: the record ends with the run directory.
_NO_RECORD = "no mask set by vmpin is on record"
#: What became of a thread's mask, by the keys of the document's `counts`.
_RESULTS = {
    "restored": "restored", "already_original": "already with the original mask",
    "unknown": "with an original mask that is not known, now on all CPUs that the cgroup allows",
    "already_free": "with an original mask that is not known, already on all CPUs that the cgroup allows",
    "refused": "refused by the kernel", "gone": "ended meanwhile"}


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "unpin", "restore the original masks", run, about=_ABOUT, epilog=f"{_EXAMPLES}\n{_EXITS}")
    sandbox_argument(parser, "this one")
    namespace_flag(parser)
    parser.add_argument("--every", action="store_true", help="every current sandbox; the watcher keeps running "
                        "and leaves them alone")
    parser.add_argument("--all", action="store_true", help="leave the node for good: all masks, and remove the files "
                        "in the run directory; requires that the watcher was stopped")
    parser.add_argument("--dry-run", action="store_true", help="print what would change, and change nothing")
    output_flag(parser, ("text", "json"))


def run(args: argparse.Namespace) -> int:
    config = usable_config(args)
    _refuse_unclear(args)
    sandbox = named_sandbox(config, args)
    # Before the change: after it, vmpin may have left the node.
    names = {} if args.output == "json" else known_names(config)
    if args.all:
        outcome = leave(config, args.dry_run)
    else:
        outcome = ask(config, {"op": "unpinning" if args.dry_run else "unpin", "sandbox": sandbox}) or _unpin_alone(
            config, None if sandbox is None else [sandbox], args.dry_run)
    return print_plan(args, outcome, names) if args.dry_run else print_restored(args, outcome, names)


def _refuse_unclear(args: argparse.Namespace) -> None:
    """Refuse a command line that does not have exactly one of SANDBOX, --every and --all. :raises UsageError:"""
    if args.sandbox is not None and (args.all or args.every):
        raise UsageError(f"{'--all' if args.all else '--every'} goes without a SANDBOX",
                         "`vmpin unpin SANDBOX` is for one")
    if args.all and args.every:
        raise UsageError("--all and --every do not go together", "--every leaves the sandboxes alone until `vmpin "
                         "repin`, --all is for leaving the node")
    if args.sandbox is None and not args.all and not args.every:
        raise UsageError("unpin: no SANDBOX is given", "`vmpin status` lists them; --every is for each of them, --all "
                         "for leaving the node, --dry-run shows what would change")


def _unpin_alone(config: Config, only: Sequence[SandboxId] | None, dry_run: bool) -> Document:
    """Restore the masks of these sandboxes (None: all) without a watcher."""
    from vmpin.reconcile import one_pass
    from vmpin.status import collector
    quiet_log(config)
    if dry_run:
        view, operations = one_pass.plan_unpin(config, only)
        wanted = only or view.all_sandboxes()
        return collector.unpinning(view, wanted, operations, _with_guests(view, wanted))
    view, results, settled = one_pass.unpin(config, only)
    wanted = only or view.all_sandboxes()
    return collector.unpinned(results, view.originals.keys() & wanted, settled) | {
        "guests": _in_guests(view, only or list(view.sandboxes))}


def leave(config: Config, dry_run: bool) -> Document:
    """Restore all masks, and remove vmpin's files."""
    from vmpin.reconcile import one_pass, teardown
    from vmpin.status import collector
    if dry_run:
        return _unpin_alone(config, None, dry_run) | {
            "suspended": [], "of_features": teardown.of_features(config),
            "files": [str(path) for path in teardown.left(config)]}
    quiet_log(config)
    changed = teardown.of_features(config)
    view, results, guests, gone = one_pass.leave(config, lambda left: _in_guests(left, left.all_sandboxes()))
    kept = teardown.of_features(config) if changed else []
    return collector.unpinned(results, view.originals) | {
        "guests": guests, "gone": gone, "of_features": [text for text in changed if text not in kept]}


def _with_guests(view: NodeView, sandboxes: Sequence[SandboxId]) -> list[SandboxId]:
    """The sandboxes whose guests may have a map from a watcher."""
    return [sandbox for sandbox in sandboxes if sandbox in view.vms and view.config.guest.via_for(
        "" if (state := view.sandboxes.get(sandbox)) is None else state.handler) != "off"]


def _in_guests(view: NodeView, sandboxes: Sequence[SandboxId]) -> dict[SandboxId, str]:
    """Ask their guests to drop their maps. :returns: the result by sandbox, as text."""
    if view.vms.keys().isdisjoint(sandboxes):
        return {}
    import asyncio

    from vmpin.guests.manager import GuestManager
    return asyncio.run(GuestManager().unpin_once(view, sandboxes))


def print_plan(args: argparse.Namespace, outcome: Document, names: Mapping[str, str]) -> int:
    """Print the changes that would be made."""
    if args.output == "json":
        print_data(outcome, "json")
        return 0
    operations = outcome["operations"]
    lines = [(operation["sandbox"], operation["what"]) for operation in operations]
    lines += [(sandbox, "ask its guest to drop its map") for sandbox in outcome["guests"]]
    lines += [(sandbox, "leave it alone until `vmpin repin`") for sandbox in outcome["suspended"]]
    print_lines(by_sandbox(lines, names))
    for text in outcome.get("of_features", ()):
        print_text(text)
    for path in outcome.get("files", ()):
        print_text(f"remove {path}")
    print(f"to restore: {threads_of(operations)}" + f"; sandboxes to leave alone: {len(outcome['suspended'])}" * bool(
        outcome["suspended"]))
    print("nothing was changed: this was a dry run")
    return 0


def print_restored(args: argparse.Namespace, outcome: Document,
                   names: Mapping[str, str] = MappingProxyType({})) -> int:
    """Print the changes of `unpin`, without threads that already had their mask."""
    if args.output == "json":
        return finish(args, outcome, "")
    changed = [operation for operation in outcome["operations"] if operation["outcome"] == "refused"
               or (operation["outcome"] != "gone" and operation["got"] != operation["was"])]
    counts = _counted(outcome)
    of_features = outcome.get("of_features", ())
    code = finish(args, {**outcome, "operations": changed},
                  f"{'no mask of a thread' if of_features else 'nothing'} to restore: {counts or _NO_RECORD}", names)
    for text in of_features:
        print_text(text)
    if changed:
        sandboxes = len({operation["sandbox"] for operation in outcome["operations"]})
        print(f"{number_of(sandboxes, 'sandbox')}: {counts}")
    return code


def _counted(outcome: Document) -> str:
    """The numbers of threads by what became of their masks, as text; "" without any."""
    left = Counter(f"already on CPUs {operation['got']}: the cpuset cgroup, or what is online, leaves no others of "
                   f"the original mask {operation['cpus']}" for operation in outcome["operations"]
                   if operation["outcome"] == "trimmed" and operation["got"] == operation["was"]
                   and operation["original"] == "known")
    counts = outcome["counts"]
    texts = [(_RESULTS[key], counts[key]) for key in ("restored", "already_original")]
    texts += sorted(left.items())
    texts += [(_RESULTS[key], counts[key]) for key in ("unknown", "already_free", "refused", "gone")]
    return "; ".join(f"{number_of(count, 'thread')} {text}" for text, count in texts if count)
