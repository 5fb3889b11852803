"""The status document as a person reads it: the table of sandboxes, and each sandbox in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from vmpin.cli.control_client import Document, stale_checkpoint
from vmpin.cli.output import VERDICTS, print_text, table
from vmpin.cli.run_times import COLUMNS, counts, row
from vmpin.domain.pod_names import with_names
from vmpin.domain.terminal import age_at, number_of, pod_name, short_id
from vmpin.feature import features, present

#: How many processes that pose as a sandbox's are listed: any user can start as many as he may have.
_MOST_IMPOSTORS = 5


def print_status(found: Document, wide: bool, names: Mapping[str, str]) -> None:
    """The node and its sandboxes. :param wide: everything, with ids. :param names: of pods and containers, by id."""
    print_text(_node(found))
    now = _now(found)
    if wide:
        print_text(_sources(found["sources"], now))
    _print_stale(found)
    titles = _titles(found["sandboxes"])
    if not found["sandboxes"]:
        print("no VM sandbox runs on this node")
    elif wide:
        table(["SANDBOX", "POD", "VMM", "PID", "MASK", "VERDICT", "VCPUS", "THREADS", "RUNTIME", "HANDLER",
               "FOUND BY"], [_wide_row(sandbox) for sandbox in found["sandboxes"]], VERDICTS)
    else:
        table(["POD", "VERDICT", "VM", "MASK", "VCPUS", "IN PLACE"],
              [[titles[sandbox["id"]], *_row(sandbox)] for sandbox in found["sandboxes"]], VERDICTS)
    for sandbox in found["sandboxes"]:
        if wide:
            _print_everything(sandbox, now, names)
        else:
            for reason in sandbox["reasons"]:
                print_text(f"{titles[sandbox['id']]}: {with_names(reason, names)}")
    _print_impostors(found["node"].get("impostors") or ())
    for owner in found["node"]["unknown_owners"]:
        print_text(f"UNKNOWN OWNER: {owner['what']}")
    _print_conflicts(found["node"]["disagreements"], found["node"]["collisions"], names)


def _print_impostors(impostors: Collection[Document]) -> None:
    for impostor in list(impostors)[:_MOST_IMPOSTORS]:
        print_text(f"IGNORED: process {impostor['pid']} of user {impostor['uid']} poses as a process of sandbox "
                   f"{short_id(impostor['sandbox'])}")
    if len(impostors) > _MOST_IMPOSTORS:
        print_text(f"IGNORED: {len(impostors) - _MOST_IMPOSTORS} more of such processes")


def print_one(found: Document, names: Mapping[str, str]) -> None:
    """The only sandbox of the document: one line, its containers, what is not as it should be; and the node."""
    (sandbox,), node = found["sandboxes"], found["node"]
    _print_sandbox(sandbox, pod_name(sandbox["pod"], short_id(sandbox["id"])), _now(found), names)
    _print_stale(found)
    _print_conflicts([odd for odd in node["disagreements"] if odd["sandbox"] == sandbox["id"]],
                     [each for each in node["collisions"] if sandbox["id"] in each["sandboxes"]], names)
    mask = f"its CPUs {sandbox['mask']}; " if sandbox["mask"] else ""
    print_text(mask + _node(found))


def _node(found: Document) -> str:
    node = found["node"]
    watcher = f"watcher pid {found['watcher']}" if found["watcher"] else "no watcher runs"
    pool = node["shared_pool"] or "none"
    shared = f"shared pool {pool}" if node["pool_known"] else f"no shared pool known (without an owner: {pool})"
    return (f"{watcher}; CPUs online {node['online'] or 'none'}, {shared}, exclusive {node['exclusive'] or 'none'}, "
            f"housekeeping {node['housekeeping'] or 'none'}")


def _print_stale(found: Document) -> None:
    if (stale := stale_checkpoint(found)) is not None:
        print_text(f"STALE: {stale}")


def _print_conflicts(disagreements: Iterable[Document], collisions: Iterable[Document],
                     names: Mapping[str, str]) -> None:
    for odd in disagreements:
        pod, container = pod_name(odd["pod"], short_id(odd["sandbox"])), odd["name"] or short_id(odd["container"])
        print_text(f"DISAGREEMENT on the CPUs of {pod}/{container}: {odd['what']}")
    for collision in collisions:
        print_text(f"COLLISION on CPU {collision['cpu']}: {with_names(collision['what'], names)}")


def _now(found: Document) -> datetime:
    return datetime.fromisoformat(found["time"])


def _sources(sources: Document, now: datetime) -> str:
    nri, kubelet = sources["nri"], sources["kubelet"]
    link = "not used" if nri is None else f"{nri['state']}, {number_of(nri['events'], 'event')}"
    given = "no checkpoint" if kubelet is None else "no usable checkpoint" if not kubelet["policy"] else (
        f"policy {kubelet['policy']}, exclusive CPUs {kubelet['exclusive'] or 'none'}")
    given += f" ({kubelet['trouble']})" if kubelet and kubelet["trouble"] else ""
    feed = "not used" if sources["new_threads"] is None else sources["new_threads"]["state"]
    return f"sources: NRI {link}; kubelet {given}; process events {feed}; hooks {_hooks(sources, now)}"


def _hooks(sources: Document, now: datetime) -> str:
    found = sources.get("hooks")  # a watcher of an older version has none
    if not found:
        return "not counted"
    text = f"{found['taken']} received" + (f", the last {age_at(found['last'], now)} ago" if found["last"] else "")
    text += f", {found['refused']} refused" if found["refused"] else ""
    disputed = number_of(found["disputed"], "annotation")
    return text + (f"; {disputed} disputed (docs/sources.md)" if found["disputed"] else "")


def _titles(sandboxes: list[Document]) -> dict[str, str]:
    """Each sandbox by its pod, by its id where its pod is not known, and by both where a pod has two of them."""
    names = {sandbox["id"]: pod_name(sandbox["pod"], short_id(sandbox["id"])) for sandbox in sandboxes}
    often = Counter(names.values())
    return {id: name if often[name] == 1 else f"{name} ({short_id(id)})" for id, name in names.items()}


def _row(sandbox: Document) -> list[object]:
    """The table's row, after the pod."""
    vmm = sandbox["vmm"] or {"type": "-"}
    vcpus = sum(thread["role"] == "vcpu" for thread in sandbox["threads"])
    return [sandbox["verdict"], vmm["type"], sandbox["mask"] or "-", vcpus, _in_place(sandbox)]


def _wide_row(sandbox: Document) -> list[object]:
    vmm = sandbox["vmm"] or {"type": "-", "pid": "-"}
    vcpus = sum(thread["role"] == "vcpu" for thread in sandbox["threads"])
    return [short_id(sandbox["id"]), pod_name(sandbox["pod"]), vmm["type"], vmm["pid"], sandbox["mask"] or "-",
            sandbox["verdict"], vcpus, f"{_in_place(sandbox)} ok", sandbox["runtime"], sandbox["handler"] or "-",
            sandbox["found_by"]]


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
    if drift := sandbox["drift"]:
        print_text(f"threads put back: {counts(drift['repairs'])}; the last time: {drift['why']}")
    _print_features(sandbox)
    if wrong := [thread for thread in threads if not thread["ok"]]:
        _print_threads(wrong)


def _kind(container: Document) -> str:
    if container["pause"]:
        return "pause"
    if not container["exclusive"]:
        return "shared"
    kind = "in its pod" if container["shared_with"] else "exclusive"
    return kind if container["own_cpus"] == container["cpuset"] else f"{container['own_cpus']} {kind}"


def _vcpus(container: Document) -> str:
    return "-" if container["vcpus"] is None else container["vcpus"] or "none"


def _print_features(sandbox: Document) -> None:
    """Print what features add to a sandbox."""
    for tables in present(feature.tables for feature in features()):
        for titles, rows in tables(sandbox):
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
    if drift := sandbox["drift"]:
        print_text(f"threads put back: {counts(drift['repairs'])}; the last time: {drift['why']}", "  ")
    if sandbox["proof"] and sandbox["proof"]["roles"]:
        table(COLUMNS, [[role, *row(account)] for role, account in sandbox["proof"]["roles"].items()])
    _print_features(sandbox)
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
