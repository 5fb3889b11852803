"""The NIC of a VM, as far as placement needs it (policy.vhost: near)."""

from __future__ import annotations

from typing import NamedTuple


class NearNic(NamedTuple):
    """`numa_node` is the NIC's, None where it is not known; `why` is how it was found, or why not."""

    numa_node: int | None
    why: str
