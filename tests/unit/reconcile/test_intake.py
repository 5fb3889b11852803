"""Reports of the runtime: what the state file lacks after them."""

from __future__ import annotations

from newcomers import Machine, sandbox
from nri_events import container, pod

from vmpin.reconcile.intake import take_nri
from vmpin.sources.nri.nri_events import ContainerEvent
from vmpin.wire.nri_enums import Verb

pytest_plugins = ["given_unit"]


def of(verb: Verb, name: str = "runc", cpus: str | None = None, handler: str = "") -> ContainerEvent:
    return ContainerEvent(verb, pod(id_=sandbox(name), handler=handler), container(cpus=cpus, pod_=sandbox(name)), 1)


def test_what_the_runtimes_list_repeats_needs_no_state_file_at_once(machine: Machine) -> None:
    node_state = machine.reconciler.node_state
    machine.reconciler.resync(full=True)
    node_state.save()
    take_nri(node_state, [of(Verb.CREATE)])
    assert (node_state.outdated, node_state.unsaved) == (True, False)
    assert node_state.save()
    assert not node_state.outdated
