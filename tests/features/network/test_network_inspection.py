"""The networks of VMs that cannot be read, or have no devices. Those of others: test_network_on_a_node.py."""

from __future__ import annotations

import os
from typing import Any

import pytest

from vmpin.features.network.network_inspection import add_networks
from vmpin.host.procfs import Procfs


def entry(pid: int = 0, starttime: int | None = None) -> dict[str, Any]:
    stat = Procfs().stat(os.getpid())
    assert stat is not None
    vmm = {"type": "qemu", "pid": pid or os.getpid(), "starttime": stat.starttime if starttime is None else starttime}
    return {"id": "a", "vmm": vmm, "threads": []}


def inspected(*entries: dict[str, Any]) -> list[Any]:
    add_networks(entries, Procfs(), "/sys")
    return [each["network"] for each in entries]


NOTHING = {"why": "", "devices": [], "disks": [], "warnings": []}
ENDED = {**NOTHING, "why": "not inspected: the VMM has ended"}


def test_a_process_without_network_devices_has_none_and_no_child_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vmpin.features.network.network_inspection.read_namespaces",
                        lambda *_: pytest.fail("a child was started"))
    assert inspected(entry()) == [NOTHING]
    assert inspected({"id": "a", "vmm": None, "threads": []}) == [None]


def test_another_process_with_the_pid_is_not_inspected() -> None:
    assert inspected(entry(starttime=1)) == [ENDED]
    assert inspected(entry(pid=2**22 + 1)) == [ENDED]


def test_descriptors_that_may_not_be_read_are_a_reason() -> None:
    """As root is not refused, /proc refuses."""

    class Refusing(Procfs):
        def fd_link(self, pid: int | str, fd: int) -> str:
            raise PermissionError

    sandbox = entry()
    add_networks([sandbox], Refusing(), "/sys")
    assert sandbox["network"] == {
        **NOTHING, "why": "not inspected: the VMM's descriptors cannot be read (run it as root)"}
