"""The doctor's checks of interrupts and of irqbalance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from healthy_node import facts, status, verdict
from irq_tree import IrqTree
from trees import make_tree, stat_line

from vmpin.config.loading import load
from vmpin.domain.facts import Daemon, Kernel
from vmpin.features.common.finding import CheckResult, Level
from vmpin.features.irqs.irq_facts import irq_facts

RUNS = (Daemon("irqbalance", "irqbalance", 4),)


def found(*interrupts: list[Any], **more: Any) -> dict[str, Any]:
    return {"interrupts": list(interrupts), "trouble": "", "banned": {}, "workqueues": "", "alone": "", **more}


def judged(name: str, interrupts: dict[str, Any], **changes: Any) -> CheckResult:
    return verdict(name, replace(facts(), of_features={"irqs": interrupts}, **changes))


def test_movable_interrupts_on_exclusive_cpus_are_warned_of() -> None:
    result = judged("irqs", found([142, "eth0", "0-7", "3", False], [7, "nvme0q3", "3", "3", True],
                                  [8, "ttyS0", "0-7", "1", False]))
    assert (result.level, result.what) == (Level.WARN, "1 interrupt of devices on exclusive CPUs: IRQ 142 (eth0)")
    assert result.remedy.startswith("irqs.policy: away moves them")
    assert result.evidence[:2] == ("IRQ 142 (eth0) on exclusive CPUs 3",
                                   "IRQ 7 (nvme0q3) on exclusive CPUs 3: its mask is fixed")
    assert any("isolcpus=managed_irq,2-3" in line for line in result.evidence)


def test_fixed_interrupts_alone_are_no_fault_and_kernel_work_is_advice() -> None:
    result = judged("irqs", found([7, "nvme0q3", "3", "3", True], workqueues="0-7"))
    assert result.level is Level.OK
    assert ["managed_irq" in result.evidence[1], "workqueue/cpumask" in result.evidence[2],
            "rcu_nocbs=2-3" in result.evidence[3]] == [True] * 3
    quiet = judged("irqs", found(workqueues="0-1"), kernel=Kernel("6.12", (6, 12), ("rcu_nocbs=2-3",)))
    assert (quiet.level, quiet.evidence) == (Level.OK, ())
    assert judged("irqs", found(trouble="/proc/interrupts: no")).level is Level.UNKNOWN


@pytest.mark.parametrize(("parameters", "managed", "rcu"), [
    (("isolcpus=managed_irq,domain,2-3", "rcu_nocbs=0-7"), False, False),
    (("isolcpus=domain,2-3", "rcu_nocbs=1"), True, True), (("isolcpus=managed_irq,2", "nohz_full=3"), True, True),
    (("isolcpus=nohz,managed_irq,1-N", "rcu_nocbs=all"), False, False),
    (("rcu_nocbs=2", "nohz_full=3"), True, False), (("isolcpus=2-3",), True, True)])
def test_what_the_command_line_has_for_these_cpus_is_no_advice(
        parameters: tuple[str, ...], managed: bool, rcu: bool) -> None:
    lines = judged("irqs", found([7, "nvme0q1", "3", "3", True]), kernel=Kernel("6.12", (6, 12), parameters)).evidence
    assert any(line.startswith("isolcpus=managed_irq,2-3 on the kernel's command line") for line in lines) is managed
    assert any("rcu_nocbs=2-3 on the kernel's command line" in line for line in lines) is rcu


def test_what_the_watcher_has_moved_and_what_stays_is_evidence() -> None:
    entry = {"policy": "away", "moved": 3, "kept": [{"irq": 7, "name": "nvme0q3", "cpus": "3", "why": "managed"}],
             "more_kept": 2, "claimed": [142], "open": "2"}
    result = judged("irqs", found(), status=status() | {"features": {"irqs": entry}})
    assert result.evidence[:4] == (
        "the watcher has set the masks of 3 interrupts, with the default mask",
        "1 interrupt on CPUs of pods that claim them", "1 stay: managed", "and 2 more stay")


def test_interrupts_that_annotations_let_come_are_no_fault() -> None:
    """A pod's housekeeping CPU, and an interrupt that a pod claims."""
    entry = {"policy": "away", "moved": 0, "kept": [], "more_kept": 0, "claimed": [142], "open": "2"}
    let: dict[str, Any] = {"status": status() | {"features": {"irqs": entry}}}
    there = found([142, "eth0", "3", "3", False], [8, "ttyS0", "2", "2", False])
    assert judged("irqs", there, **let).level is Level.OK
    assert judged("irqs", there).level is Level.WARN
    assert judged("irqbalance", found(banned={"/run/irqbalance/irqbalance4.sock": "3"}), daemons=RUNS,
                  **let).level is Level.OK


@pytest.mark.parametrize(("alone", "banned", "listed"), [
    ("", {}, "2-3"), ("6-7", {}, "2-3,6-7"), ("6-7", {"/run/irqbalance/irqbalance4.sock": "5"}, "2-3,5-7")])
def test_irqbalance_without_a_ban_list_is_warned_of(alone: str, banned: dict[str, str], listed: str) -> None:
    """A list replaces what irqbalance leaves alone by itself, such as isolated CPUs: the remedy has these as well."""
    result = judged("irqbalance", found(alone=alone, banned=banned), daemons=RUNS)
    assert (result.level, result.what) == (Level.WARN, "irqbalance may move interrupts to exclusive CPUs 2-3")
    assert f"IRQBALANCE_BANNED_CPULIST={listed} in /etc/default/irqbalance" in result.remedy


@pytest.mark.parametrize(("alone", "banned", "level"), [
    ("2-7", {}, "ok"), ("2", {}, "warn"), ("", {"/run/irqbalance/irqbalance4.sock": "2-3"}, "ok"),
    ("2-7", {"/run/irqbalance/irqbalance4.sock": ""}, "warn")])
def test_what_irqbalance_leaves_alone(alone: str, banned: dict[str, str], level: str) -> None:
    assert judged("irqbalance", found(banned=banned, alone=alone), daemons=RUNS).level == level


def test_an_irqbalance_that_does_not_run_is_well() -> None:
    assert judged("irqbalance", found()).what == "irqbalance does not run"
    assert judged("irqbalance", found(), sees=False).level is Level.UNKNOWN


@pytest.mark.parametrize(("lines", "alone"), [
    (["#IRQBALANCE_BANNED_CPULIST=9"], "2-3,5"), (["IRQBALANCE_BANNED_CPULIST=", "IRQBALANCE_BANNED_CPUS="], "2-3,5"),
    (["IRQBALANCE_BANNED_CPULIST=2-7"], "2-7"), (["IRQBALANCE_BANNED_CPULIST=x-y"], ""),
    # "Banned CPUs: 00000002" with irqbalance 1.9.2, after it has called the mask discarded
    (["IRQBALANCE_BANNED_CPUS=00000000,00000002", "IRQBALANCE_BANNED_CPULIST=4"], "1"),
    (["IRQBALANCE_BANNED_CPUS=zz"], "")])
def test_a_configured_list_or_mask_replaces_the_isolated_cpus(tmp_path: Path, lines: list[str], alone: str) -> None:
    IrqTree(tmp_path)
    make_tree(tmp_path, "sys/devices/system/cpu/isolated = 2-3\nsys/devices/system/cpu/nohz_full = 5\n"
              "etc/default/irqbalance = " + "\\n".join(lines) + "\n")
    config = load(None, {}, {"paths.proc": str(tmp_path / "proc"), "paths.sys": str(tmp_path / "sys")})
    assert irq_facts(config, tmp_path)["alone"] == alone


@pytest.mark.parametrize(("environ", "alone"), [
    (b"LANG=C\0IRQBALANCE_BANNED_CPULIST=4-7\0", "4-7"), (b"LANG=C\0", "2-3"), (None, "0")])
def test_a_running_irqbalance_has_what_its_unit_gave_it(tmp_path: Path, environ: bytes | None, alone: str) -> None:
    """By Environment= of a drop-in, or a file of any name; /etc/default was written since. Only root may read it."""
    IrqTree(tmp_path)
    make_tree(tmp_path, f"proc/4/stat = {stat_line(4, 'irqbalance')}\nsys/devices/system/cpu/isolated = 2-3\n"
              "etc/default/irqbalance = IRQBALANCE_BANNED_CPULIST=0\n")
    (tmp_path / "proc/4/cmdline").write_bytes(b"/usr/sbin/irqbalance\0--foreground\0")
    if environ is None:
        (tmp_path / "proc/4/environ").mkdir()
    else:
        (tmp_path / "proc/4/environ").write_bytes(environ)
    config = load(None, {}, {"paths.proc": str(tmp_path / "proc"), "paths.sys": str(tmp_path / "sys")})
    assert irq_facts(config, tmp_path)["alone"] == alone


def test_facts_are_read_of_the_node(tmp_path: Path) -> None:
    tree = IrqTree(tmp_path)
    tree.add(142, "eth0", "2-3")
    tree.add(7, "nvme0q1", "5", fixed=True)
    make_tree(tmp_path, "sys/devices/virtual/workqueue/cpumask = 0f\n"
              "etc/default/irqbalance = #IRQBALANCE_BANNED_CPULIST=9\\nIRQBALANCE_BANNED_CPULIST=\"2-3\" # no\n")
    config = load(None, {}, {"paths.proc": str(tmp_path / "proc"), "paths.sys": str(tmp_path / "sys")})
    assert irq_facts(config, tmp_path) == {
        "interrupts": [[142, "eth0", "2-3", "2", False], [7, "nvme0q1", "5", "5", True]], "trouble": "",
        "banned": {"/etc/default/irqbalance: IRQBALANCE_BANNED_CPULIST": "2-3"}, "workqueues": "0-3",
        "alone": "2-3"}
    tree.set(142, "4")
    assert irq_facts(config, tmp_path)["interrupts"][0] == [142, "eth0", "4", "4", False], "it has not come since"
    (tmp_path / "proc/interrupts").unlink()
    assert irq_facts(config, tmp_path)["trouble"].endswith("interrupts: No such file or directory")
