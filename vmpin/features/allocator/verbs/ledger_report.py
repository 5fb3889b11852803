"""What the watcher gives out, for the verbs that also show or check other things: `map`, `verify`, `audit`,
`explain`."""

import contextlib
import time

from vmpin.cli.control_client import Document, ask
from vmpin.config.settings import Config
from vmpin.errors import UsageError
from vmpin.feature import Comparison, ExplainedPods
from vmpin.status.pod_arguments import NamedSandbox


def ledger_report(config: Config, actual: bool = False) -> Document | None:
    """Ask the watcher for what it gives out, as `vmpin allocations` shows it. None where it gives out nothing, before
    the runtime's first list, and without a watcher.
    :param actual: with the CPUs that containers' cgroups have."""
    with contextlib.suppress(UsageError):
        found = ask(config, {"op": "allocations", "actual": actual})
        return found if found is not None and found["mode"] == "on" else None
    return None


def compared(config: Config, sandbox: str | None) -> Comparison | None:
    """Compare the CPUs that containers have with those that vmpin has given them, now and, where they are others, a
    second later: a runtime applies an answer some milliseconds after it. None where vmpin gives out no CPUs."""
    found = _misplaced(config, sandbox)
    if found is None:
        return None
    if found:
        time.sleep(1.0)
        found = [grant for grant in _misplaced(config, sandbox) or () if grant in found]
    lines = [f"{grant['namespace']}/{grant['pod']}/{grant['container']} has CPUs {grant['actual'] or 'none'}, and not "
             f"{grant['cpuset']}, which vmpin has given it ({grant['policy']})" for grant in found]
    return Comparison(not found, {"grants": found},
                      lines or ["each container outside of VMs has the CPUs that vmpin has given it"])


def _misplaced(config: Config, sandbox: str | None) -> list[Document] | None:
    report = ledger_report(config, actual=True)
    if report is None:
        return None
    from vmpin.features.allocator.allocation_report import misplaced
    return [grant for grant in misplaced(report) if sandbox in (None, grant["sandbox"])]


def explained_pods(config: Config) -> ExplainedPods:
    """The pods of the ledger; none without a watcher, which alone gives out CPUs, and before the runtime has listed
    its containers."""
    try:
        report = ask(config, {"op": "allocations"})
    except UsageError:
        report = None
    pods: dict[str, list[Document]] = {}
    for grant in () if report is None else report["grants"]:
        pods.setdefault(grant["sandbox"], []).append(grant)

    def sentences(id: str) -> list[str]:
        found = ask(config, {"op": "allocations", "explain": id})
        return [] if found is None else [f"{text[0].upper()}{text[1:]}." for text in found["sentences"]]

    return ExplainedPods([NamedSandbox(sandbox, grants[0]["namespace"], grants[0]["pod"],
                                       [(grant["id"], grant["container"]) for grant in grants])
                          for sandbox, grants in pods.items()], sentences)
