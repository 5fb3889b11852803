"""The network of VMs: the path from a VM's device to the node's NIC, which vhost worker serves which queue, and which
threads are far from their NIC or disk. `policy.vhost: near` goes by the NUMA node of a VM's NIC.
docs/network.md describes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vmpin.feature import Document, Feature

if TYPE_CHECKING:
    from vmpin.config.settings import Config
    from vmpin.features.network.vm_nics import VmNics
    from vmpin.host.procfs import Procfs
    from vmpin.reconcile.view import NodeView
    from vmpin.vmm.virtual_machine import Vm


def _nic_finder(proc: Procfs, sys_root: str) -> VmNics:
    from vmpin.features.network.vm_nics import VmNics

    return VmNics(proc, sys_root)


def _members(view: NodeView, vm: Vm | None) -> Document:
    if vm is None or vm.nic is None:
        return {"near": None}
    from vmpin.features.network.nic_path import near_decision

    return {"near": near_decision(vm.nic, view.placements.get(vm.sandbox), view.node.topology.nodes)}


def _inspect(config: Config, sandboxes: Sequence[dict[str, Any]]) -> None:
    from vmpin.features.network.network_inspection import add_networks
    from vmpin.host.procfs import Procfs

    add_networks(sandboxes, Procfs(config.paths.proc), str(config.paths.sys))


def _tables(sandbox: Document, wide: bool) -> Iterable[tuple[Sequence[str], Sequence[Sequence[object]]]]:
    from vmpin.features.network.network_text import COLUMNS, rows

    network = sandbox.get("network")
    return [(COLUMNS, rows(network))] if network and network["devices"] else []


def _lines(sandbox: Document) -> Iterable[str]:
    from vmpin.features.network.network_text import status_lines

    return status_lines(sandbox)


def _sentences(sandbox: Document) -> Iterable[str]:
    from vmpin.features.network.network_text import network_sentences

    return network_sentences(sandbox.get("network"))


def _legend(sandbox: Document) -> str:
    from vmpin.features.network.network_text import summary

    text = summary(sandbox.get("network"))
    return f"network {text}" if text else ""


FEATURE = Feature(name="network", nic_finder=_nic_finder, members=_members, inspect=_inspect, tables=_tables,
                  lines=_lines, sentences=_sentences, legend=_legend, checks="network_checks.CHECKS")
