"""Reports of the runtime: which may wait, and what the state file lacks after them."""

from __future__ import annotations

from newcomers import Machine, sandbox
from nri_events import container, pod

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.reconcile.intake import take_nri
from vmpin.reconcile.urgency import can_wait
from vmpin.sources.nri.nri_events import CallFacts, ContainerEvent
from vmpin.wire.nri_enums import Verb

pytest_plugins = ["given_unit"]


def of(verb: Verb, name: str = "runc", cpus: str | None = None, handler: str = "") -> ContainerEvent:
    return ContainerEvent(verb, pod(id_=sandbox(name), handler=handler), container(cpus=cpus, pod_=sandbox(name)), 1)


def waits(machine: Machine, name: str = "runc", handler: str = "", cpus: CpuSet | None = None,
          verb: Verb = Verb.START) -> bool:
    return can_wait(machine.reconciler.view,
                    CallFacts(verb, SandboxId(sandbox(name)), ContainerId("c1"), handler, cpus))


def test_an_event_that_moves_nothing_waits_for_those_that_follow_it(machine: Machine) -> None:
    machine.vmm("vm")
    machine.reconciler.resync(full=True)
    machine.node_state.forks_reported(True)
    for verb in (Verb.START, Verb.RUN_POD):
        assert waits(machine, verb=verb)
        assert not waits(machine, "vm", verb=verb)
        assert not waits(machine, handler="kata-clh", verb=verb)
    assert not waits(machine, cpus=CpuSet((1,)))


def test_a_new_pod_waits_only_where_the_kernel_reports_vmms(machine: Machine) -> None:
    machine.reconciler.resync(full=True)
    assert not waits(machine, verb=Verb.RUN_POD)
    assert waits(machine)


def test_a_container_on_the_shared_pool_waits_as_one_without_a_cpuset_does(machine: Machine) -> None:
    machine.reconciler.resync(full=True)
    assert waits(machine, cpus=machine.pool)
    assert not waits(machine, cpus=machine.other)


def test_what_the_runtimes_list_repeats_needs_no_state_file_at_once(machine: Machine) -> None:
    node_state = machine.reconciler.node_state
    machine.reconciler.resync(full=True)
    node_state.save()
    take_nri(node_state, [of(Verb.CREATE)])
    assert (node_state.outdated, node_state.unsaved) == (True, False)
    assert node_state.save()
    assert not node_state.outdated
