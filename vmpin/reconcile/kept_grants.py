"""What the allocator's ledger gives to containers, as placement follows it: the ledger in memory, and the one that is
kept in the run directory, for a pass before the watcher's allocator exists, and for commands without a watcher."""

from pathlib import Path

from vmpin.allocation.cpu_request import CpuPolicy
from vmpin.allocation.ledger import Grant, Ledger
from vmpin.domain.granted_cpus import GrantedCpus
from vmpin.reconcile.ledger_file import LedgerFile


def granted_by(ledger: Ledger) -> GrantedCpus:
    """Return the CPUs of the containers that live."""
    grants = [grant for grant in ledger.grants.values() if grant.live]
    own = [grant for grant in grants if grant.policy is CpuPolicy.EXCLUSIVE and grant.cpus]
    return GrantedCpus({grant.container: grant.cpus for grant in own},
                       {grant.container: grant.spare for grant in own if grant.spare},
                       {grant.container: grant.written or None for grant in grants if _is_shared(grant)},
                       ledger.shared)


def kept_grants(path: Path, boot_id: str) -> GrantedCpus | None:
    """Return what a watcher has given out in this boot, None where no file shows it. The file stays as it is, so the
    run directory's lock need not be held."""
    ledger = LedgerFile(path, boot_id).load(set_aside=False)
    return None if ledger is None else granted_by(ledger)


def _is_shared(grant: Grant) -> bool:
    """Whether its CPUs are not its own alone; those that another plugin has given it are no grant."""
    return grant.policy is not CpuPolicy.EXCLUSIVE and not (grant.left_alone and grant.written)
