"""A watcher with one VM, for the tests of a module (fixture: given_lab)."""

from __future__ import annotations

from dataclasses import dataclass

from real_node import Node
from real_qemu import Qemu


@dataclass
class Lab:
    """The VM's container web owns the CPU `second`, and its container logs shares `first` with the node."""

    node: Node
    vm: Qemu
    first: str
    second: str

    def wait_for_masks(self) -> None:
        self.node.wait_for_vcpus(self.vm.pid, {0: self.first, 1: self.second}, self.first)
