"""The map of a node: its CPUs by NUMA node, cache and core, with their owners and the threads of VMs on them.

Pure: from the status document and the topology.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import pod_name, printable, short_id
from vmpin.domain.topology import Topology
from vmpin.feature import features, present
from vmpin.features.common.held_cpus import HeldCpus

#: Kinds of CPUs without an owner.
SHARED, FREE, OFFLINE = "shared", "free", "offline"


@dataclass(frozen=True)
class MapOwner:
    """A container that owns CPUs, or that a feature gave CPUs. `pod` is the number of its pod, in the order of
    letters; a group of containers counts as a pod."""

    pod: int
    title: str
    #: "vm", "runc", "unseen" (only the kubelet reported it), or the kind that the feature has.
    kind: str
    cpus: CpuSet
    #: The number of this owner within its pod, from 1; 0 for the only one.
    part: int = 0

    @property
    def letter(self) -> str:
        """The letter of its pod, with a number where the pod has several owners: "A", "A2"."""
        return letter(self.pod) + (str(self.part) if self.part else "")

    @property
    def legend(self) -> str:
        kind = {"vm": "VM", "unseen": "reported by the kubelet only"}.get(self.kind, self.kind)
        return f"{self.title}: CPUs {self.cpus} ({kind})"


@dataclass(frozen=True)
class MapGuest:
    """A VM sandbox. `pod` as an owner's; its letter is lower-case, unlike those of owners."""

    pod: int
    title: str
    verdict: str
    mask: str
    #: Threads that may run on more CPUs than one: "vCPUs 0-1, 5 emulator on 0-1,7".
    floats: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def letter(self) -> str:
        return letter(self.pod).lower()

    @property
    def legend(self) -> str:
        """Its line of the legend. A VM without a mask is not placed, but its threads are on CPUs."""
        parts = [f"{self.title}: {self.verdict}" + f", on {self.mask}" * bool(self.mask), *self.floats]
        return "; ".join([*parts, *self.notes])


@dataclass(frozen=True)
class Cpu:
    """One CPU. `kind` is SHARED, FREE, OFFLINE or, with `owners`, "exclusive". Where a feature gives out the CPUs, one
    with owners may be SHARED as well, and have several of them; else the last one alone is shown."""

    number: int
    kind: str
    owners: tuple[MapOwner, ...]
    #: The threads pinned to this CPU, as "a:v2" (vCPU 2 of the guest a), "a:v0-3" or "a:+3" (three others).
    pinned: tuple[str, ...]
    #: The number of threads of VMs that may run here and on other CPUs.
    floating: int
    collisions: tuple[str, ...]
    housekeeping: bool
    isolated: bool
    reserved: bool

    @property
    def letters(self) -> str:
        """The letters of its owners; with a dot where the shared pool has it as well. "" without an owner."""
        shared = "·" if self.owners and self.kind == SHARED else ""
        return ",".join(owner.letter for owner in self.owners) + shared

    @property
    def flags(self) -> str:
        return "h" * self.housekeeping + "i" * self.isolated + "r" * self.reserved


#: A NUMA node's name, in it caches, in them cores, in them CPUs, each by its first CPU.
_NumaNode = tuple[str, tuple[tuple[tuple[Cpu, ...], ...], ...]]


@dataclass(frozen=True)
class Picture:
    nodes: tuple[_NumaNode, ...]
    owners: tuple[MapOwner, ...]
    guests: tuple[MapGuest, ...]
    facts: Mapping[str, str]
    #: Where a feature gives out the CPUs: what is free, and in how many pieces.
    notes: tuple[str, ...] = ()

    def cpus(self) -> Iterable[Cpu]:
        return (cpu for _, caches in self.nodes for cores in caches for core in cores for cpu in core)

    def alarms(self) -> Iterable[str]:
        """The collisions for the legend; equal ones on several CPUs (a floating thread) are one."""
        cpus_by_text: dict[str, list[int]] = {}
        for cpu in self.cpus():
            for text in cpu.collisions:
                cpus_by_text.setdefault(text, []).append(cpu.number)
        return (f"CPU{'s' * (len(cpus) > 1)} {CpuSet(cpus)}: {text}" for text, cpus in cpus_by_text.items())


def letter(number: int) -> str:
    """0 → A, 25 → Z, 26 → AA: stands for one pod in every form of the map."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def picture(document: Mapping[str, Any], topology: Topology, held: HeldCpus | None = None,
            node_name: str = "") -> Picture:
    """Arrange the sandboxes of a status document on the CPUs of a node, by their masks in the kernel.

    :param held: where a feature gives out the CPUs; containers that it has are shown as it has them.
    :param node_name: "" where it has none."""
    node, sandboxes = document["node"], document["sandboxes"]
    claims = _claims(node["owners"], sandboxes) if held is None else [
        *((holder.sandbox or holder.title, holder.title, holder.what, holder.cpus) for holder in held.holders),
        *_claims([owner for owner in node["owners"] if owner["container"] not in held.containers], sandboxes)]
    vms = sorted((sandbox for sandbox in sandboxes if sandbox["vmm"] is not None),
                 key=lambda sandbox: str(sandbox["id"]))
    keys = [*(pod for pod, _, _, _ in claims), *(sandbox["id"] for sandbox in vms)]
    pods = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    owners = _owners(claims, pods)
    guests, pinned, floating = _guests(vms, pods)
    collisions = _collisions(document)
    online, housekeeping = CpuSet.parse(node["online"]), CpuSet.parse(node["housekeeping"])
    pool, reserved = (CpuSet.parse(node["shared_pool"]), EMPTY) if held is None else (held.shared, held.reserved)

    owners_by_cpu: dict[int, list[MapOwner]] = {}
    for owner in owners:
        for number in owner.cpus:
            owners_by_cpu.setdefault(number, []).append(owner)

    def cpu(number: int) -> Cpu:
        of_cpu = owners_by_cpu.get(number, [])
        # Where no feature gives them out, an owner's CPU is never the pool's, and a collision has its own sign.
        shared = number in pool and (held is not None or not of_cpu)
        kind = OFFLINE if number not in online else SHARED if shared else "exclusive" if of_cpu else FREE
        return Cpu(number, kind, tuple(of_cpu[-1:] if held is None else of_cpu), tuple(pinned.get(number, ())),
                   floating[number], tuple(collisions.get(number, ())), number in housekeeping,
                   number in topology.isolated, number in reserved)

    # The document may be older than the topology, and have other CPUs.
    known = union((topology.all_cpus, online, *(owner.cpus for owner in owners)))
    nowhere = known - union(topology.nodes.values())  # the kernel forgets the node of a CPU that is offline
    cpus_by_node = {f"NUMA node {number}": cpus for number, cpus in topology.nodes.items()}
    if nowhere:
        cpus_by_node["in no NUMA node"] = nowhere
    nodes = tuple((name, tuple(tuple(tuple(map(cpu, core)) for core in _grouped(cache, topology.core_of))
                               for cache in _grouped(cpus, topology.cache_of)))
                  for name, cpus in cpus_by_node.items())
    facts = {key: printable(text) for key, text in (("node", node_name), ("time", document.get("time", ""))) if text}
    facts |= {key.replace("_", " "): node[key] or "none" for key in (
        "online", "shared_pool", "exclusive", "housekeeping")}
    if held is not None:
        exclusive = union(owner.cpus for owner in owners) - held.shared - held.reserved
        facts |= {"shared pool": str(held.shared) or "none", "exclusive": str(exclusive) or "none",
                  "reserved": str(held.reserved) or "none"}
    return Picture(nodes, owners, guests, facts, () if held is None else held.notes)


def _collisions(document: Mapping[str, Any]) -> dict[int, list[str]]:
    """The texts of collisions by CPU, with names in place of ids where they are known."""
    names, texts = names_of(document), dict[int, list[str]]()
    for collision in document["node"]["collisions"]:
        texts.setdefault(collision["cpu"], []).append(printable(with_names(collision["what"], names)))
    return texts


#: (pod, title, kind, CPUs) of a container or several that have CPUs.
_Claim = tuple[str, str, str, CpuSet]


def _owners(claims: Sequence[_Claim], pods: Mapping[str, int]) -> tuple[MapOwner, ...]:
    several = Counter(pod for pod, _, _, _ in claims)
    parts: Counter[str] = Counter()
    owners = []
    for pod, title, kind, cpus in claims:
        parts[pod] += 1
        owners.append(MapOwner(pods[pod], title, kind, cpus, parts[pod] if several[pod] > 1 else 0))
    return tuple(owners)


def _grouped(cpus: CpuSet, group_of: Any) -> list[CpuSet]:
    """Split CPUs into groups, by first CPU; only the given CPUs of a group count."""
    groups: list[CpuSet] = []
    while cpus:
        groups.append((group_of(cpus.first) & cpus) or CpuSet((cpus.first,)))
        cpus -= groups[-1]
    return groups


def _title(pod: Mapping[str, Any] | None, sandbox: str) -> str:
    return printable(pod_name(pod, short_id(sandbox)))


def _claims(owners: Sequence[Mapping[str, Any]], sandboxes: Sequence[Mapping[str, Any]]) -> list[_Claim]:
    """The owners of a status document by their first CPU. Containers of a pod with the same CPUs own them together."""
    names = {(sandbox["id"], container["id"]): container["name"]
             for sandbox in sandboxes for container in sandbox["containers"]}
    names |= {(owner["sandbox"], owner["container"]): owner["name"] for owner in owners if owner.get("name")}
    exclusive = [(CpuSet.parse(owner["cpus"]), owner) for owner in owners if owner["cpus"]]
    exclusive.sort(key=lambda item: (item[0].first, item[1]["sandbox"], item[1]["container"]))
    together: dict[tuple[str, CpuSet], list[Mapping[str, Any]]] = {}
    for cpus, owner in exclusive:
        together.setdefault((owner["sandbox"], cpus), []).append(owner)
    claims = []
    for (sandbox, cpus), containers in together.items():
        first = containers[0]
        called = "+".join(printable(names.get((sandbox, owner["container"])) or owner["container"][:12])
                          for owner in containers).strip()
        claims.append((sandbox, f"{_title(first.get('pod'), sandbox)} {called}", first.get("kind", "unseen"), cpus))
    return claims


def _notes(sandbox: Mapping[str, Any]) -> tuple[str, ...]:
    """A few words of each feature about a sandbox, where it has any."""
    legends = present(feature.legend for feature in features())
    return tuple(printable(text) for legend in legends if (text := legend(sandbox)))


def _guests(vms: Sequence[Mapping[str, Any]], pods: Mapping[str, int],
            ) -> tuple[tuple[MapGuest, ...], dict[int, list[str]], Counter[int]]:
    """(the guests by letter, the pinned threads by CPU, the number of floating threads by CPU)."""
    guests: list[MapGuest] = []
    pinned: dict[int, list[str]] = {}
    floating: Counter[int] = Counter()
    for sandbox in sorted(vms, key=lambda vm: pods[vm["id"]]):
        guest = letter(pods[sandbox["id"]]).lower()
        threads = sorted(((CpuSet.parse(thread["actual"]), thread) for thread in sandbox["threads"]
                          if thread["actual"] not in ("", "None")), key=lambda item: list(item[0]))
        floats = []
        for mask, group in groupby(threads, key=lambda item: item[0]):
            alike = [thread for _, thread in group]
            vcpus = CpuSet(thread["vcpu"] for thread in alike if thread["vcpu"] is not None)
            others = [printable(thread["role"]) for thread in alike if thread["vcpu"] is None]
            if len(mask) == 1:
                marks = [f"v{vcpus}"] * bool(vcpus) + [f"+{len(others)}"] * bool(others)
                pinned.setdefault(mask.first, []).extend(f"{guest}:{mark}" for mark in marks)
            else:
                roles = [f"vCPU{'s' * (len(vcpus) > 1)} {vcpus}"] * bool(vcpus)
                roles += [role if count == 1 else f"{count} {role}" for role, count in Counter(others).items()]
                floats.append(f"{', '.join(roles)} on {mask}")
                floating.update(dict.fromkeys(mask, len(alike)))
        guests.append(MapGuest(pods[sandbox["id"]], _title(sandbox["pod"], sandbox["id"]), sandbox["verdict"],
                               sandbox["mask"] or "", tuple(floats), _notes(sandbox)))
    return tuple(guests), pinned, floating


#: Of the JSON document.
VERSION = 1
#: The facts that are lists of CPUs, by their name in the document.
_LISTS = {"online": "online", "shared_pool": "shared pool", "exclusive": "exclusive", "housekeeping": "housekeeping",
          "reserved": "reserved"}


def map_document(picture: Picture) -> dict[str, Any]:
    """The map as data, with the letters that the drawings have."""
    facts = picture.facts
    lists = {name: facts.get(key, "none") for name, key in _LISTS.items()}
    return {"version": VERSION, "node": facts.get("node"), "time": facts.get("time"),
            **{name: "" if cpus == "none" else cpus for name, cpus in lists.items()},
            "numa_nodes": [{"name": name, "caches": [{"cores": [[_cpu(cpu) for cpu in core] for core in cores]}
                                                     for cores in caches]} for name, caches in picture.nodes],
            "owners": [_owner(owner) for owner in picture.owners],
            "guests": [{"letter": guest.letter, "title": guest.title, "verdict": guest.verdict, "mask": guest.mask,
                        "floating": list(guest.floats), "notes": list(guest.notes)} for guest in picture.guests],
            "collisions": list(picture.alarms()), "notes": list(picture.notes)}


def _cpu(cpu: Cpu) -> dict[str, Any]:
    return {"cpu": cpu.number, "kind": cpu.kind, "owners": [owner.letter for owner in cpu.owners],
            "housekeeping": cpu.housekeeping, "isolated": cpu.isolated, "reserved": cpu.reserved,
            "pinned": list(cpu.pinned), "floating": cpu.floating, "collisions": list(cpu.collisions)}


def _owner(owner: MapOwner) -> dict[str, Any]:
    return {"letter": owner.letter, "title": owner.title, "kind": owner.kind, "cpus": str(owner.cpus)}
