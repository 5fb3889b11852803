"""`vmpin status`: the sandboxes, and the current masks of their threads.

What stays out: making the status document (vmpin/status).
"""

from __future__ import annotations

import argparse
import sys
import time

from vmpin.cli.common import (
    VERDICTS,
    Document,
    Verbs,
    ask_raw,
    direct_flag,
    load_config,
    output_flag,
    print_data,
    read_status,
    stale_checkpoint,
    status_document,
    table,
    verb,
)
from vmpin.cli.proof import COLUMNS, counts, row
from vmpin.config.settings import Config
from vmpin.domain.terminal import printable, short_id

_EXAMPLES = """\
examples:
  vmpin status                   one line a sandbox
  vmpin status -o wide           with every thread
  vmpin status 5f2c… -o yaml     one sandbox, everything
  vmpin status --watch           repeatedly

WANTED is the mask that the rules give a thread, ACTUAL the mask read from the kernel just now. Verdicts: pinned (each
exclusive CPU has its vCPU), floating (no exclusive CPUs), waiting (a cpuset cgroup that the kubelet has not rewritten
yet keeps threads elsewhere, or vCPU threads cannot be identified yet), degraded (less than the policy asks for, with
the reason), unmanaged (neither its containers nor a shared pool are known: left as it is), off.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "status", "show the sandboxes and where their threads may run", epilog=_EXAMPLES)
    parser.add_argument("sandbox", nargs="?", metavar="SANDBOX", help="only this one")
    output_flag(parser, ("table", "wide", "json", "yaml"))
    direct_flag(parser)
    parser.add_argument("--watch", action="store_true", help="show it again every --interval seconds")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="for --watch (default: 2)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = load_config(args)
    while True:
        _once(config, args)
        if not args.watch:
            return 0
        sys.stdout.flush()
        time.sleep(max(args.interval, 0.1))


def _once(config: Config, args: argparse.Namespace) -> None:
    if args.output == "json" and args.sandbox is None and not sys.stdout.isatty():
        # The watcher's answer is the document: it is passed on without parsing thousands of threads.
        raw = None if args.direct else ask_raw(config, {"op": "status"}, has_direct=True)
        if raw is None:
            print_data(read_status(config), "json")
            return
        sys.stdout.buffer.write(raw)
        return
    found = status_document(config, args.sandbox, wide=args.output != "table" or args.sandbox is not None,
                            direct=args.direct)
    if args.watch and sys.stdout.isatty() and args.output in ("table", "wide"):
        print("\x1b[H\x1b[2J", end="")
    if args.output in ("json", "yaml"):
        print_data(found, args.output)
    else:
        _print(found, wide=args.output == "wide", one=args.sandbox is not None)


def _print(found: Document, wide: bool, one: bool) -> None:
    node = found["node"]
    facts = [("online", node["online"]), ("shared pool", node["shared_pool"]), ("exclusive", node["exclusive"]),
             ("housekeeping", node["housekeeping"])]
    watcher = f"watcher pid {found['watcher']}" if found["watcher"] else "no watcher runs"
    print(f"{watcher}; CPUs " + ", ".join(f"{name} {cpus or 'none'}" for name, cpus in facts))
    if wide:
        print(_sources(found["sources"]))
    if (stale := stale_checkpoint(found)) is not None:
        print(printable(f"STALE: {stale}"))
    if not found["sandboxes"]:
        print("no VM sandbox runs on this node")
    else:
        columns = ["SANDBOX", "POD", "VMM", "PID", "MASK", "VERDICT", "VCPUS", "THREADS"]
        rows = [_row(sandbox, wide) for sandbox in found["sandboxes"]]
        if wide:
            columns += ["RUNTIME", "HANDLER", "FOUND BY"]
            for row, sandbox in zip(rows, found["sandboxes"], strict=True):
                row += [sandbox["runtime"], sandbox["handler"] or "-", sandbox["found_by"]]
        table(columns, rows, VERDICTS)
    for sandbox in found["sandboxes"]:
        if wide or one:
            _print_sandbox(sandbox)
        else:
            for reason in sandbox["reasons"]:
                print(f"{printable(short_id(sandbox['id']))}: {printable(reason)}")
    for odd in node["disagreements"]:
        pod = f"{odd['pod']['namespace']}/{odd['pod']['name']}" if odd["pod"] else short_id(odd["sandbox"])
        print(f"DISAGREEMENT on the CPUs of {printable(pod)}/{printable(odd['name'] or short_id(odd['container']))}: "
              f"{printable(odd['what'])}")
    for collision in node["collisions"]:
        print(f"COLLISION on CPU {collision['cpu']}: {printable(collision['what'])}")


def _sources(sources: Document) -> str:
    nri, kubelet = sources["nri"], sources["kubelet"]
    link = "not used" if nri is None else f"{nri['state']}, {nri['events']} events"
    if kubelet is None:
        given = "no checkpoint"
    else:
        given = (f"policy {kubelet['policy']}, exclusive CPUs {kubelet['exclusive'] or 'none'}" if kubelet["policy"]
                 else "no usable checkpoint")
        given += f" ({kubelet['trouble']})" if kubelet["trouble"] else ""
    births = sources["births"]
    feed = "not used" if births is None else births["state"]
    return (f"sources: NRI {printable(link)}; kubelet {printable(given)}; births {printable(feed)}; "
            f"hooks {_hooks(sources)}")


def _hooks(sources: Document) -> str:
    found = sources.get("hooks")  # a watcher of an older version has none
    if not found:
        return "not counted"
    text = f"{found['taken']} received" + (f", the last at {found['last']}" if found["last"] else "")
    text += f", {found['refused']} refused" if found["refused"] else ""
    return text + (f"; {found['disputed']} annotations disputed (docs/sources.md)" if found["disputed"] else "")


def _row(sandbox: Document, wide: bool) -> list[object]:
    vmm = sandbox["vmm"] or {"type": "-", "pid": "-"}
    pod = f"{sandbox['pod']['namespace']}/{sandbox['pod']['name']}" if sandbox["pod"] else "-"
    vcpus = [thread for thread in sandbox["threads"] if thread["role"] == "vcpu"]
    ok = sum(thread["ok"] for thread in sandbox["threads"])
    return [sandbox["id"] if wide else short_id(sandbox["id"]), pod, vmm["type"], vmm["pid"], sandbox["mask"] or "-",
            sandbox["verdict"], len(vcpus), f"{ok}/{len(sandbox['threads'])} ok"]


def _print_sandbox(sandbox: Document) -> None:
    print(f"\nsandbox {printable(sandbox['id'])}")
    for reason in sandbox["reasons"]:
        print(f"  {printable(reason)}")
    if sandbox["containers"]:
        table(["CONTAINER", "NAME", "CPUSET", "EXCLUSIVE", "BY", "VCPUS", "GUEST", "SOURCE", "SINCE", "OTHERS"], [
            [container["id"], container["name"] or "-", container["cpuset"] or "-",
             "pause" if container["pause"] else "shared" if not container["exclusive"] else
             "in its pod" if container["shared_with"] else "exclusive",
             container["exclusive_by"] or "-",
             "-" if container["vcpus"] is None else container["vcpus"] or "none",
             _guest(container), container["source"],
             container["since"] or "-", _others(container)]
            for container in sandbox["containers"]])
    if sandbox["guest"]:
        guest, system = sandbox["guest"], sandbox["guest"]["system"]
        own = "" if system is None else f"; its own processes {system['text']}, on its CPUs {system['effective']}"
        state = ": " + guest["state"] if guest["state"] else ""
        print(f"  guest: {printable(guest['by'] or 'no agent')}{printable(state)}"
              f"{printable(own)}")
    if sandbox["cgroup"]:
        print(f"  cgroup of the VMM: {printable(sandbox['cgroup']['path'])}, CPUs {sandbox['cgroup']['cpus']}")
    if sandbox["birth"]:
        print(f"  {_birth(sandbox['birth'])}")
    if sandbox["drift"]:
        drift = sandbox["drift"]
        print(f"  threads put back: {printable(counts(drift['repairs']))}; the last time: {printable(drift['why'])}")
    if sandbox["proof"] and sandbox["proof"]["roles"]:
        table(COLUMNS, [[role, *row(account)] for role, account in sandbox["proof"]["roles"].items()])
    if sandbox["threads"]:
        table(["THREAD", "ROLE", "NAME", "WANTED", "ACTUAL", "OK"], [
            [thread["tid"], _role(thread), thread["name"],
             "unchanged" if thread["wanted"] is None else thread["wanted"], thread["actual"],
             "yes" if thread["ok"] else "no"]
            for thread in sandbox["threads"]], VERDICTS)


def _birth(birth: Document) -> str:
    """How its new threads were placed, and how long their masks allowed other CPUs."""
    found = f"births: {birth['told']} threads, {birth['inside']} within their CPUs"
    if birth["ended"]:
        found += f", {birth['ended']} had ended already"
    if birth["outside"]:
        found += (f"; {birth['outside']} were allowed outside, {birth['outside_ms']['max']} ms at most, "
                  f"{birth['outside_ms']['sum']} ms in all")
    if birth["placed"]:
        found += f"; in place {birth['placed_ms']['mean']} ms after birth, {birth['placed_ms']['max']} ms at most"
    return found


def _guest(container: Document) -> str:
    """The state of a container in its guest, with the first threads that are on other vCPUs."""
    guest = container["guest"]
    if guest is None:
        return "-"
    outside = ", ".join(map(str, guest["outside"]))
    return f"{guest['text']} (outside: {outside})" if outside else str(guest["text"])


def _others(container: Document) -> str:
    """The cpusets of the sources without precedence, if they differ."""
    others = [f"{source} {report['cpus']}" for source, report in container["words"].items()
              if source != container["source"] and report["cpus"] != container["cpuset"]]
    if container["kubelet"] not in (None, container["cpuset"]):
        others.append(f"kubelet {container['kubelet']}")
    return ", ".join(others) or "-"


def _role(thread: Document) -> str:
    return thread["role"] if thread["vcpu"] is None else f"{thread['role']} {thread['vcpu']}"
