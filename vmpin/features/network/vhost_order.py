"""Which vhost worker serves which queue, inferred from the order in which both were made.

Pure. The kernel makes a worker for each vhost device when its owner is set (VHOST_SET_OWNER), and names it after the
process alone. QEMU sets the owner of a network device's queues, in their order, when it makes the -netdev; of vsock
devices when it makes the -device, after every -netdev; of devices that are plugged in later then. Nothing in /proc
names the device of a worker, so where the numbers do not fit, nothing is inferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class VhostQueues(NamedTuple):
    """The vhost-net queues of one device, in the order of QEMU's command line or of their descriptors. `plugged`: not
    on the command line, so made after everything that is."""

    queues: int
    plugged: bool = False


def workers_of_queues(devices: Sequence[VhostQueues], others: int, workers: Sequence[int]) -> list[tuple[int, ...]]:
    """The workers of each device's queues; () for each where the numbers do not fit.
    :param others: vhost devices on the command line that are no network devices (vsock), one worker each.
    :param workers: thread ids in the order of their start."""
    if sum(device.queues for device in devices) + others != len(workers):
        return [()] * len(devices)
    found: list[tuple[int, ...]] = [()] * len(devices)
    left = list(workers)
    for plugged in (False, True):
        for at, device in enumerate(devices):
            if device.plugged is plugged:
                found[at], left = tuple(left[:device.queues]), left[device.queues:]
        if not plugged:
            left = left[others:]
    return found
