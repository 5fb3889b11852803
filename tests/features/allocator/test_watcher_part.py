"""The allocator in a real watcher: before its feeds start, and switched off."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from watched_place import Place

from vmpin.cpuset import CpuSet
from vmpin.features.allocator.allocate_settings import ledger_path
from vmpin.features.allocator.grants.ledger import Ledger
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.reconcile.reconciler import Reconciler


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_the_ledger_has_is_followed_before_any_feed_starts(place: Place) -> None:
    config = place.config(allocate__mode="on")
    LedgerFile(ledger_path(config), Reconciler(config, acts=False).view.boot_id).save(
        Ledger(shared=CpuSet(os.sched_getaffinity(0))))

    async def main() -> None:
        async with place.watching() as watcher:
            assert watcher.view.rulings.written

    asyncio.run(main())


@pytest.mark.parametrize(("mode", "tasks"), [("off", set()), ("observe", {"allocate", "ended"})])
def test_switched_off_it_has_no_task_and_answers_that_it_is_off(place: Place, mode: str, tasks: set[str]) -> None:
    place.config(allocate__mode=mode)

    async def main() -> None:
        async with place.watching() as watcher:
            assert set(watcher.parts["allocator"].tasks) == tasks
            answer = await place.control(op="allocations")
            assert ("gives out no CPUs" in answer["error"]) == (mode == "off")
            status = await place.control(op="status")
            assert ("allocator" in status["features"]) == (mode != "off")

    asyncio.run(main())


_LOADED = """\
import asyncio, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from watched_place import Place
import vmpin.cli.main, vmpin.cli.watch, vmpin.reconcile.one_pass

async def main():
    async with place.watching() as watcher:
        await place.control(op="status")
        watcher.refresh_everything()

place = Place(Path(sys.argv[1]))
asyncio.run(main())
print(*sorted(name for name in sys.modules if name.startswith("vmpin.features.allocator.")), sep="\\n")
"""


def test_switched_off_a_watcher_loads_none_of_its_modules(place: Place) -> None:
    """But for the package and the section of the configuration."""
    root = place.root / "another"
    root.mkdir()
    ran = subprocess.run([sys.executable, "-c", _LOADED.format(paths=sys.path), str(root)], capture_output=True,
                         text=True, timeout=120, check=True)
    assert ran.stdout.split() == [f"vmpin.features.allocator.{name}" for name in ("allocate_settings",)]
