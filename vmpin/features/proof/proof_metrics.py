"""Run times as metrics: sums of samples since the watcher started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vmpin.domain.model import ThreadRole
from vmpin.features.common.metric_families import Metric, counter
from vmpin.features.common.pod_labels import POD, pod_labels
from vmpin.features.proof.residency_ledger import ResidencyLedger, RunAccount
from vmpin.reconcile.view import NodeView


def families(ledger: ResidencyLedger, view: NodeView, per_sandbox: bool) -> Iterator[Metric]:
    accounts = ledger.added()
    roles = {role: accounts.get(role, RunAccount()) for role in ThreadRole}
    yield counter("vmpin_run_seconds_total", "Run time of threads, by role and place.",
                  {(role, place): spent for role, account in roles.items()
                   for place, spent in _by_place(account).items()}, "role", "place")
    yield counter("vmpin_wait_seconds_total", "Time that threads were ready to run while another thread had the CPU.",
                  {(role,): account.waited / 1e9 for role, account in roles.items()}, "role")
    yield counter("vmpin_migrations_total", "How often threads changed CPUs.",
                  {(role,): account.migrations for role, account in roles.items()}, "role")
    yield counter("vmpin_sampled_seconds_total", "Time during which samples were taken.",
                  ledger.added_seconds())
    if per_sandbox:
        yield counter("vmpin_sandbox_run_seconds_total", "As vmpin_run_seconds_total, of each VM sandbox.",
                      {(*labels, place): spent for sandbox, labels in pod_labels(ledger.sandboxes, view).items()
                       for place, spent in _by_place(ledger.added_to(sandbox)).items()}, *POD, "place")


def _by_place(account: RunAccount) -> Mapping[str, float]:
    """Seconds, by the values of the label `place` that vmpin_threads has, too."""
    return {"placed": account.placed / 1e9, "elsewhere": account.elsewhere / 1e9, "unasked": account.free / 1e9}
