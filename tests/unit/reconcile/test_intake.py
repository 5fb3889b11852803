"""Reports of the runtime: which may wait, and what the state file lacks after them."""

from __future__ import annotations

import pytest
from newcomers import Machine, sandbox
from nri_events import container, pod

from vmpin.reconcile.intake import can_wait, take_nri
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriEvent, PodEvent, Synced
from vmpin.wire.nri_enums import Verb

pytest_plugins = ["given_unit"]


def of(verb: Verb, name: str = "runc", cpus: str | None = None, handler: str = "") -> ContainerEvent:
    return ContainerEvent(verb, pod(id_=sandbox(name), handler=handler), container(cpus=cpus, pod_=sandbox(name)), 1)


def of_pod(verb: Verb, name: str = "runc") -> PodEvent:
    return PodEvent(verb, pod(id_=sandbox(name)), 1)


@pytest.mark.parametrize(("event", "waits"), [
    (of(Verb.CREATE), True), (of(Verb.POST_START), True), (of(Verb.STOP), True),
    (of_pod(Verb.STOP_POD), True), (of_pod(Verb.REMOVE_POD), True),
    (of_pod(Verb.RUN_POD), False),  # it may be a VM's
    (of(Verb.CREATE, cpus="1"), False), (of(Verb.CREATE, handler="kata-clh"), False),
    (of(Verb.POST_START, "vm"), False), (of_pod(Verb.STOP_POD, "vm"), False),
    (Synced((), (), 1), False), (Disconnected(), False)])
def test_an_event_that_moves_nothing_waits_for_those_that_follow_it(
        machine: Machine, event: NriEvent, waits: bool) -> None:
    machine.vmm("vm")
    machine.reconciler.resync(full=True)
    assert can_wait(machine.reconciler.view, event) is waits


def test_a_container_on_the_shared_pool_waits_as_one_without_a_cpuset_does(machine: Machine) -> None:
    machine.reconciler.resync(full=True)
    assert can_wait(machine.reconciler.view, of(Verb.CREATE, cpus=str(machine.pool)))
    assert not can_wait(machine.reconciler.view, of(Verb.CREATE, cpus=str(machine.other)))


def test_what_the_runtimes_list_repeats_needs_no_state_file_at_once(machine: Machine) -> None:
    node_state = machine.reconciler.node_state
    machine.reconciler.resync(full=True)
    node_state.save()
    take_nri(node_state, [of(Verb.CREATE)])
    assert (node_state.outdated, node_state.unsaved) == (True, False)
    assert node_state.save()
    assert not node_state.outdated
