"""`vmpin status`: the sandboxes, and the current masks of their threads.

What stays out: making the status document (vmpin/status).
"""

import argparse
import gc
import sys
import time

from vmpin.cli.cluster import flags as cluster
from vmpin.cli.cluster.plugin import about_this_node
from vmpin.cli.common import Verbs, direct_flag, load_config, output_flag, sandbox_argument, verb
from vmpin.cli.control_client import Document, ask_raw, read_status, stale_checkpoint, status_document
from vmpin.cli.output import VERDICTS, print_data, table
from vmpin.cli.proof import COLUMNS, counts, row
from vmpin.config.settings import Config
from vmpin.domain.terminal import pod_name, printable, short_id

_EXAMPLES = """\
examples:
  vmpin status                   one line a sandbox
  vmpin status -o wide           with every thread
  vmpin status shop              one sandbox, by its pod: also demo/shop, or -n demo shop
  vmpin status 5f2c -o yaml      by the first digits of its id; everything
  vmpin status --watch           repeatedly

WANTED is the mask that the rules give a thread, ACTUAL the mask read from the kernel just now. Verdicts: pinned (each
exclusive CPU has its vCPU), floating (no exclusive CPUs), waiting (a cpuset cgroup that the kubelet has not rewritten
yet keeps threads elsewhere, or vCPU threads cannot be identified yet), degraded (less than the policy asks for, with
the reason), unmanaged (neither its containers nor a shared pool are known: left as it is), off.
"""


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "status", "show the sandboxes and where their threads may run", run,
                  epilog=cluster.examples("status", _EXAMPLES))
    sandbox_argument(parser, "only this one")
    output_flag(parser, ("table", "wide", "json", "yaml"))
    direct_flag(parser)
    parser.add_argument("--watch", action="store_true", help=about_this_node(
        "show it again every --interval seconds"))
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS",
                        help=about_this_node("for --watch (default: 2)"))
    cluster.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    if cluster.asked(args):
        from vmpin.cli.cluster import all_nodes
        return all_nodes.status(args)
    config = load_config(args)
    if args.watch:
        gc.enable()
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
        else:
            sys.stdout.buffer.write(raw)
        return
    found = status_document(config, args.sandbox, wide=args.output != "table" or args.sandbox is not None,
                            direct=args.direct, namespace=args.namespace)
    if args.watch and sys.stdout.isatty() and args.output in ("table", "wide"):
        print("\x1b[H\x1b[2J", end="")
    if args.output in ("json", "yaml"):
        print_data(found, args.output)
    else:
        _print(found, wide=args.output == "wide", one=args.sandbox is not None)


def _print(found: Document, wide: bool, one: bool) -> None:
    node = found["node"]
    watcher = f"watcher pid {found['watcher']}" if found["watcher"] else "no watcher runs"
    print(f"{watcher}; CPUs " + ", ".join(f"{key.replace('_', ' ')} {node[key] or 'none'}" for key in (
        "online", "shared_pool", "exclusive", "housekeeping")))
    if wide:
        print(_sources(found["sources"]))
    if (stale := stale_checkpoint(found)) is not None:
        print(printable(f"STALE: {stale}"))
    if not found["sandboxes"]:
        print("no VM sandbox runs on this node")
    else:
        table(["SANDBOX", "POD", "VMM", "PID", "MASK", "VERDICT", "VCPUS", "THREADS",
               *(("RUNTIME", "HANDLER", "FOUND BY") if wide else ())],
              [_row(sandbox, wide) for sandbox in found["sandboxes"]], VERDICTS)
    for sandbox in found["sandboxes"]:
        if wide or one:
            _print_sandbox(sandbox)
        else:
            for reason in sandbox["reasons"]:
                print(f"{printable(short_id(sandbox['id']))}: {printable(reason)}")
    for odd in node["disagreements"]:
        pod, container = pod_name(odd["pod"], short_id(odd["sandbox"])), odd["name"] or short_id(odd["container"])
        print(printable(f"DISAGREEMENT on the CPUs of {pod}/{container}: {odd['what']}"))
    for collision in node["collisions"]:
        print(f"COLLISION on CPU {collision['cpu']}: {printable(collision['what'])}")


def _sources(sources: Document) -> str:
    nri, kubelet = sources["nri"], sources["kubelet"]
    link = "not used" if nri is None else f"{nri['state']}, {nri['events']} events"
    given = "no checkpoint" if kubelet is None else "no usable checkpoint" if not kubelet["policy"] else (
        f"policy {kubelet['policy']}, exclusive CPUs {kubelet['exclusive'] or 'none'}")
    given += f" ({kubelet['trouble']})" if kubelet and kubelet["trouble"] else ""
    feed = "not used" if sources["births"] is None else sources["births"]["state"]
    return printable(f"sources: NRI {link}; kubelet {given}; births {feed}; hooks {_hooks(sources)}")


def _hooks(sources: Document) -> str:
    found = sources.get("hooks")  # a watcher of an older version has none
    if not found:
        return "not counted"
    text = f"{found['taken']} received" + (f", the last at {found['last']}" if found["last"] else "")
    text += f", {found['refused']} refused" if found["refused"] else ""
    return text + (f"; {found['disputed']} annotations disputed (docs/sources.md)" if found["disputed"] else "")


def _row(sandbox: Document, wide: bool) -> list[object]:
    vmm = sandbox["vmm"] or {"type": "-", "pid": "-"}
    vcpus = sum(thread["role"] == "vcpu" for thread in sandbox["threads"])
    ok = sum(thread["ok"] for thread in sandbox["threads"])
    return [sandbox["id"] if wide else short_id(sandbox["id"]), pod_name(sandbox["pod"]), vmm["type"], vmm["pid"],
            sandbox["mask"] or "-", sandbox["verdict"], vcpus, f"{ok}/{len(sandbox['threads'])} ok",
            *((sandbox["runtime"], sandbox["handler"] or "-", sandbox["found_by"]) if wide else ())]


def _print_sandbox(sandbox: Document) -> None:
    print(f"\nsandbox {printable(sandbox['id'])}")
    for reason in sandbox["reasons"]:
        print(f"  {printable(reason)}")
    if sandbox["containers"]:
        table(["CONTAINER", "NAME", "CPUSET", "EXCLUSIVE", "BY", "VCPUS", "GUEST", "SOURCE", "SINCE", "OTHERS"], [
            [container["id"], container["name"] or "-", container["cpuset"] or "-",
             "pause" if container["pause"] else "shared" if not container["exclusive"] else
             "in its pod" if container["shared_with"] else "exclusive",
             container["exclusive_by"] or "-", "-" if container["vcpus"] is None else container["vcpus"] or "none",
             _guest(container), container["source"], container["since"] or "-", _others(container)]
            for container in sandbox["containers"]])
    if sandbox["guest"]:
        guest, system = sandbox["guest"], sandbox["guest"]["system"]
        own = "" if system is None else f"; its own processes {system['text']}, on its CPUs {system['effective']}"
        state = ": " + guest["state"] if guest["state"] else ""
        print(printable(f"  guest: {guest['by'] or 'no agent'}{state}{own}"))
    if sandbox["cgroup"]:
        print(f"  cgroup of the VMM: {printable(sandbox['cgroup']['path'])}, CPUs {sandbox['cgroup']['cpus']}")
    if sandbox["birth"]:
        print(f"  {_birth(sandbox['birth'])}")
    if drift := sandbox["drift"]:
        print(f"  threads put back: {printable(counts(drift['repairs']))}; the last time: {printable(drift['why'])}")
    if sandbox["proof"] and sandbox["proof"]["roles"]:
        table(COLUMNS, [[role, *row(account)] for role, account in sandbox["proof"]["roles"].items()])
    if sandbox.get("untrusted"):  # a watcher of an older version has none
        from vmpin.kube.untrusted_pod import untrusted_sentences
        for sentence in untrusted_sentences(sandbox["untrusted"]):
            print(f"  {printable(sentence)}")
    if sandbox["threads"]:
        table(["THREAD", "ROLE", "NAME", "WANTED", "ACTUAL", "OK"], [
            [thread["tid"], thread["role"] if thread["vcpu"] is None else f"{thread['role']} {thread['vcpu']}",
             thread["name"], "unchanged" if thread["wanted"] is None else thread["wanted"], thread["actual"],
             "yes" if thread["ok"] else "no"] for thread in sandbox["threads"]], VERDICTS)


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
    guest = container["guest"] or {"text": "-", "outside": ()}
    outside = ", ".join(map(str, guest["outside"]))
    return f"{guest['text']} (outside: {outside})" if outside else str(guest["text"])


def _others(container: Document) -> str:
    """The cpusets of the sources without precedence, if they differ."""
    others = [f"{source} {report['cpus']}" for source, report in container["words"].items()
              if source != container["source"] and report["cpus"] != container["cpuset"]]
    if container["kubelet"] not in (None, container["cpuset"]):
        others.append(f"kubelet {container['kubelet']}")
    return ", ".join(others) or "-"
