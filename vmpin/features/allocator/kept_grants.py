"""What the allocator's ledger gives to containers, as placement follows it: the ledger in memory, and the one that is
kept in the run directory, for a pass before the watcher's allocator exists, and for commands without a watcher."""

from pathlib import Path

from vmpin.authorities.authority import GivenAuthority
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Assignments, Owner, Rank
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.ledger import Grant, Ledger
from vmpin.features.allocator.ledger_file import LedgerFile


def assignments_by(ledger: Ledger) -> Assignments:
    """Return the CPUs of the containers that live. A container that the ledger does not have is none of its business:
    the next authority decides."""
    grants = [grant for grant in ledger.grants.values() if grant.live]
    own = {grant.container: grant for grant in grants if grant.policy is CpuPolicy.EXCLUSIVE and grant.cpus}
    exclusive: dict[Owner, CpuSet] = {("", container): grant.cpus for container, grant in own.items()}
    exclusive |= {("", grant.container): EMPTY for grant in grants if _is_shared(grant)}
    return Assignments(exclusive, ledger.shared, writes=True, spare={
        ("", container): grant.spare for container, grant in own.items() if grant.spare})


def ledger_authority(assignments: Assignments | None) -> GivenAuthority:
    """Return the authority of the ledger. :param assignments: None where nothing is given out."""
    return GivenAuthority("ledger", Rank.LEDGER, assignments)


def kept_assignments(path: Path, boot_id: str) -> Assignments | None:
    """Return what a watcher has given out in this boot, None where no file shows it. The file stays as it is, so the
    run directory's lock need not be held."""
    ledger = LedgerFile(path, boot_id).load(set_aside=False)
    return None if ledger is None else assignments_by(ledger)


def _is_shared(grant: Grant) -> bool:
    """Whether its CPUs are not its own alone; those that another plugin has given it are no grant."""
    return grant.policy is not CpuPolicy.EXCLUSIVE and not (grant.left_alone and grant.written)
