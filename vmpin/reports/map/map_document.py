"""The map as data: what the drawings show, by their letters. docs/schemas/map.json describes each member.

Pure.
"""

from typing import Any

from vmpin.reports.map.node_map import Cpu, MapOwner, Picture

VERSION = 1
#: The facts that are lists of CPUs, by their name in the document.
_LISTS = {"online": "online", "shared_pool": "shared pool", "exclusive": "exclusive", "housekeeping": "housekeeping",
          "reserved": "reserved"}


def map_document(picture: Picture) -> dict[str, Any]:
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
    owners = [*(() if cpu.owner is None else (cpu.owner,)), *cpu.others]
    return {"cpu": cpu.number, "kind": cpu.kind, "owners": [owner.letter for owner in owners],
            "housekeeping": cpu.housekeeping, "isolated": cpu.isolated, "reserved": cpu.reserved,
            "pinned": list(cpu.pinned), "floating": cpu.floating, "collisions": list(cpu.collisions)}


def _owner(owner: MapOwner) -> dict[str, Any]:
    return {"letter": owner.letter, "title": owner.title, "kind": owner.kind, "cpus": str(owner.cpus)}
