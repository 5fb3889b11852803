"""The document of `vmpin verify --since`."""

from vmpin.domain.model import SandboxId
from vmpin.features.proof.residency_ledger import Proof
from vmpin.reconcile.view import NodeView
from vmpin.status.collector import when
from vmpin.status.document import VERSION, pod_data


def proved(view: NodeView, proof: Proof, only: SandboxId | None) -> dict[str, object]:
    """Where threads ran, for `vmpin verify --since`. :param only: leaves other sandboxes out."""
    sandboxes = []
    for sandbox, account in proof.sandboxes.items():
        if only in (None, sandbox):
            state = view.sandboxes.get(sandbox)
            sandboxes.append({"id": sandbox, "pod": pod_data(None if state is None else state.pod), **account.data()})
    return {"version": VERSION, "since": when(proof.since), "until": when(proof.until),
            "seconds": round(proof.until - proof.since, 3), "watched": round(proof.watched, 3),
            "drift": dict(proof.drift), "sandboxes": sandboxes,
            "ended": None if only is not None else proof.ended.data(),
            "findings": [finding.data() | {"first": when(finding.first), "last": when(finding.last)}
                         for finding in proof.findings if only in (None, finding.sandbox)]}
