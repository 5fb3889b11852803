"""What the watcher gives out, for the verbs that also show or check other things: `map`, `verify`, `audit`,
`explain`."""

import contextlib
import time
from collections.abc import Iterable

from vmpin.cli.control_client import Document, ask
from vmpin.config.settings import Config
from vmpin.errors import UsageError
from vmpin.status.pod_arguments import NamedSandbox


def ledger_report(config: Config, direct: bool | None, actual: bool = False) -> Document | None:
    """Ask the watcher for what it gives out, as `vmpin allocations` shows it. None where it gives out nothing, before
    the runtime's first list, and without a watcher.
    :param actual: with the CPUs that containers' cgroups have."""
    if direct or config.of_features["allocate"].mode != "on":
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
        from vmpin.features.allocator.allocation_report import misplaced
        return [each for each in misplaced(report) if chosen in (None, each["sandbox"])]

    first = found()
    if not first:
        return first
    time.sleep(1.0)
    return [each for each in found() or () if each in first]


def grants_of(config: Config) -> list[Document]:
    """The allocator's; [] without a watcher, which alone gives out CPUs, and before the runtime has listed its
    containers."""
    if config.of_features["allocate"].mode == "off":
        return []
    try:
        found = ask(config, {"op": "allocations"})
    except UsageError:
        return []
    return [] if found is None else list(found["grants"])


def without_vm(grants: Iterable[Document], vms: set[str]) -> list[NamedSandbox]:
    """The pods of the ledger that are no VM sandboxes of the status document."""
    pods: dict[str, list[Document]] = {}
    for grant in grants:
        if grant["sandbox"] not in vms:
            pods.setdefault(grant["sandbox"], []).append(grant)
    return [NamedSandbox(sandbox, many[0]["namespace"], many[0]["pod"], [(each["id"], each["container"])
                                                                         for each in many])
            for sandbox, many in pods.items()]
