"""The doctor's check of vCPUs' scheduling classes."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from healthy_node import facts, verdict
from trees import make_tree

from vmpin.config.loading import load
from vmpin.domain.terminal import as_written
from vmpin.features.common.finding import CheckResult, Level
from vmpin.features.scheduling import FEATURE
from vmpin.features.scheduling.scheduling_facts import restricted
from vmpin.host.files import Files

FINE: dict[str, Any] = {"unlimited": "", "groups": "", "restricted": False, "kernel": {"migration": "fifo:99"}}


def judged(status: dict[str, Any] | None = None, **found: object) -> CheckResult:
    settings = {"scheduling.vcpu_class": "fifo:1",
                "scheduling.privileged_namespaces": str(found.pop("namespaces", "")),
                "watch.nri": str(found.pop("nri", "auto")),
                "scheduling.without_throttling": as_written(found.pop("explicit", False))}
    return verdict("vcpu-class", replace(facts(settings=settings, status=status or {}),
                                         of_features={"scheduling": FINE | found}))


def status(*why: str, trouble: str = "") -> dict[str, Any]:
    return {"features": {"scheduling": {"vcpu_class": "fifo:1", "trouble": trouble, "set": 2}}, "sandboxes": [
        {"scheduling": {"vcpus": [{"vcpu": 0, "class": "other", "ok": not text, "why": text} for text in why]}}]}


def test_off_and_where_nothing_is_in_the_way_it_is_ok() -> None:
    off = verdict("vcpu-class", replace(facts(), of_features={"scheduling": {}}))
    assert (off.level, off.what) == (Level.OK, "vCPUs keep their classes (scheduling.vcpu_class: other)")
    fine = judged(status(""))
    assert fine.level is Level.OK
    assert fine.evidence == ("scheduling.vcpu_class = fifo:1", "set for 2 vCPUs",
                             "the kernel's threads migration have fifo:99")


@pytest.mark.parametrize(("found", "what", "remedy"), [
    ({"unlimited": "kernel.sched_rt_runtime_us is -1"}, "no class is set: kernel.sched_rt_runtime_us is -1", "sysctl"),
    ({"restricted": True}, "RestrictRealtime=yes", "systemctl edit vmpin"),
    ({"namespaces": "telecom", "nri": "off"}, "no pod's annotation vcpu-class.vmpin.io is read", "watch.nri"),
    ({"groups": "v1"}, "CONFIG_RT_GROUP_SCHED", "cpu.rt_runtime_us"),
    ({"status": status(trouble="No space left on device")}, "No space left on device", "log"),
    ({"status": status("", "it has the class deadline")}, "it has the class deadline", "--explain")])
def test_what_keeps_vcpus_from_having_their_class_is_warned_of(found: dict[str, Any], what: str, remedy: str) -> None:
    result = judged(**found)
    assert result.level is Level.WARN
    assert what in result.what
    assert remedy in result.remedy


def test_what_is_explicit_or_works_all_the_same_is_no_warning() -> None:
    assert judged(unlimited="kernel.sched_rt_runtime_us is -1", explicit=True).level is Level.OK
    assert judged(status(""), groups="v1").level is Level.OK
    assert judged(namespaces="telecom").level is Level.OK
    assert judged(nri="off").level is Level.OK


def unit(root: Path, text: str) -> bool | None:
    make_tree(root, text)
    return restricted(Files(root))


def test_the_units_last_assignment_counts_with_its_drop_ins(tmp_path: Path) -> None:
    assert unit(tmp_path, "etc/x = 1\n") is None
    assert unit(tmp_path, "usr/lib/systemd/system/vmpin.service = [Service]\\nRestrictRealtime=yes\n") is True
    assert unit(tmp_path, "etc/systemd/system/vmpin.service = [Service]\\nType=notify\n") is False
    assert unit(tmp_path, "run/systemd/system/vmpin.service.d/20-b.conf = RestrictRealtime = true\n") is True
    assert unit(tmp_path, "etc/systemd/system/vmpin.service.d/20-b.conf = RestrictRealtime=no\n") is False
    assert unit(tmp_path, "etc/systemd/system/vmpin.service.d/30-c.conf = #RestrictRealtime=yes\n") is False
    assert unit(tmp_path, "etc/systemd/system/vmpin.service.d/40-d.conf = RestrictRealtime=y\n") is True


def read(root: Path, **keys: str) -> Any:
    assert FEATURE.facts is not None
    paths = {f"paths.{name}": str(root / name) for name in ("proc", "run", "cgroup")}
    values = {f"scheduling.{key}": value for key, value in keys.items()}
    return FEATURE.facts(load(None, {}, {**paths, **values}), root)


def test_the_node_is_read_where_the_feature_is_on(tmp_path: Path) -> None:
    make_tree(tmp_path, "proc/sys/kernel/osrelease = 6.1.0-x\nboot/config-6.1.0-x = #\\nCONFIG_RT_GROUP_SCHED=y\\n#\n"
              "proc/sys/kernel/sched_rt_runtime_us = 950000\nproc/sys/kernel/sched_rt_period_us = 1000000\n")
    assert read(tmp_path) == {}
    assert read(tmp_path, vcpu_class="fifo:1") == {
        "unlimited": "", "groups": "v2", "restricted": None, "kernel": {}}
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(b"\n# CONFIG_RT_GROUP_SCHED is not set\n"))
    assert read(tmp_path, privileged_namespaces="telecom")["groups"] == ""
    (tmp_path / "proc/config.gz").write_bytes(b"no gzip")
    assert read(tmp_path, vcpu_class="rr:1")["groups"] == ""
    make_tree(tmp_path, "cgroup/cpu,cpuacct/cpu.rt_runtime_us = 950000\n")
    assert read(tmp_path, vcpu_class="rr:1")["groups"] == "v1"


def test_the_kernels_own_real_time_threads_are_among_the_facts() -> None:
    assert FEATURE.facts is not None
    kernel = FEATURE.facts(load(None, {}, {"scheduling.vcpu_class": "fifo:1"}), Path("/"))["kernel"]
    assert kernel.get("migration", "fifo:99") == "fifo:99"
