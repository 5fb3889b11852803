"""What an exclusive container waits for on a node full of shared ones, by a real containerd with runc.

Its CreateContainer carries an update for each shared container that has its CPUs, unless they are headroom. The floor
is the same creation without vmpin. Beside it the creation without headroom (`without_headroom`), and those of shared
containers while the hundred are updated in the background, one by one (`beside`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from measure import CannotMeasure, Figure, median, progress, timed_ms

sys.path += [str(Path(__file__).parents[1] / part) for part in (".", "integration", "features")]

from _pytest.outcomes import OutcomeException

PODS = 10
#: Seconds after which a hundred updates count as not coming.
_PATIENCE = 120.0
#: `auto` keeps at most an eighth of the CPUs free.
_ENOUGH_FOR_AUTO = 16


def first_exclusive(rounds: int, each: int) -> Figure:
    """:param each: shared containers in each of PODS pods."""
    try:
        return _first_exclusive(rounds, each)
    except (OutcomeException, AssertionError) as err:  # of pytest's: the harness skips and fails
        raise CannotMeasure(str(err)) from err


def _first_exclusive(rounds: int, each: int) -> Figure:
    # Here, as gRPC starts threads.
    from allocating_node import WHOLE, AllocatingNode
    from real_containerd import Containerd

    headroom = "auto" if len(os.sched_getaffinity(0)) >= _ENOUGH_FOR_AUTO else "1"
    progress(f"starting containerd and {PODS * each} containers")
    with contextlib.redirect_stdout(sys.stderr), Containerd() as containerd:
        shared = [pod.container(f"c{number}", cpu_shares=2)
                  for pod in [containerd.pod(f"shared-{number}") for number in range(PODS)] for number in range(each)]

        def on() -> set[str]:
            return {container.cgroup_cpus() for container in shared}

        def created(name: str, make_pod: Callable[[str], Any], **resources: int) -> float:
            pod = make_pod(name)
            spent = timed_ms(partial(pod.create, "main", **resources))
            pod.remove()
            return spent

        floors = [created(f"floor-{number}", containerd.pod, **WHOLE) for number in range(rounds)]
        with AllocatingNode(containerd) as node:
            node.configure(allocate={"pool_headroom": headroom})
            node.connect()
            values = []
            for number in range(rounds):
                _until(lambda: on() == {node.rest})
                values.append(created(f"own-{number}", node.pod, **WHOLE))
            node.stop()
            node.configure(allocate={"pool_headroom": "0"})
            node.connect()
            _until(lambda: on() == {str(node.all)})
            without = created("own-without", node.pod, **WHOLE)
            beside = [created(f"beside-{number}", containerd.pod, cpu_shares=2) for number in range(rounds)]
    return Figure("first_exclusive_100", median(values), "ms", median(floors), 150, "value",
                  {"shared": len(shared), "rounds": rounds, "headroom": headroom, "longest": round(max(values), 4),
                   "without_headroom": round(without, 4), "beside": round(median(beside), 4),
                   "beside_longest": round(max(beside), 4)})


def _until(state: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not state():
        if time.monotonic() > deadline:
            raise CannotMeasure(f"the shared containers are not where they should be after {_PATIENCE:g} s")
        time.sleep(0.1)
