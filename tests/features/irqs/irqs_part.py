"""The part of irqs in a watcher whose /proc, /sys and run directory are below a directory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from trees import make_tree

from vmpin.config.loading import load
from vmpin.daemon.watcher import Watcher
from vmpin.domain.model import SandboxId
from vmpin.features.irqs import FEATURE
from vmpin.host.procfs import Procfs

SHOP, DB = SandboxId("shop"), SandboxId("db")


def part(root: Path, policy: str, honour: str = "off") -> Any:
    """None where it is none."""
    assert FEATURE.watch is not None
    paths = {f"paths.{name}": str(root / name) for name in ("proc", "sys", "run")}
    config = load(None, {}, {"irqs.policy": policy, "irqs.honour": honour, **paths})
    make_tree(root, "run/\nproc/sys/kernel/random/boot_id = boot\n")
    view = SimpleNamespace(config=config, proc=Procfs(root / "proc"), boot_id="boot")
    return FEATURE.watch(cast(Watcher, SimpleNamespace(view=view)))
