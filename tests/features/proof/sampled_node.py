"""The books of a node's run times."""

from __future__ import annotations

from strayed import Spinners

from vmpin.features.proof.residency_ledger import ResidencyLedger, RunAccount
from vmpin.vmm.virtual_machine import Vm


def ledger_of(node: Spinners) -> ResidencyLedger:
    """One for each reconciler of a node."""
    ledger: ResidencyLedger = vars(node.node_state).setdefault(
        "ledger", ResidencyLedger(node.node_state.counters.drift))
    return ledger


def account_of(node: Spinners, vm: Vm) -> RunAccount:
    """What is in the books of it now, in copy."""
    total = RunAccount()
    total.add(ledger_of(node).of(vm.sandbox).total)
    return total
