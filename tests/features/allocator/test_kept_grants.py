"""The ledger that a watcher left is followed from the first pass on."""

from __future__ import annotations

import pytest
from newcomers import Machine, sandbox

from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, ThreadRole
from vmpin.features.allocator.allocate_settings import ledger_path
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.ledger import Grant, GrantState, Ledger
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.host import boottime
from vmpin.reconcile.reconciler import Reconciler

pytest_plugins = ["given_unit"]


@pytest.mark.parametrize("acts", [True, False])
def test_the_first_pass_places_by_the_ledger_that_was_kept(machine: Machine, acts: bool) -> None:
    own, spare = machine.other, machine.pool
    machine.settings["allocate.mode"] = "on"
    before = machine.fresh().node_state
    grant = Grant(ContainerId("c-a"), sandbox("a"), "main", "default", "a", "uid", CpuWish(), CpuPolicy.EXCLUSIVE,
                  state=GrantState.RUNNING, cpus=own, spare=spare, written=own | spare, vm=True)
    LedgerFile(ledger_path(before.config), before.boot_id).save(Ledger({grant.container: grant}, shared=spare))
    machine.vmm("a")
    reconciler = Reconciler(before.config, acts)
    reconciler.node_state.apply_events([SandboxSeen(sandbox("a"), "oci"), ContainerSeen(
        sandbox("a"), Container(ContainerId("c-a"), cpuset=own | spare), Source.BUNDLE, boottime.now(),
        bundle=str(machine.path))])
    reconciler.resync(act=acts, full=True)
    placement = reconciler.view.placements[sandbox("a")]
    assert placement.others[ThreadRole.SHIM] == spare  # not all CPUs of its cpuset
    assert reconciler.node_state.node.shared_pool == spare


def test_a_ledger_that_cannot_be_read_stays_as_it_is_until_the_allocator_reads_it(
        machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.settings["allocate.mode"] = "on"
    config = machine.fresh().node_state.config
    ledger = ledger_path(config)
    ledger.write_text("damaged")
    assert not Reconciler(config).node_state.placement_cache.rulings.written
    assert (ledger.read_text(), caplog.text) == ("damaged", "")
