"""The events of a scenario on a node whose CPUs vmpin gives out, as `vmpin plan` and `vmpin map` show them."""

from __future__ import annotations

from typing import Any, NamedTuple

from vmpin.domain.terminal import printable
from vmpin.domain.wrapping import wrapped
from vmpin.features.allocator.allocation_report import AllocatorView, allocation_report
from vmpin.features.allocator.ledger_holders import held_cpus
from vmpin.features.allocator.scenario_allocation import AllocationScenario, play
from vmpin.scenario.scenario_part import PlayedPart


class AllocationPart(NamedTuple):
    """The allocator's part of a scenario."""

    scenario: AllocationScenario

    def played(self) -> PlayedPart:
        """Return what comes of the events, and what is given out after the last."""
        node = play(self.scenario)
        held = held_cpus(allocation_report(AllocatorView("on", "", node.machine, node.options, node.ledger,
                                                         node.pool)))
        return PlayedPart({"events": node.events}, [text(event) for event in node.events],
                          any("refused" in event for event in node.events), held)


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
