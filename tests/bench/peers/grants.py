"""A peer's grants from a file, each checked against its request. Pure.

    {"version": 1, "peer": "kubelet, no options", "machines": [
        {"id": 0, "grants": [{"id": 0, "cpus": [4, 5], "us": 18.2}, {"id": 3, "refused": "too few CPUs"}]}]}

`id` are those of the file of requests, in any order; machines may be missing, and so may `us`, the microseconds of the
decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from peers.histories import Grant
from peers.machines import Machine
from vmpin import bounded

_LONGEST = 1e9  # microseconds
_MOST = 1_000_000


class PeerGrants(NamedTuple):
    """`grants`: by machine and request."""

    peer: str
    grants: dict[int, dict[int, Grant]]


def parse(raw: bytes, machines: Sequence[Machine]) -> PeerGrants:
    """:raises ValueError: with the machine and the request, where the file is not as above, or a grant is not legal:
    another number of CPUs, CPUs that the machine does not have, that are reserved, or that another container holds."""
    content = bounded.load_json(raw)
    try:
        if content["version"] != 1:
            raise ValueError(f"version {content['version']!r} of the grants is not 1")
        name, listed = str(content["peer"]), {int(entry["id"]): entry["grants"] for entry in content["machines"]}
        known = {machine.id: machine for machine in machines}
        unknown = sorted(listed.keys() - known.keys())
        if unknown:
            raise ValueError(f"machine {unknown[0]} is not among the requests")
        return PeerGrants(name, {number: _of_machine(known[number], entries) for number, entries in listed.items()})
    except (KeyError, TypeError) as err:
        raise ValueError(f"the grants are not as documented: {type(err).__name__} {err}") from err


def _of_machine(machine: Machine, entries: Sequence[dict[str, Any]]) -> dict[int, Grant]:
    given = {bounded.checked_whole(entry["id"], _MOST): _grant(entry) for entry in entries}
    held: dict[int, frozenset[int]] = {}
    for event in machine.events:
        if not event.cpus:
            held.pop(event.id, None)
            continue
        if event.id not in given:
            raise ValueError(f"machine {machine.id} has no grant for request {event.id}")
        cpus = given[event.id].cpus
        if cpus is None:
            continue
        wrong = cpus - (machine.usable - frozenset().union(*held.values()))
        if wrong or len(cpus) != event.cpus:
            raise ValueError(f"machine {machine.id}, request {event.id} for {event.cpus} CPUs: {sorted(cpus)} "
                             + (f"has {sorted(wrong)}, not free" if wrong else f"are {len(cpus)}"))
        held[event.id] = cpus
    return given


def _grant(entry: dict[str, Any]) -> Grant:
    microseconds = bounded.checked_real(entry.get("us", 0), _LONGEST)
    if "refused" in entry:
        return Grant(None, microseconds)
    return Grant(frozenset(bounded.checked_whole(cpu, _MOST) for cpu in entry["cpus"]), microseconds)
