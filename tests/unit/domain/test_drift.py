"""Why a thread drifted, as far as the facts show it."""

from __future__ import annotations

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.drift import NO_THREADS, VCPUS_ONLY, Cause, DriftFacts, MaskRepair, Rival, explain_drift
from vmpin.domain.model import ThreadRole

ONE, TWO, ALL = CpuSet((1,)), CpuSet((2,)), CpuSet(range(4))
TUNED = Rival(Cause.TUNED, "tuned runs")
KATA = Rival(Cause.KATA, "Kata pins", VCPUS_ONLY)
IRQ = Rival(Cause.IRQBALANCE, "irqbalance runs", NO_THREADS)


def moved(role: ThreadRole = ThreadRole.VCPU, wanted: CpuSet = ONE, shown: CpuSet = ONE, actual: CpuSet = ALL,
          left: CpuSet | None = ONE) -> MaskRepair:
    return MaskRepair(role, wanted, shown, actual, left)


@pytest.mark.parametrize(("change", "facts", "cause"), [
    (moved(), DriftFacts(), Cause.UNKNOWN),
    (moved(), DriftFacts(rivals=(TUNED,)), Cause.TUNED),
    (moved(), DriftFacts(rivals=(IRQ,)), Cause.UNKNOWN),  # it moves interrupts, and no threads
    (moved(), DriftFacts(rivals=(IRQ, KATA, TUNED)), Cause.KATA),
    (moved(ThreadRole.IOTHREAD), DriftFacts(rivals=(KATA, TUNED)), Cause.TUNED),  # Kata knows vCPUs alone
    # A CPU of its own was away; another's is no reason.
    (moved(), DriftFacts(replugged=ONE, rivals=(TUNED,)), Cause.HOTPLUG),
    (moved(), DriftFacts(replugged=TWO, rivals=(TUNED,)), Cause.TUNED),
    # The cpuset cgroup has less than before, or nothing of it.
    (moved(wanted=ALL, shown=ALL, actual=TWO, left=TWO), DriftFacts(rivals=(TUNED,)), Cause.CPUSET),
    (moved(actual=TWO, left=None), DriftFacts(rivals=(TUNED,), limits={ThreadRole.VCPU: TWO}), Cause.CPUSET),
    # Refused, and not by the cgroup: for want of a right.
    (moved(actual=TWO, left=None), DriftFacts(rivals=(TUNED,)), Cause.TUNED),
    (moved(actual=TWO, left=None), DriftFacts(rivals=(TUNED,), limits={ThreadRole.VCPU: ALL}), Cause.TUNED),
    # It never had more: that is no news.
    (moved(wanted=ALL, shown=TWO, actual=ONE, left=TWO), DriftFacts(rivals=(TUNED,)), Cause.TUNED),
    # Before Linux 6.2 a write forgets the mask; a kernel that remembers it gives it back by itself.
    (moved(), DriftFacts(remembers=False, cgroup="written", rivals=(TUNED,), limits={ThreadRole.VCPU: ALL}),
     Cause.CPUSET),
    (moved(), DriftFacts(remembers=True, cgroup="written", rivals=(TUNED,), limits={ThreadRole.VCPU: ALL}),
     Cause.TUNED),
    (moved(wanted=ALL, shown=ALL, actual=TWO, left=ALL),
     DriftFacts(cgroup="written", rivals=(TUNED,), limits={ThreadRole.VCPU: TWO}), Cause.CPUSET),
    # It was written, and has more than the thread was found on: another hand narrowed the mask.
    (moved(wanted=ALL, shown=ALL, actual=TWO, left=ALL),
     DriftFacts(cgroup="written", rivals=(TUNED,), limits={ThreadRole.VCPU: ALL}), Cause.TUNED),
    (moved(actual=TWO), DriftFacts(remembers=False, cgroup="written", limits={ThreadRole.VCPU: ALL}), Cause.UNKNOWN),
    # It was written, and what it has is not known.
    (moved(), DriftFacts(remembers=False, cgroup="written"), Cause.UNKNOWN),
    (moved(), DriftFacts(remembers=False, rivals=(TUNED,)), Cause.TUNED),
])
def test_the_cause_is_what_the_facts_allow_to_say(change: MaskRepair, facts: DriftFacts, cause: Cause) -> None:
    found = explain_drift(change, facts)
    assert found.cause is cause
    assert found.evidence


def test_the_evidence_says_what_was_seen() -> None:
    assert explain_drift(moved(), DriftFacts(replugged=ALL)).evidence == "CPUs 1 went off or came back"
    assert explain_drift(moved(wanted=ALL, shown=ALL, left=TWO), DriftFacts()).evidence == (
        "of CPUs 0-3 its cpuset cgroup leaves 2")
    assert explain_drift(moved(left=None), DriftFacts(limits={ThreadRole.VCPU: TWO})).evidence == (
        "of CPUs 1 its cpuset cgroup leaves none of them")
    assert explain_drift(moved(), DriftFacts(rivals=(TUNED,))).evidence == "tuned runs"
