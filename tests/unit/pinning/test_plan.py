"""The difference between what was decided and what the kernel shows."""

from __future__ import annotations

import pytest

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuId, VmThread
from vmpin.domain.sandbox_placement import Placement, VcpuPlacement, Verdict
from vmpin.pinning.plan import Observed, SetAffinity, diff, needs_setting, ordered

POD = SandboxId("pod-a")
PID = 4121


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def thread(tid: int, role: ThreadRole, vcpu: int | None = None) -> VmThread:
    return VmThread(ThreadId(tid, 77), role, f"t{tid}", PID, None if vcpu is None else VcpuId(vcpu))


def placement(**others: str | None) -> Placement:
    """vCPU 0 on CPU 4, vCPU 1 left alone, the others on 4-5 unless given."""
    where: dict[ThreadRole, CpuSet | None] = {
        role: None if others.get(role.value, "") is None else cpus(others.get(role.value) or "4-5")
             for role in ThreadRole if role is not ThreadRole.VCPU}
    places = (VcpuPlacement(VcpuId(0), cpus("4")), VcpuPlacement(VcpuId(1), None))
    return Placement(POD, cpus("4-5"), Verdict.PINNED, (), places, where, {})


MAIN = thread(PID, ThreadRole.EMULATOR)
VCPU0, VCPU1, VCPU9 = (thread(PID + 1 + number, ThreadRole.VCPU, number) for number in (0, 1, 9))


@pytest.mark.parametrize(("what", "actual", "asked", "shown", "limit", "needed"), [
    ("as wanted, never set: a node that is right is left alone", "4-5", None, None, None, False),
    ("as wanted and as asked", "4-5", "4-5", "4-5", None, False),
    ("another mask, never set", "0-7", None, None, None, True),
    ("nothing shown at all (its only CPU went off, Linux 6.1)", "", None, None, None, True),
    ("drift: set once, another now", "0-7", "4-5", "4-5", None, True),
    ("equal masks hide another request", "4-5", "4-6", "4-5", None, True),
    ("what the cpuset left of it then is what it shows now", "4", "4-5", "4", None, False),
    ("the cpuset left something, and now less", "5", "4-6", "4-5", None, True),
    ("the cpuset is known to leave just this", "4", None, None, "3-4", False),
    ("the cpuset would leave more", "4", None, None, "3-5", True),
    ("the cpuset leaves nothing: it has to be tried, and said", "0", None, None, "0-3", True),
    ("another hand was between setting it and reading it back", "0-7", "4-5", "0-7", None, True),
    ("another hand was between, and left other CPUs", "0", "4-5", "0", "0-3", True),
])
def test_a_mask_is_set_when_the_request_changes_or_the_shown_mask_is_not_the_trimmed_one(
        what: str, actual: str, asked: str | None, shown: str | None, limit: str | None, needed: bool) -> None:
    seen = Observed(MAIN, cpus(actual), *(None if text is None else cpus(text) for text in (asked, shown, limit)))
    wanted = cpus("4-6") if asked == "4-6" and shown == "4-5" and actual == "5" else cpus("4-5")
    assert needs_setting(seen, wanted) is needed, what


def test_masks_as_placed_give_the_empty_plan() -> None:
    seen = [Observed(MAIN, cpus("4-5")), Observed(VCPU0, cpus("4")), Observed(VCPU1, cpus("0-7"))]
    assert diff(placement(), seen) == ()
    assert diff(placement(), []) == ()


def test_only_masks_that_differ_and_are_managed_are_set() -> None:
    vhost = thread(PID + 20, ThreadRole.VHOST)
    seen = [Observed(MAIN, cpus("4-5")), Observed(VCPU0, cpus("4-5")), Observed(VCPU1, cpus("0-7")),
            Observed(VCPU9, cpus("0-7")), Observed(vhost, cpus("0-7"))]
    assert diff(placement(vhost=None), seen) == (SetAffinity(POD, VCPU0, cpus("4"), cpus("4-5")),)


def test_operations_describe_themselves() -> None:
    assert SetAffinity(POD, VCPU0, cpus("4"), cpus("0-7")).describe() == (
        "sandbox pod-a: set vcpu 0 (thread 4122, t4122) to CPUs 4, was 0-7")
    assert SetAffinity(POD, MAIN, cpus("4-5"), EMPTY).describe() == (
        "sandbox pod-a: set emulator (thread 4121, t4121) to CPUs 4-5, was none")


def test_threads_that_get_cpus_go_last_but_for_main_threads() -> None:
    """Threads born meanwhile inherit from the main thread; CPUs are left before others are taken."""
    takes = SetAffinity(POD, VCPU0, cpus("4"), cpus("5"))
    leaves = SetAffinity(POD, VCPU1, cpus("5"), cpus("4-5"))
    first = SetAffinity(POD, MAIN, cpus("0-7"), cpus("4-5"))
    same = SetAffinity(POD, VCPU9, cpus("5"), cpus("5"))
    assert ordered([first, takes, leaves, same]) == (first, leaves, same, takes)
