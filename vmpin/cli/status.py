"""`vmpin status`: the sandboxes, and the current masks of their threads; the status document as a person reads it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vmpin.cli.control_client import (
    Document,
    ask_raw,
    named_sandboxes,
    only,
    read_status,
    stale_checkpoint,
    status_document,
)
from vmpin.cli.output import VERDICTS, print_data, print_text, table
from vmpin.cli.this_program import about_this_node
from vmpin.cli.verbs import (
    Verbs,
    direct_flag,
    namespace_flag,
    output_flag,
    sandbox_argument,
    usable_config,
    verb,
    watch_flag,
)
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import age_at, number_of, pod_name, short_id
from vmpin.feature import features, inspect_vms, present

if TYPE_CHECKING:
    from datetime import datetime

_EXAMPLES = """\
examples:
  vmpin status                   a line for each VM, and what is not as it should be
  vmpin status -o wide           with ids, every container and every thread
  vmpin status shop              one sandbox, by its pod: also demo/shop, or -n demo shop
  vmpin status 5f2c -o yaml      by the first digits of its id; everything
  vmpin status shop --explain    why each of its threads has its CPUs; shop/web --explain: one container
  vmpin status --problems        only sandboxes with a problem, the worst first
  vmpin status 'demo/*'          all pods of these names; -n demo: of one namespace
  vmpin status -n demo -o name   their names, for another command; --no-headers: the table's rows alone
  vmpin status --watch           every two seconds; -w 10: every ten
  vmpin status --inspect -o json  also what root finds out about each VM's devices (docs/network.md)

IN PLACE counts the threads whose mask is the decided one. In -o wide, WANTED is the mask that the rules give a thread,
and ACTUAL is the mask that the kernel has now.

verdicts:
  pinned     each exclusive CPU has its vCPU
  floating   the sandbox has no exclusive CPUs
  waiting    the kubelet has not rewritten a cpuset cgroup yet, or vCPU threads cannot be identified yet
  degraded   the sandbox has less than the policy asks for; the reason is printed
  unmanaged  no CPUs of the sandbox are known: its threads keep their masks
  off        no VMM runs, the sandbox was unpinned, or the policy is off
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "status", "show the sandboxes and where their threads may run", run,
                  epilog=_EXAMPLES)
    sandbox_argument(parser, "only this one, or with * ? [ ] all of these names")
    parser.add_argument("--explain", action="store_true", help=about_this_node(
        "explain in sentences why each thread of SANDBOX, or of its CONTAINER (POD/CONTAINER), has its CPUs"))
    namespace_flag(parser, only=True)
    parser.add_argument("-A", "--all-namespaces", action="store_const", dest="namespace", const="",
                        help="the pods of every namespace (the default)")
    parser.add_argument("--problems", action="store_true", help=about_this_node(
        "only sandboxes with a problem, the worst first"))
    parser.add_argument("--no-headers", action="store_true", help=about_this_node(
        "the rows of the table alone, without titles, the node and reasons"))
    output_flag(parser, ("table", "wide", "name", "json", "yaml"))
    direct_flag(parser)
    parser.add_argument("--inspect", action="store_true", help=about_this_node(
        "also inspect the devices of each VM, as -o wide does (as root: docs/network.md)"))
    watch_flag(parser)


def run(args: argparse.Namespace) -> int:
    config = usable_config(args)
    if args.explain:
        from vmpin.cli.explain import explain
        return explain(config, args)
    selected = args.sandbox is not None or args.namespace or args.problems
    if args.output == "json" and not selected and not args.inspect and not sys.stdout.isatty():
        # The watcher's answer is the document: it is passed on without parsing thousands of threads.
        raw = None if args.direct else ask_raw(config, {"op": "status"}, has_direct=True)
        if raw is None:
            print_data(read_status(config), "json")
        else:
            sys.stdout.buffer.write(raw)
        return 0
    wide = args.output not in ("table", "name") or args.sandbox is not None
    document = status_document(config, wide=wide, direct=args.direct)
    names, titles = names_of(document), _titles(document["sandboxes"])
    nothing = _select(document, args) if selected else ""
    if args.inspect or args.output == "wide":
        inspect_vms(config, document["sandboxes"])
    if args.output in ("json", "yaml"):
        print_data(document, args.output)
    elif args.output == "name":
        for sandbox in document["sandboxes"]:
            print_text(_name(sandbox, titles))
    elif args.no_headers:
        _print_table(document["sandboxes"], titles, args.output == "wide", headers=False)
    elif nothing:
        print_text(nothing)
    elif args.sandbox is not None and len(document["sandboxes"]) == 1 and args.output != "wide":
        print_chosen(document, names)
    else:
        print_status(document, args.output == "wide", names, some=bool(args.sandbox or args.namespace))
    return 0


def _select(document: Document, args: argparse.Namespace) -> str:
    """Reduce the document to the sandboxes that the arguments choose.
    :returns: a sentence if there are none. :raises UsageError: for the name of no sandbox or several."""
    from vmpin.status.pod_arguments import matches_of
    from vmpin.status.selection import Selection, is_pattern
    text, pattern = args.sandbox, ""
    if text and is_pattern(text) and not matches_of(text, args.namespace, named_sandboxes(document)):
        pattern = text
    elif text is not None:
        document["sandboxes"] = [only(document, text, args.namespace)]
    selection = Selection(pattern, args.namespace, args.problems)
    document["sandboxes"] = selection.of(document)
    return "" if document["sandboxes"] else f"no VM sandbox {selection.describe()} is on this node"


def _name(sandbox: Document, titles: Mapping[str, str]) -> str:
    """A sandbox as the argument SANDBOX takes it: NAMESPACE/POD; its id where that is unknown, or means several."""
    title = pod_name(sandbox["pod"], sandbox["id"])
    return title if titles[sandbox["id"]] == title else str(sandbox["id"])


#: How many processes that pose as a sandbox's are listed: any user can start as many as he may have.
_MOST_IMPOSTORS = 5


def print_status(document: Document, wide: bool, names: Mapping[str, str], some: bool = False) -> None:
    """Print the node and its sandboxes.

    :param wide: with ids, every container and thread. :param names: of pods and containers, by id.
    :param some: the document has a part of the sandboxes; the conflicts of others are left out."""
    print_text(_node(document))
    now = _now(document)
    if wide:
        print_text(_sources(document["sources"], now))
    _print_node_trouble(document)
    for name, feature in document["features"].items():
        if feature.get("suspended"):
            print_text(f"SUSPENDED: {name}: {feature['suspended']}")
    titles = _titles(document["sandboxes"])
    if not document["sandboxes"]:
        print("no VM sandbox runs on this node")
    else:
        _print_table(document["sandboxes"], titles, wide)
    for sandbox in document["sandboxes"]:
        if wide:
            _print_everything(sandbox, now, names)
        else:
            for reason in sandbox["reasons"]:
                print_text(f"{titles[sandbox['id']]}: {with_names(reason, names)}")
    _print_impostors(document["node"]["impostors"])
    _print_unknown_owners(document["node"]["unknown_owners"])
    _print_conflicts(document, names, some)


def _print_table(sandboxes: Sequence[Document], titles: Mapping[str, str], wide: bool, headers: bool = True) -> None:
    if wide:
        table(["SANDBOX", "POD", "VMM", "PID", "MASK", "VERDICT", "VCPUS", "THREADS", "RUNTIME", "HANDLER",
               "FOUND BY"], [_wide_row(sandbox) for sandbox in sandboxes], VERDICTS, headers=headers)
    else:
        table(["POD", "VERDICT", "VM", "MASK", "VCPUS", "IN PLACE"],
              [[titles[sandbox["id"]], *_row(sandbox)] for sandbox in sandboxes], VERDICTS, headers=headers)


def _print_impostors(impostors: Sequence[Document]) -> None:
    for impostor in impostors[:_MOST_IMPOSTORS]:
        print_text(f"IGNORED: process {impostor['pid']} of user {impostor['uid']} poses as a process of sandbox "
                   f"{short_id(impostor['sandbox'])}")
    if len(impostors) > _MOST_IMPOSTORS:
        print_text(f"IGNORED: {len(impostors) - _MOST_IMPOSTORS} more of such processes")


def _print_unknown_owners(owners: Iterable[Document]) -> None:
    for owner in owners:
        print_text(f"UNKNOWN OWNER: {owner['what']}")


def print_chosen(document: Document, names: Mapping[str, str]) -> None:
    """Print the document's only sandbox: one line, its containers, what is not as it should be; and the node."""
    (sandbox,) = document["sandboxes"]
    _print_sandbox(sandbox, pod_name(sandbox["pod"], short_id(sandbox["id"])), _now(document), names)
    _print_node_trouble(document)
    uid = sandbox["pod"] and sandbox["pod"]["uid"]
    _print_unknown_owners(owner for owner in document["node"]["unknown_owners"] if owner["pod"] == uid)
    _print_conflicts(document, names, some=True)
    mask = f"its CPUs {sandbox['mask']}; " if sandbox["mask"] else ""
    print_text(mask + _node(document))


def _node(document: Document) -> str:
    node = document["node"]
    watcher = f"watcher pid {document['watcher']}" if document["watcher"] else "no watcher runs"
    pool = node["shared_pool"] or "none"
    shared = f"shared pool {pool}" if node["pool_known"] else f"no shared pool known (without an owner: {pool})"
    return (f"{watcher}; CPUs online {node['online'] or 'none'}, {shared}, exclusive {node['exclusive'] or 'none'}, "
            f"housekeeping {node['housekeeping'] or 'none'}")


def _print_node_trouble(document: Document) -> None:
    """Print what is not as it should be with the kubelet's checkpoint and with vmpin's own files."""
    if (stale := stale_checkpoint(document)) is not None:
        print_text(f"STALE: {stale}")
    file = document["state_file"]
    if file["save_trouble"]:
        print_text(f"NOT SAVED: {file['save_trouble']}; until it can, a restart forgets the cpusets that only hooks "
                   "reported, and the original masks")
    if file["load_trouble"]:
        print_text(f"LOST STATE: {file['load_trouble']}")
    if file["unknown_originals"]:
        print_text(f"LOST STATE: the original masks of {number_of(file['unknown_originals'], 'VM')} are not known: "
                   "`vmpin unpin` gives their threads all CPUs that their cgroup allows")


def _print_conflicts(document: Document, names: Mapping[str, str], some: bool) -> None:
    """Print what the node has more than one answer to. :param some: only about the document's sandboxes."""
    node, ids = document["node"], {sandbox["id"] for sandbox in document["sandboxes"]}

    def shown(key: str) -> Iterator[Document]:
        return (entry for entry in node.get(key, ())
                if not some or not ids.isdisjoint(entry.get("sandboxes") or [entry.get("sandbox")]))

    for rival in shown("rivals"):
        print_text(f"RIVALS {' and '.join(rival['authorities'])}: {with_names(rival['what'], names)}")
    for entry in shown("disagreements"):
        pod, container = pod_name(entry["pod"], short_id(entry["sandbox"])), short_id(entry["container"])
        print_text(f"DISAGREEMENT on the CPUs of {pod}/{entry['name'] or container}: {entry['what']}")
    for collision in shown("collisions"):
        print_text(f"COLLISION on CPU {collision['cpu']}: {with_names(collision['what'], names)}")


def _now(document: Document) -> datetime:
    from datetime import datetime
    return datetime.fromisoformat(document["time"])


def _sources(sources: Document, now: datetime) -> str:
    nri, kubelet = sources["nri"], sources["kubelet"]
    link = "not used" if nri is None else f"{nri['state']}, {number_of(nri['events'], 'event')}"
    given = "no checkpoint" if kubelet is None else "no usable checkpoint" if not kubelet["policy"] else (
        f"policy {kubelet['policy']}, exclusive CPUs {kubelet['exclusive'] or 'none'}")
    given += f" ({kubelet['trouble']})" if kubelet and kubelet["trouble"] else ""
    feed = "not used" if sources["new_threads"] is None else sources["new_threads"]["state"]
    return f"sources: NRI {link}; kubelet {given}; process events {feed}; hooks {_hooks(sources, now)}"


def _hooks(sources: Document, now: datetime) -> str:
    hooks = sources["hooks"]
    text = f"{hooks['applied']} applied" + (f", the last {age_at(hooks['last'], now)} ago" if hooks["last"] else "")
    text += f", {hooks['refused']} refused" if hooks["refused"] else ""
    disputed = number_of(hooks["disputed"], "annotation")
    return text + (f"; {disputed} disputed (docs/sources.md)" if hooks["disputed"] else "")


def _titles(sandboxes: list[Document]) -> dict[str, str]:
    """Each sandbox by its pod, by its id where its pod is not known, and by both where a pod has two of them."""
    names = {sandbox["id"]: pod_name(sandbox["pod"], short_id(sandbox["id"])) for sandbox in sandboxes}
    often = Counter(names.values())
    return {id: name if often[name] == 1 else f"{name} ({short_id(id)})" for id, name in names.items()}


def _row(sandbox: Document) -> list[object]:
    """The table's row, after the pod."""
    return [sandbox["verdict"], (sandbox["vmm"] or {"type": "-"})["type"], sandbox["mask"] or "-",
            _number_of_vcpus(sandbox), _in_place(sandbox)]


def _wide_row(sandbox: Document) -> list[object]:
    vmm = sandbox["vmm"] or {"type": "-", "pid": "-"}
    return [short_id(sandbox["id"]), pod_name(sandbox["pod"]), vmm["type"], vmm["pid"], sandbox["mask"] or "-",
            sandbox["verdict"], _number_of_vcpus(sandbox), f"{_in_place(sandbox)} ok", sandbox["runtime"],
            sandbox["handler"] or "-", sandbox["found_by"]]


def _number_of_vcpus(sandbox: Document) -> int:
    return sum(thread["role"] == "vcpu" for thread in sandbox["threads"])


def _in_place(sandbox: Document) -> str:
    return f"{sum(thread['ok'] for thread in sandbox['threads'])}/{len(sandbox['threads'])}"


def _print_sandbox(sandbox: Document, title: str, now: datetime, names: Mapping[str, str]) -> None:
    """One line, its containers, and then what is not as it should be."""
    vmm, threads = sandbox["vmm"], sandbox["threads"]
    vm = "no VMM runs" if vmm is None else f"{vmm['type']} process {vmm['pid']}"
    place = f", {_in_place(sandbox)} {'thread' if len(threads) == 1 else 'threads'} in place" if threads else ""
    print_text(f"{title} is {sandbox['verdict']}: {vm}{place}")
    if sandbox["containers"]:
        table(["CONTAINER", "CPUS", "KIND", "VCPUS", "GUEST", "SINCE"], [
            [container["name"] or short_id(container["id"]), container["cpuset"] or "-", _kind(container),
             _vcpus(container), _guest(container), age_at(container["since"], now)]
            for container in sandbox["containers"] if not container["pause"]])
    for reason in sandbox["reasons"]:
        print_text(with_names(reason, names))
    _print_drift(sandbox["drift"])
    _print_features(sandbox, wide=False)
    if wrong := [thread for thread in threads if not thread["ok"]]:
        _print_threads(wrong)


def _print_drift(drift: Document | None, indent: str = "") -> None:
    if drift:
        print_text(f"threads put back: {counts(drift['repairs'])}; the last time: {drift['why']}", indent)


def counts(repairs: Document) -> str:
    """`3 by tuned, 1 by other`"""
    return ", ".join(f"{count} by {cause}" for cause, count in repairs.items())


def _kind(container: Document) -> str:
    if container["pause"]:
        return "pause"
    if not container["exclusive"]:
        return "shared"
    kind = "in its pod" if container["shared_with"] else "exclusive"
    return kind if container["own_cpus"] == container["cpuset"] else f"{container['own_cpus']} {kind}"


def _vcpus(container: Document) -> str:
    return "-" if container["vcpus"] is None else container["vcpus"] or "none"


def _print_features(sandbox: Document, wide: bool) -> None:
    """Print what features add to a sandbox."""
    for tables in present(feature.tables for feature in features()):
        for titles, rows in tables(sandbox, wide):
            table(titles, rows)
    for lines in present(feature.lines for feature in features()):
        for text in lines(sandbox):
            print_text(text, "  ")


def _print_threads(threads: list[Document]) -> None:
    table(["THREAD", "ROLE", "NAME", "WANTED", "ACTUAL", "OK"], [
        [thread["tid"], thread["role"] if thread["vcpu"] is None else f"{thread['role']} {thread['vcpu']}",
         thread["name"], "unchanged" if thread["wanted"] is None else thread["wanted"], thread["actual"],
         "yes" if thread["ok"] else "no"] for thread in threads], VERDICTS)


def _print_everything(sandbox: Document, now: datetime, names: Mapping[str, str]) -> None:
    print()
    of = f" of {pod_name(sandbox['pod'])}" if sandbox["pod"] else ""
    print_text(f"sandbox {sandbox['id']}{of}")
    for reason in sandbox["reasons"]:
        print_text(with_names(reason, names), "  ")
    if sandbox["containers"]:
        table(["CONTAINER", "NAME", "CPUSET", "EXCLUSIVE", "BY", "VCPUS", "GUEST", "SOURCE", "SINCE", "OTHERS"], [
            [short_id(container["id"]), container["name"] or "-", container["cpuset"] or "-",
             _kind(container), container["exclusive_by"] or "-", _vcpus(container), _guest(container),
             container["source"], age_at(container["since"], now), _others(container)]
            for container in sandbox["containers"]])
    if sandbox["guest"]:
        guest, system = sandbox["guest"], sandbox["guest"]["system"]
        own = "" if system is None else f"; its own processes {system['text']}, on its CPUs {system['effective']}"
        state = ": " + guest["state"] if guest["state"] else ""
        print_text(f"guest: {guest['by'] or 'no agent'}{state}{own}", "  ")
    if sandbox["cgroup"]:
        print_text(f"cgroup of the VMM: {sandbox['cgroup']['path']}, CPUs {sandbox['cgroup']['cpus']}", "  ")
    if sandbox["new_threads"]:
        print_text(_new_threads(sandbox["new_threads"]), "  ")
    _print_drift(sandbox["drift"], "  ")
    _print_features(sandbox, wide=True)
    if sandbox["threads"]:
        _print_threads(sandbox["threads"])


def _new_threads(counts: Document) -> str:
    """How its new threads were placed, and how long their masks allowed other CPUs."""
    text = f"new threads: {counts['reported']}, {counts['inside']} within their CPUs"
    if counts["ended"]:
        text += f", {counts['ended']} had ended already"
    if counts["outside"]:
        text += (f"; {counts['outside']} were allowed outside, {counts['outside_ms']['max']} ms at most, "
                 f"{counts['outside_ms']['sum']} ms in all")
    if counts["placed"]:
        text += (f"; in place {counts['placed_ms']['mean']} ms after their creation, "
                 f"{counts['placed_ms']['max']} ms at most")
    return text


def _guest(container: Document) -> str:
    """The state of a container in its guest, with the first threads that are on other vCPUs."""
    guest = container["guest"] or {"text": "-", "outside": ()}
    outside = ", ".join(map(str, guest["outside"]))
    return f"{guest['text']} (outside: {outside})" if outside else str(guest["text"])


def _others(container: Document) -> str:
    """The cpusets of the sources without precedence, if they differ."""
    others = [f"{source} {report['cpus']}" for source, report in container["cpusets_by_source"].items()
              if source != container["source"] and report["cpus"] != container["cpuset"]]
    if container["kubelet"] not in (None, container["own_cpus"]):
        others.append(f"kubelet {container['kubelet']}")
    return ", ".join(others) or "-"
