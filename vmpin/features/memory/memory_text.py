"""The memory of a VM as a text, from its entry in a status document. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(memory: Mapping[str, Any] | None) -> str:
    """Describe where the memory and the vCPUs are, and by which evidence if it is not numa_maps; "" where there is
    nothing to describe."""
    if memory is None:
        return ""
    if not memory["nodes"]:
        return f"not inspected: {memory['why']}"
    size = sum(memory["nodes"].values())
    parts = sorted(memory["nodes"].items(), key=lambda item: -item[1])
    places = ", ".join(f"{100 * count / size:.0f} % on node {node}" for node, count in parts if count * 200 >= size)
    of = f"{gib(size)} of its cgroup" if memory["source"] == "cgroup" else gib(size)
    vcpus = " and ".join(map(str, memory["vcpu_nodes"]))
    near = f"; the vCPUs are on node {vcpus}" if vcpus else ""
    return f"{places} of {of}{near}" + (f" ({memory['why']})" if memory["why"] else "")


def gib(size: int) -> str:
    """A count of bytes as text.

    >>> gib(3 << 29)
    '1.5 GiB'
    """
    return f"{size / (1 << 30):.1f} GiB"
