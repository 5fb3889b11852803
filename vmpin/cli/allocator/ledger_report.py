"""What the watcher gives out, for the verbs that also show or check other things: `map`, `verify`, `audit`.

What stays out: the document (status.allocation_report)."""

import contextlib
import time

from vmpin.cli.control_client import Document, ask
from vmpin.config.settings import Config
from vmpin.errors import UsageError


def ledger_report(config: Config, direct: bool | None, actual: bool = False) -> Document | None:
    """What the watcher gives out, as `vmpin allocations` shows it; None where it gives out nothing, before the
    runtime's first list, and without a watcher. :param actual: with the CPUs that containers' cgroups have."""
    if direct or config.allocate.mode != "on":
        return None
    with contextlib.suppress(UsageError):
        found = ask(config, {"op": "allocations", "actual": actual})
        return found if found is not None and found["mode"] == "on" else None
    return None


def misplaced_grants(config: Config, direct: bool, chosen: str | None) -> list[Document] | None:
    """The containers that have other CPUs than vmpin has given them, now and a second later: a runtime applies an
    answer some milliseconds after it. None where vmpin gives out no CPUs."""
    def found() -> list[Document] | None:
        report = ledger_report(config, direct, actual=True)
        if report is None:
            return None
        from vmpin.status.allocation_report import misplaced
        return [each for each in misplaced(report) if chosen in (None, each["sandbox"])]

    first = found()
    if not first:
        return first
    time.sleep(1.0)
    return [each for each in found() or () if each in first]
