"""The events of a scenario on a node whose CPUs vmpin gives out, as `vmpin plan` and `vmpin map` show them."""

from __future__ import annotations

from typing import Any

from vmpin.domain.terminal import printable
from vmpin.domain.wrapping import wrapped
from vmpin.features.allocator.allocation_report import AllocatorView, allocation_report
from vmpin.features.allocator.ledger_holders import LedgerMap, ledger_map
from vmpin.features.allocator.scenario_allocation import PlayedAllocation


def text(event: dict[str, Any]) -> str:
    """Return what came of an event: its container, cost and notes, as lines of 80 columns at most."""
    container = f"{event['event']} {event['pod']}/{event['container']}"
    if "refused" in event:
        lines = [f"{container}: refused", event["refused"]]
    elif event["event"] == "remove":
        lines = [f"{container}: the pool is {event['pool'] or 'empty'}"]
    else:
        spare = f", spare {event['spare']}" if "spare" in event else ""
        mems = f", memory of node {event['mems']}" if event.get("mems") else ""
        lines = [f"{container}: CPUs {event['cpus']}{spare}{mems}"]
        if "cost" in event:
            lines.append("cost: " + ", ".join(f"{part} {count}" for part, count in event["cost"].items()))
        lines += [f"note: {note}" for note in event.get("notes", ())]
        lines.append(f"pool: {event['pool']}")
    return "\n".join(part for line, indent in zip(lines, ["", *["  "] * len(lines)], strict=False)
                     for part in wrapped(printable(line), 80, indent, f"{indent}  "))


def ledger_after(played: PlayedAllocation) -> LedgerMap | None:
    """Return what is given out after the last event, for the map."""
    return ledger_map(allocation_report(AllocatorView("on", "", played.machine, played.options, played.ledger,
                                                      played.pool)))
