"""A containerd of another Debian release than the machine that runs it: its package, fetched once and only unpacked.

    lab/containerd-sid/usr/bin/{containerd,containerd-shim-runc-v2,ctr}

It needs a C library, runc and no more, so that it runs on this machine, and in the node, where it is a layer of the
root beside the containerd that is installed there.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from lab import cache
from lab.cache import say
from lab.errors import LabError
from lab.packages import Packages, unpack

#: The release of the node's second containerd. It moves, and may not be had on some day.
MOVING = "sid"


def programs(suite: str) -> Path:
    """Where containerd, its shim and ctr are below the root that a layer is laid over."""
    return Path("/lab", f"containerd-{suite}", "usr/bin")


@contextlib.contextmanager
def containerd_layer(suite: str, mirror: str) -> Iterator[Path]:
    """The layer, built if it is not there. :raises LabError: where the package cannot be fetched."""
    def make(path: Path, log: Path) -> None:
        deb = Packages(path / "apt", suite, mirror, log).download("containerd")
        target = path / programs(suite).relative_to("/").parents[1]
        target.mkdir(parents=True)
        unpack(deb, target, log, ["./usr/share/*"])
        shutil.rmtree(path / "apt")

    with cache.entry(f"containerd-{suite}", {"version": 2, "suite": suite}, make) as path:
        yield path


@contextlib.contextmanager
def moving_layers(mirror: str) -> Iterator[tuple[Path, ...]]:
    """The layer of `MOVING`; none where it cannot be fetched: then the node's tests are of one containerd."""
    with contextlib.ExitStack() as stack:
        layers: list[Path] = []
        try:
            layers.append(stack.enter_context(containerd_layer(MOVING, mirror)))
        except LabError as err:
            say(f"no tests of the containerd of Debian {MOVING} in this node: {err}")
        yield tuple(layers)
