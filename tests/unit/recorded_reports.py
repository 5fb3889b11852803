"""The node of recorded_node as the commands that look for themselves find it: its CPUs, what ran on exclusive ones,
what the doctor reads, and the pieces of a bug report. Only what reads the machine is replaced."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from healthy_node import containerd, facts, handler

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.doctor.pieces import Pieces
from vmpin.features.doctor.verbs import doctor, gather
from vmpin.features.isolation.usage import SampledProcess, SampledThread
from vmpin.features.isolation.verbs import verify_others
from vmpin.host.sysfs import Sysfs

MS = 1_000_000
TOPOLOGY = Topology.build(
    CpuSet.parse("0-63"), [CpuSet.parse(f"{cpu},{cpu + 1}") for cpu in range(0, 64, 2)],
    [CpuSet.parse(f"{cpu}-{cpu + 15}") for cpu in range(0, 64, 16)],
    nodes={0: CpuSet.parse("0-31"), 1: CpuSet.parse("32-63")})


class RecordedSampler:
    """What ran during `vmpin verify --others`: a backup on the exclusive CPUs of both pods, a kubelet that may, and a
    kworker."""

    samples, seconds, longest, sees_kernel = 51, 5.0, 0.104, True
    host = SimpleNamespace(precise=True)
    busy = {cpu: 40 * MS for cpu in range(64)}  # noqa: RUF012

    def __init__(self, text: str = "") -> None:
        self._text = text

    def watch(self, seconds: float) -> None:
        """It was sampled before."""

    def processes(self) -> list[SampledProcess]:
        def process(pid: int, comm: str, may: str, ran: dict[int, int], kernel: bool = False,
                    cgroup: str = "") -> SampledProcess:
            thread = SampledThread(pid, comm + self._text, CpuSet.parse(may), ran)
            return SampledProcess(pid, comm + self._text, kernel, cgroup, False, (thread,))

        return [process(2210, "backup-agent", "0-63", {40: 900 * MS, 41: 12 * MS, 48: 3 * MS},
                        cgroup=f"/sys/fs/cgroup/system.slice/backup-agent.service{self._text}"),
                process(1100, "kubelet", "0-63", {}, cgroup="/sys/fs/cgroup/system.slice/kubelet.service"),
                *(process(30 + cpu, f"kworker/{cpu}:1-events", str(cpu), {cpu: MS}, kernel=True)
                  for cpu in (40, 48))]


def replace_readers(monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], text: str = "") -> None:
    """:param text: behind each name and reason that the machine may hold."""
    kata = handler(f"kata-qemu{text}", config_path=f"/opt/kata/share/defaults/kata-containers/qemu.toml{text}")
    found = facts(status=status, engines=(containerd(kata),), nri_socket=False)
    found = replace(found, run=replace(found.run, path=f"/run/vmpin{text}", spooled=3, oldest=400.0))
    monkeypatch.setattr(doctor, "read_facts", lambda *_: found)
    monkeypatch.setattr(verify_others, "ThreadUsageSampler", lambda: RecordedSampler(text))
    monkeypatch.setattr(Sysfs, "topology", lambda _: TOPOLOGY)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", f"node-1{text}", "6.12.1", "#1", "x86_64")))
    # No other way in: it reads the machine piece by piece.
    monkeypatch.setattr(gather, "_collect", lambda *_: _pieces(text))


def _pieces(text: str) -> Pieces:
    pieces = Pieces(4096, 2048)
    pieces.add("vmpin/status.json", "{}" * 700)
    pieces.add("vmpin/log.txt", "line\n" * 700, tail=True)
    pieces.add(f"kata/configuration-qemu.toml{text}", "[hypervisor.qemu]\n")
    pieces.missing["kubelet/cpu_manager_state"] = (
        f"/var/lib/kubelet/cpu_manager_state does not exist, and no other checkpoint was found{text}")
    return pieces
