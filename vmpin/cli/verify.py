"""`vmpin verify`: checks that every thread is, and was, on its CPUs. For scripts and alerts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vmpin.cli.control_client import Document, only, status_document
from vmpin.cli.output import VERDICTS, VERSION, print_data, print_text, table
from vmpin.cli.verbs import (
    Verbs,
    answering,
    direct_flag,
    namespace_flag,
    output_flag,
    sandbox_argument,
    usable_config,
    verb,
    watch_flag,
)
from vmpin.config.settings import Config
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import ENDED, RIGHTLY_ABSENT, number_of, pod_name, printable, short_id
from vmpin.errors import UnseenError
from vmpin.feature import Comparison, features, present
from vmpin.named_tuple import NamedTuple
from vmpin.status.selection import Selection

if TYPE_CHECKING:
    from vmpin.vmm.unknown_vms import UnknownVm

_ABOUT = """\
Compare each thread's mask in the kernel with its placement, through the watcher, or without one if none runs. With
SANDBOX only that sandbox and its collisions are checked, with -n those of one namespace.
"""

_EXITS = """\
findings:
  drift          a thread has other CPUs than decided, or fewer
  collision      threads of another container may use an exclusive CPU
  contested      several processes name one sandbox, and nothing shows which of them is its VMM
  unknown owner  a pod has exclusive CPUs, and none of its containers is known; SANDBOX takes the pod's uid

exit codes:
  0  no finding; also if no VM sandbox runs (the runtime may still list some that have ended), or if the operator
     has unpinned all of them or switched them off by policy, which the output reports, as it does processes with a
     VM that vmpin does not know
  1  a finding, or a container on other CPUs than vmpin has given it
  2  the command line or a file cannot be used
  3  the check was impossible: sandboxes are known and no thread could be compared (no VMM that vmpin recognizes,
     unmanaged, or not placed yet), the watcher does not answer, or without a watcher the required privileges are
     missing

examples:
  vmpin verify
  vmpin verify shop
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "verify", "check that every thread is on its CPUs (exit 1 if not)", run,
                  about=_ABOUT, epilog=_EXITS)
    sandbox_argument(parser, "only this one")
    namespace_flag(parser, only=True)
    direct_flag(parser)
    watch_flag(parser)
    output_flag(parser, ("text", "json"))


@answering(UnseenError)
def run(args: argparse.Namespace) -> int:
    checked = _check(usable_config(args), args)
    good = checked.is_good()
    if good and checked.compared_nothing:
        raise UnseenError(*_nothing(checked.sandboxes))
    if args.output == "json":
        print_data({"version": VERSION, "ok": good, **checked.data()}, "json")
    else:
        _print(checked)
    return 0 if good else 1


class Checked(NamedTuple):
    """The chosen sandboxes of the status document, and what else was checked about them or the node."""

    sandboxes: Sequence[Document]
    collisions: Sequence[Document]
    #: Pods with exclusive CPUs of which no container is known; `lost` is True if such a pod was chosen.
    unknown_owners: Sequence[Document]
    lost: bool
    comparisons: Sequence[Comparison]
    #: Where the whole node is checked: processes with a VM that vmpin does not know.
    unknown_vms: Sequence[UnknownVm]
    #: Of all pods and containers by id, as collisions may be with others.
    names: Mapping[str, str]
    #: "" for all namespaces.
    namespace: str = ""

    @property
    def threads(self) -> list[tuple[str, Document]]:
        """Each thread with the id of its sandbox."""
        return [(sandbox["id"], thread) for sandbox in self.sandboxes for thread in sandbox["threads"]]

    @property
    def drift(self) -> list[tuple[str, Document]]:
        return [(sandbox, thread) for sandbox, thread in self.threads if not thread["ok"]]

    @property
    def contested(self) -> list[Document]:
        """The sandboxes that several processes name, with the pids."""
        return [{"sandbox": sandbox["id"], "pids": sandbox["rivals"]}
                for sandbox in self.sandboxes if sandbox.get("rivals")]

    @property
    def unmanaged(self) -> list[str]:
        return [sandbox["id"] for sandbox in self.sandboxes if sandbox["verdict"] == "unmanaged"]

    @property
    def compared_nothing(self) -> bool:
        """Whether no thread was compared, and not because the operator wants that."""
        return (not any(comparison.alone for comparison in self.comparisons)
                and all(thread["wanted"] is None for _, thread in self.threads)
                and not all(map(_left_alone, self.sandboxes)))

    def is_good(self) -> bool:
        """Whether nothing was found."""
        return (not self.drift and not self.collisions and not self.contested and not self.unknown_owners
                and all(comparison.good for comparison in self.comparisons))

    def data(self) -> Document:
        return {"threads": len(self.threads), "sandboxes": len(self.sandboxes),
                "drift": [{"sandbox": sandbox, **thread} for sandbox, thread in self.drift],
                "collisions": self.collisions, "contested": self.contested, "unmanaged": self.unmanaged,
                "unknown_owners": self.unknown_owners, "unknown_vms": [vm._asdict() for vm in self.unknown_vms],
                **{name: member for comparison in self.comparisons for name, member in comparison.members.items()}}


def _check(config: Config, args: argparse.Namespace) -> Checked:
    """Read the status, and compare. :raises UnseenError: where this process cannot read it."""
    document = status_document(config, direct=args.direct)
    names, sandboxes, unknown = names_of(document), document["sandboxes"], document["node"]["unknown_owners"]
    collisions, pod, lost = document["node"]["collisions"], args.sandbox, False
    within = args.namespace if pod is None else ""
    if within:
        sandboxes, unknown = Selection(namespace=within).of(document), []  # a pod of which a uid is all: in any
        ids = {sandbox["id"] for sandbox in sandboxes}
        collisions = [collision for collision in collisions if not ids.isdisjoint(collision["sandboxes"])]
    if pod is not None:
        # No source has the name of a pod of which no container is known: the kubelet's checkpoint has its uid.
        unknown = [owner for owner in unknown if owner["pod"] == pod]
        lost = bool(unknown)
        sandboxes = [] if lost else [only(document, pod, args.namespace)]
        pod = pod if lost else sandboxes[0]["id"]
        collisions = [collision for collision in collisions if pod in collision["sandboxes"]]
    if document["watcher"] is None:
        refuse_blind(config)
    comparisons = [] if args.direct or lost else [*present(
        verify(config, args, pod, within) for verify in present(feature.verify for feature in features()))]
    return Checked(sandboxes, collisions, unknown, lost, comparisons,
                   [] if pod is not None or within else _unknown_vms(config, sandboxes), names, within)


def _unknown_vms(config: Config, sandboxes: Sequence[Document]) -> Sequence[UnknownVm]:
    """VMs that may be of sandboxes that vmpin should know; none where the operator has it know only some."""
    if config.watch.only != "*":
        return []
    from vmpin.host.procfs import Procfs
    from vmpin.vmm.unknown_vms import unknown_vms

    return unknown_vms(Procfs(config.paths.proc), {sandbox["vmm"]["pid"] for sandbox in sandboxes if sandbox["vmm"]},
                       config.paths.sys / "kernel/debug")


def _print(checked: Checked) -> None:
    titles = {sandbox["id"]: pod_name(sandbox.get("pod"), short_id(sandbox["id"])) for sandbox in checked.sandboxes}
    if checked.drift:
        _print_drift(checked, titles)
    elif not checked.lost:
        text = _without_drift(checked.sandboxes, [thread for _, thread in checked.threads], checked.namespace)
        print_text(text.replace("nothing was", "no thread was") if checked.comparisons else text)
    if vms := checked.unknown_vms:
        names = ", ".join(f"{vm.pid} ({printable(vm.name)})" for vm in vms)
        print_text(f"{number_of(len(vms), 'process runs')} a VM that vmpin does not know: {names}")
    for sandbox in checked.unmanaged:
        print_text(f"{titles[sandbox]} is unmanaged: its threads keep their masks (vmpin status "
                   f"{titles[sandbox]} --explain)")
    for comparison in checked.comparisons:
        for line in comparison.lines:
            print_text(line)
    for entry in checked.contested:
        print_text(f"CONTESTED: processes {', '.join(map(str, entry['pids']))} all name {titles[entry['sandbox']]} as "
                   "their VM, and nothing shows which is its VMM")
    for owner in checked.unknown_owners:
        print_text(f"UNKNOWN OWNER: {owner['what']}")
    for collision in checked.collisions:
        print_text(f"COLLISION on CPU {collision['cpu']}: {with_names(collision['what'], checked.names)}")
    for show in present(comparison.show for comparison in checked.comparisons):
        show()


def _print_drift(checked: Checked, titles: Mapping[str, str]) -> None:
    drift, of = checked.drift, number_of(len(checked.threads), "thread")
    table(["POD", "THREAD", "ROLE", "NAME", "WANTED", "ACTUAL", "CGROUP"],
          [[titles[sandbox], thread["tid"], thread["role"], thread["name"], thread["wanted"],
            thread["actual"] or "none", thread.get("cgroup") or ""] for sandbox, thread in drift], VERDICTS)
    held = sum(bool(thread.get("cgroup")) for _, thread in drift)
    if held < len(drift):
        print(f"{len(drift) - held} of {of} misplaced")
    if held:
        print_text(f"{held} of {of}: fewer CPUs than decided, or other ones, because of the cpuset cgroup (CGROUP): "
                   "vmpin status POD --explain")


def _left_alone(sandbox: Document) -> bool:
    """Whether nothing is to be compared: a sandbox is unpinned, off by policy, on another machine, or has ended."""
    return sandbox["verdict"] == "off" and (
        bool(sandbox["threads"]) or not RIGHTLY_ABSENT.isdisjoint(sandbox["reasons"]))


def _nothing(sandboxes: Sequence[Document]) -> tuple[str, str]:
    """Message and hint where sandboxes are known, and no thread of them can be compared."""
    reasons = dict.fromkeys(reason for sandbox in sandboxes if not _left_alone(sandbox)
                            for reason in sandbox["reasons"][:1])
    vms, why = number_of(len(sandboxes), "VM"), "; ".join(list(reasons)[:3])
    if any(sandbox["threads"] for sandbox in sandboxes):
        return (f"no thread of {vms} has a mask to be compared with: nothing was compared ({why})",
                "`vmpin status POD --explain` shows what is missing: a source of its containers, or a shared pool")
    return (f"none of {vms} has a running VMM that vmpin recognizes: nothing was compared ({why})",
            "while a pod starts or ends this passes; `vmpin status` names each sandbox's reason")


def _without_drift(sandboxes: Sequence[Document], threads: Sequence[Document], namespace: str) -> str:
    """The result without drift: on a node without VMs, or with VMs that are left alone, no thread was compared."""
    left, vms = sum(thread["wanted"] is None for thread in threads), number_of(len(sandboxes), "VM")
    if not sandboxes:
        where = f" of namespace {namespace!r}" * bool(namespace)
        return f"no VM sandbox{where} runs on this node: nothing was compared"
    if not threads:
        ended = sum(ENDED in sandbox["reasons"] for sandbox in sandboxes)
        why = f" ({number_of(ended, 'sandbox has ended')}, not removed by the runtime yet)" * bool(ended)
        return f"none of {vms} has a running VMM{why}: nothing was compared"
    if left == len(threads):
        why = ("unpinned, or off by policy" if all(map(_left_alone, sandboxes)) else
               "unpinned, unmanaged, not placed yet, or off by policy")
        return f"all {number_of(left, 'thread')} of {vms} are left alone ({why}): nothing was compared"
    return (f"all {number_of(len(threads), 'thread')} of {vms} are on their CPUs"
            + (f" ({left} of them are left alone)" if left else ""))


def refuse_blind(config: Config) -> None:
    """Refuse a check without a watcher if this process cannot read everything that belongs into the answer.

    :raises UnseenError: with what cannot be read.
    """
    from vmpin.host.procfs import Procfs
    hint = "run this as root, or start the watcher"
    try:
        if not Procfs(config.paths.proc).cmdline(1):
            raise UnseenError(f"other programs' processes cannot be seen in {config.paths.proc}", hint)
    except OSError as err:
        raise UnseenError(f"other programs' processes cannot be seen: {err}", hint) from err
    for path, use in ((config.paths.state_file, os.R_OK), (config.paths.kata_go, os.R_OK | os.X_OK),
                      (config.paths.kata_rs, os.R_OK | os.X_OK)):
        if os.path.lexists(path) and not os.access(path, use):
            raise UnseenError(f"no watcher answers, and {path} cannot be read: permission denied", hint)
