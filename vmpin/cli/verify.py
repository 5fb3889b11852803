"""`vmpin verify`: checks that every thread is, and was, on its CPUs. For scripts and alerts."""

import argparse
import os
from collections.abc import Mapping, Sequence

from vmpin.cli.control_client import Document, only, status_document
from vmpin.cli.output import VERDICTS, VERSION, print_data, print_text, table
from vmpin.cli.run_times import duration, elsewhere, percent, print_proof, proof
from vmpin.cli.this_program import about_this_node
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
from vmpin.domain.terminal import number_of, pod_name, short_id
from vmpin.errors import UnseenError, UsageError
from vmpin.feature import features, present

_ABOUT = """\
Compare the mask of each thread in the kernel with its placement, now: through the watcher if one runs, else without
one. A thread with other CPUs, or with fewer, is drift; an exclusive CPU that threads of another container may use is a
collision (with SANDBOX: only collisions of this sandbox). Several VMMs that name one sandbox, of which nothing shows
which is its own, are a finding too, and a pod with exclusive CPUs of which no container is known (SANDBOX names it by
its uid).

With --since 24h also where the threads ran in that time, from the watcher's samples (proof.sample_seconds); at most
--tolerate percent of the run time may have been elsewhere. CERTAIN is run time without a change of CPU between two
samples; other run time is booked to the CPU of the later sample. It begins with the last books saved before it.
"""

_EXITS = """\
exit codes:
  0  every thread is on its CPUs, and no CPU collides; also if no VM sandbox runs, or all are left alone because
     they were unpinned or are off by policy, which the output reports
  1  drift, a collision, a container on other CPUs than vmpin has given it, several processes that may be one
     sandbox's VMM, a pod with exclusive CPUs of which no container is known, or more than --tolerate ran elsewhere
  2  the command line or a file cannot be used
  3  the check was impossible: sandboxes are known and no thread could be compared (no VMM that vmpin recognizes,
     unmanaged, or not placed yet), the watcher does not answer, or without one the required privileges are missing

examples:
  vmpin verify
  vmpin verify --since 24h --tolerate 0.1
  vmpin verify shop
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "verify", "check that every thread is on its CPUs (exit 1 on drift or collisions)", run,
                  about=_ABOUT, epilog=_EXITS)
    sandbox_argument(parser, "only this one")
    namespace_flag(parser)
    parser.add_argument("--since", metavar="DURATION", help=about_this_node(
        "also where they ran since then: 90s, 30m, 24h, 7d"))
    parser.add_argument("--tolerate", metavar="PERCENT", default="0", help=about_this_node(
        "share of the run time that may have been elsewhere (default: 0)"))
    direct_flag(parser)
    watch_flag(parser)
    output_flag(parser, ("text", "json"))


@answering(UnseenError)
def run(args: argparse.Namespace) -> int:
    config, tolerated = usable_config(args), percent(args.tolerate)
    since = None if args.since is None else duration(args.since)
    if args.direct and since is not None:
        raise UsageError("--direct does not go with --since", "only the watcher records where threads ran")
    found, names, lost = _status(config, args)
    threads = [(sandbox["id"], thread) for sandbox in found["sandboxes"] for thread in sandbox["threads"]]
    drift = [(sandbox, thread) for sandbox, thread in threads if not thread["ok"]]
    chosen = None if args.sandbox is None else lost["pod"] if lost is not None else found["sandboxes"][0]["id"]
    collisions = [collision for collision in found["node"]["collisions"]
                  if chosen is None or chosen in collision["sandboxes"]]
    unmanaged = [sandbox["id"] for sandbox in found["sandboxes"] if sandbox["verdict"] == "unmanaged"]
    past = None if since is None or lost is not None else proof(config, chosen, since)
    comparisons = [] if args.direct else [*present(verify(config, chosen) for verify in present(
        feature.verify for feature in features()))]
    contested = _contested(found["sandboxes"])
    unknown = found["node"]["unknown_owners"] if chosen is None else [] if lost is None else [lost]
    good = (not drift and not collisions and not contested and not unknown and all(each.good for each in comparisons)
            and (past is None or elsewhere(past) <= tolerated))
    if good and past is None and not any(thread["wanted"] is not None for _, thread in threads) and not all(
            map(_left_by_operator, found["sandboxes"])):
        raise UnseenError(*_nothing(found["sandboxes"]))
    if args.output == "json":
        print_data({"version": VERSION, "ok": good, "threads": len(threads), "sandboxes": len(found["sandboxes"]),
                    "drift": [{"sandbox": sandbox, **thread} for sandbox, thread in drift],
                    "collisions": collisions, "contested": contested, "unmanaged": unmanaged,
                    "unknown_owners": unknown,
                    **{name: member for each in comparisons for name, member in each.members.items()},
                    **({} if past is None else {"proof": past})}, "json")
        return 0 if good else 1
    titles = {each["id"]: pod_name(each.get("pod"), short_id(each["id"])) for each in found["sandboxes"]}
    if drift:
        table(["POD", "THREAD", "ROLE", "NAME", "WANTED", "ACTUAL", "CGROUP"],
              [[titles[sandbox], thread["tid"], thread["role"], thread["name"], thread["wanted"],
                thread["actual"] or "none", thread.get("cgroup") or ""] for sandbox, thread in drift], VERDICTS)
        held = sum(bool(thread.get("cgroup")) for _, thread in drift)
        if held < len(drift):
            print(f"{len(drift) - held} of {number_of(len(threads), 'thread')} misplaced")
        if held:
            print_text(f"{held} of {number_of(len(threads), 'thread')}: fewer CPUs than decided, or other ones, "
                       "because of the cpuset cgroup (CGROUP): vmpin explain POD")
    elif lost is None:
        said = _without_drift(found["sandboxes"], [thread for _, thread in threads])
        print_text(said.replace("nothing was", "no thread was") if comparisons else said)
    _print_findings(titles, unmanaged, [line for each in comparisons for line in each.lines], contested)
    for owner in unknown:
        print_text(f"UNKNOWN OWNER: {owner['what']}")
    for collision in collisions:
        print_text(f"COLLISION on CPU {collision['cpu']}: {with_names(collision['what'], names)}")
    if past is not None:
        print_proof(past)
    return 0 if good else 1


def _contested(sandboxes: Sequence[Document]) -> list[Document]:
    return [{"sandbox": sandbox["id"], "pids": sandbox["rivals"]} for sandbox in sandboxes if sandbox.get("rivals")]


def _print_findings(titles: Mapping[str, str], unmanaged: Sequence[str], of_features: Sequence[str],
                    contested: Sequence[Document]) -> None:
    for sandbox in unmanaged:
        print_text(f"{titles[sandbox]} is unmanaged: its threads keep their masks (vmpin explain {titles[sandbox]})")
    for line in of_features:
        print_text(line)
    for entry in contested:
        print_text(f"CONTESTED: processes {', '.join(map(str, entry['pids']))} all name {titles[entry['sandbox']]} as "
                   "their VM, and nothing shows which is its VMM")


def _status(config: Config, args: argparse.Namespace) -> tuple[Document, Mapping[str, str], Document | None]:
    """The status document with the chosen sandboxes; the names of all, which collisions may be with; and the chosen
    pod where it is none of them, but one with exclusive CPUs of which no container is known."""
    found = status_document(config, None, direct=args.direct)
    names, lost = names_of(found), None
    if args.sandbox is not None:
        # No source has its name: it is known by the uid that the kubelet's checkpoint has.
        lost = next((owner for owner in found["node"]["unknown_owners"] if owner["pod"] == args.sandbox), None)
        found["sandboxes"] = [] if lost is not None else [only(found, args.sandbox, args.namespace)]
    if found["watcher"] is None:
        refuse_blind(config)
    return found, names, lost


def _left_by_operator(sandbox: Document) -> bool:
    """Whether a sandbox's threads are left alone because the operator wants that: unpinned, or off by policy."""
    return bool(sandbox["threads"]) and sandbox["verdict"] == "off"


def _nothing(sandboxes: Sequence[Document]) -> tuple[str, str]:
    """Message and hint where sandboxes are known, and no thread of them can be compared."""
    reasons = dict.fromkeys(reason for sandbox in sandboxes if not _left_by_operator(sandbox)
                            for reason in sandbox["reasons"][:1])
    vms, why = number_of(len(sandboxes), "VM"), "; ".join(list(reasons)[:3])
    if any(sandbox["threads"] for sandbox in sandboxes):
        return (f"no thread of {vms} has a mask to be compared with: nothing was compared ({why})",
                "vmpin explain POD shows what is missing: a source of its containers, or a shared pool")
    return (f"none of {vms} has a running VMM that vmpin recognizes: nothing was compared ({why})",
            "while a pod starts or ends this passes; vmpin status names each sandbox's reason")


def _without_drift(sandboxes: Sequence[Document], threads: Sequence[Document]) -> str:
    """The result without drift: on a node without VMs, or with VMs that are left alone, no thread was compared."""
    left, vms = sum(thread["wanted"] is None for thread in threads), number_of(len(sandboxes), "VM")
    if not sandboxes:
        return "no VM sandbox runs on this node: nothing was compared"
    if not threads:
        return f"none of {vms} has a running VMM: nothing was compared"
    if left == len(threads):
        why = ("unpinned, or off by policy" if all(map(_left_by_operator, sandboxes)) else
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
