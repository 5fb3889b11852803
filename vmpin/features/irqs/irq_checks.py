"""The checks of interrupts: whether exclusive CPUs take them, and whether irqbalance may move more there. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError, union
from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import number_of
from vmpin.features.common.finding import Check, CheckResult, ok, several, unknown, warn

_SHOWN = 20


def irqs(facts: NodeFacts) -> CheckResult:
    """Judge the interrupts of devices by the CPUs that their controllers chose."""
    found, exclusive, entry = facts.of_features["irqs"], _closed(facts), _entry(facts)
    if found["trouble"]:
        return unknown(found["trouble"])
    if not exclusive:
        return ok("no CPU is exclusive")
    there = [(number, name, CpuSet.parse(chosen) & exclusive, fixed)
             for number, name, _, chosen, fixed in found["interrupts"] if number not in entry.get("claimed", ())
             and not CpuSet.parse(chosen).isdisjoint(exclusive)]
    texts = [f"IRQ {number} ({name}) on exclusive CPUs {cpus}{': its mask is fixed' * fixed}"
             for number, name, cpus, fixed in there]
    evidence = [*texts[:_SHOWN], *([f"and {len(texts) - _SHOWN} more"] if texts[_SHOWN:] else []),
                *_moved(facts), *_kernel_work(facts, any(fixed for *_, fixed in there))]
    movable = [f"IRQ {number} ({name})" for number, name, _, fixed in there if not fixed]
    if not movable:
        return ok("no interrupt of a device that can be moved is on an exclusive CPU", *evidence)
    return warn(f"{number_of(len(movable), 'interrupt')} of devices on exclusive CPUs: {several(movable)}",
                "irqs.policy: away moves them (docs/irqs.md); or irqaffinity= on the kernel's command line, and their "
                "smp_affinity_list", *evidence)


def _moved(facts: NodeFacts) -> list[str]:
    """Describe what the watcher has moved, and what not."""
    entry = _entry(facts)
    if not entry or entry["policy"] != "away":
        return []
    count = len(entry["claimed"])
    why = dict.fromkeys(kept["why"] for kept in entry["kept"])
    return [f"the watcher has set the masks of {number_of(entry['moved'], 'interrupt')}, with the default mask",
            *([f"{number_of(count, 'interrupt')} on CPUs of pods that claim them"] if count else []),
            *(f"{sum(kept['why'] == reason for kept in entry['kept'])} stay: {reason}" for reason in why),
            *([f"and {entry['more_kept']} more stay"] if entry["more_kept"] else [])]


def _kernel_work(facts: NodeFacts, fixed: bool) -> list[str]:
    """Describe what vmpin does not move, and how to."""
    exclusive, lines = facts.exclusive, []
    if fixed and exclusive - _on_command_line(facts, "isolcpus", "managed_irq"):
        lines.append(f"isolcpus=managed_irq,{exclusive} on the kernel's command line keeps interrupts with fixed "
                     "masks off, as far as their queues have other CPUs")
    workqueues = CpuSet.parse(facts.of_features["irqs"]["workqueues"])
    if not workqueues.isdisjoint(exclusive):
        lines.append("unbound kernel workers may use exclusive CPUs: write the mask of the other CPUs to "
                     "/sys/devices/virtual/workqueue/cpumask")
    if exclusive - _on_command_line(facts, "rcu_nocbs") - _on_command_line(facts, "nohz_full"):
        lines.append(f"RCU's callbacks run where they arise: rcu_nocbs={exclusive} on the kernel's command line moves "
                     "them to threads")
    return lines


def _on_command_line(facts: NodeFacts, parameter: str, flag: str = "") -> CpuSet:
    """The CPUs that a parameter of the kernel's command line has, of isolcpus with this flag. A list that the kernel
    alone can read (`all`, `1-N`) counts as all."""
    cpus = EMPTY
    for text in facts.kernel.parameters:
        name, _, value = text.partition("=")
        *flags, listed = re.split(r"(?<=[a-z]),", value)
        if name == parameter and (not flag or flag in flags):
            try:
                cpus |= CpuSet.parse(listed)
            except CpuSetError:
                cpus |= facts.exclusive
    return cpus


def irqbalance(facts: NodeFacts) -> CheckResult:
    """Judge whether irqbalance may move interrupts to exclusive CPUs."""
    running = [daemon for daemon in facts.daemons if daemon.kind == "irqbalance"]
    banned = facts.of_features["irqs"]["banned"]
    evidence = [f"irqbalance pid {daemon.pid}" for daemon in running]
    evidence += [f"{name}{'=' if ': ' in name else ' leaves alone CPUs '}{value}" for name, value in banned.items()]
    if not running:
        return ok("irqbalance does not run", *evidence) if facts.sees else unknown(
            "the node's processes are invisible here", *evidence, remedy="run this as root; in a pod: hostPID: true")
    asked = [cpus for name, cpus in banned.items() if ": " not in name]
    # What an irqbalance answers counts; without an answer, its configuration.
    left_alone = union(map(CpuSet.parse, asked or [facts.of_features["irqs"]["alone"]]))
    open_to = _closed(facts) - left_alone
    if open_to:
        # A list of one's own ends what irqbalance leaves alone by itself (cputree.c: setup_banned_cpus).
        listed = facts.exclusive | left_alone | CpuSet.parse(facts.of_features["irqs"]["alone"])
        return warn(f"irqbalance may move interrupts to exclusive CPUs {open_to}",
                    f"irqs.policy: away has it leave them alone over its socket; or IRQBALANCE_BANNED_CPULIST="
                    f"{listed} in /etc/default/irqbalance (or /etc/sysconfig), and restart it", *evidence)
    return ok("irqbalance runs, and leaves exclusive CPUs alone", *evidence)


def _entry(facts: NodeFacts) -> Mapping[str, Any]:
    """The feature's member of the status; empty without."""
    return facts.status.get("features", {}).get("irqs") or {}


def _closed(facts: NodeFacts) -> CpuSet:
    """The exclusive CPUs that are to take no interrupts: without those that annotations open."""
    return facts.exclusive - CpuSet.parse(_entry(facts).get("open", ""))


CHECKS = (Check("irqs", "interrupts of devices on exclusive CPUs, and the kernel's other work there",
                  irqs),
            Check("irqbalance", "whether it may move interrupts to exclusive CPUs", irqbalance))
