"""What the watcher's status says of a guest."""

from __future__ import annotations

from real_node import Node
from waiting import wait


def guest(node: Node, sandbox: str) -> dict[str, object]:
    """What status has of the guest itself."""
    return dict(node.sandbox(sandbox)["guest"] or {})


def states(node: Node, sandbox: str) -> dict[str, str]:
    """What is shown of each container, by name."""
    return {each["name"]: each["guest"]["text"] if each["guest"] else "-"
            for each in node.sandbox(sandbox)["containers"]}


def wait_for_states(node: Node, sandbox: str, wanted: dict[str, str], seconds: float = 120.0) -> None:
    wait(lambda: states(node, sandbox) == wanted,
         lambda: f"wanted {wanted}; have {states(node, sandbox)}, {guest(node, sandbox)}\n{node.log()}", seconds)
