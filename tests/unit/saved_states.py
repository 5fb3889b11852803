"""A state for the tests of the state file, and the boot that it is of."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, ThreadId, VcpuId
from vmpin.domain.sandbox_placement import Previous
from vmpin.pinning.original_masks import OriginalMasks, ProcessMasks
from vmpin.reconcile.state_format import SavedState

BOOT = "6f8a1c5e-0000-4000-8000-000000000001"

SAMPLE = SavedState(
    DesiredState({SandboxId("pod-a"): SandboxState(SandboxId("pod-a"), "kata-go", Pod("ns", "nöme", "uid"), {
        ContainerId("main"): ContainerRecord(Container(ContainerId("main"), "app", CpuSet.parse("2-3"), True),
                                             Source.BUNDLE, 17,
                                   "/bundle", ThreadId(7, 8),
                                   {Source.BUNDLE: CpusetReport(CpuSet.parse("2-3"), 17)})}, suspended=True,
                                   vmm=ThreadId(5, 6))}),
    {SandboxId("pod-a"): Previous(CpuSet.parse("2-3"), {VcpuId(1): (CpuSet.parse("2"), ContainerId("main")),
                                                        VcpuId(0): (None, None)})},
    {SandboxId("pod-b"): OriginalMasks({ThreadId(5, 6): ProcessMasks(CpuSet.parse("0-7"), {
        ThreadId(9, 10): CpuSet.parse("1")})})})
