"""The doctor's checks: facts in, a level, a sentence, evidence and a remedy out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from healthy_node import containerd, facts, handler, kata, status, verdict

from vmpin.cpuset import CpuSet
from vmpin.domain.facts import (
    CpuFacts,
    Daemon,
    FoundSetting,
    Kernel,
    KubeletConfig,
    NodeFacts,
    Rights,
    Tuned,
    VmProcess,
    WatcherFacts,
)
from vmpin.features.common.finding import CheckResult, Finding, Level, several
from vmpin.features.doctor.checks import all_checks, examine
from vmpin.features.doctor.service_checks import WAITING
from vmpin.features.doctor.verbs.doctor import text
from vmpin.guests import guest_session as words


def test_nothing_is_wrong_on_a_node_where_nothing_is_wrong() -> None:
    """And no check fails for a node of which nothing at all is known."""
    found = {finding.check: finding.verdict.level for finding in examine(facts(kata=(kata(),), engines=(
        containerd(handler()),)))}
    assert {name for name, level in found.items() if level is not Level.OK} == set()
    levels = [finding.verdict.level for finding in examine(NodeFacts(Rights("this command", 1)))]
    assert Level.UNKNOWN in levels


def test_a_mask_setter_that_is_seen_counts_though_not_everything_is() -> None:
    runs = facts(sees=False, daemons=(Daemon("numad", "numad", 4),))
    assert verdict("pinners", runs).level is Level.WARN
    moves = facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", ("/t.conf",), {
        "isolated_cores": FoundSetting("2-3", "/t.conf")}, ("q",)))
    assert verdict("tuned", moves).level is Level.BAD
    pins = kata(runtime__enable_vcpus_pinning=True)
    unread = containerd(trouble=("/etc/x: Permission denied",))
    assert verdict("kata-pinning", facts(kata=(pins,), engines=(unread,))).level is Level.BAD


def test_nri_that_the_watcher_lacks_is_worse_when_it_was_asked_for() -> None:
    lost = status()
    lost["sources"]["nri"] = {"state": "not connected: refused", "events": 0, "last_error": "invalid plugin events"}
    assert verdict("nri", facts(status=lost)).level is Level.WARN
    judged = verdict("nri", facts(status=lost, settings={"watch.nri": "on"}))
    assert judged.level is Level.BAD
    assert any("invalid plugin events" in line for line in judged.evidence)


def test_nri_at_another_socket_is_named() -> None:
    elsewhere = containerd(nri_socket="/run/x/nri.sock")
    judged = verdict("nri", facts(status={}, nri_socket=False, engines=(elsewhere,)))
    assert "set paths.nri" in judged.remedy
    assert "/run/x/nri.sock" in judged.remedy


def test_a_core_with_two_owners_is_named_only_where_the_policy_allows_it() -> None:
    owners = [{"sandbox": "a", "container": "x", "cpus": "2"}, {"sandbox": "b", "container": "y", "cpus": "3"}]
    split = facts(cpus=CpuFacts(CpuSet.parse("0-3"), cores=(CpuSet.parse("0-1"), CpuSet.parse("2-3"))),
                  status=status(owners=owners))
    judged = verdict("kubelet-options", split)
    assert judged.level is Level.WARN
    assert "core 2-3: a/x, b/y" in judged.evidence
    for value in ("true", "1"):
        options = {"cpuManagerPolicyOptions": FoundSetting({"full-pcpus-only": value}, "/c.yaml")}
        assert verdict("kubelet-options", replace(split, kubelet=KubeletConfig(7, options))).level is Level.OK
    # The kubelet does not start with both.
    options = {"cpuManagerPolicyOptions": FoundSetting({"distribute-cpus-across-cores": "true"}, "/c.yaml")}
    spread = verdict("kubelet-options", replace(split, kubelet=KubeletConfig(7, options)))
    assert 'full-pcpus-only: "true" in place of distribute-cpus-across-cores' in spread.remedy
    one = status(owners=[{**owners[0], "cpus": "2-3"}])
    assert verdict("kubelet-options", replace(split, status=one)).level is Level.OK


def test_katas_pinning_names_the_file_the_handler_and_who_may_switch_it_on() -> None:
    pinning = kata(readers=("kata-qemu", "kata-clh"), runtime__enable_vcpus_pinning=True)
    passing = handler(annotations=("io.katacontainers.*",))
    judged = verdict("kata-pinning", facts(kata=(pinning,), engines=(containerd(passing),)))
    assert judged.evidence[0] == "/k.toml: runtime.enable_vcpus_pinning = true (handlers kata-qemu, kata-clh)"
    assert "handler kata-qemu passes the annotation" in judged.evidence[1]
    closed = facts(kata=(kata(),), engines=(containerd(handler(annotations=("other/*",))),))
    assert verdict("kata-pinning", closed).evidence == ()
    crio = facts(kata=(kata(),), engines=(containerd(handler(annotations=None)),))
    assert "can enable it" in verdict("kata-pinning", crio).evidence[0]


@pytest.mark.parametrize(("scheduler", "level"), [
    ({"isolated_cores": "2-3"}, "bad"),
    ({"group.ksoftirqd": "0:f:2:*:^ksoftirqd"}, "ok"), ({"group.vm": "0:f:2:1:qemu"}, "bad"),
    ({"isolated_cores": "2-3", "ps_blacklist": ".*pmd.*;.*qemu-kvm.*"}, "bad"),
    ({"isolated_cores": "2-3", "ps_blacklist": ".*pmd.*;.*qemu-system.*"}, "warn"),  # not virtiofsd, nor the shim
    ({"isolated_cores": "2-3", "ps_blacklist": "(;.*qemu.*;virtiofsd;-shim"}, "ok"),  # one pattern is none
    ({"isolated_cores": "2-3", "ps_blacklist": "("}, "bad"),
    ({"isolated_cores": "2-3", "cgroup_ps_blacklist": "/kubepods\\.slice/"}, "warn"),
])
def test_tuned_is_judged_by_what_its_profile_says_of_vmms(scheduler: dict[str, str], level: str) -> None:
    found = facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", ("/t.conf",), {
        key: FoundSetting(value, "/t.conf") for key, value in scheduler.items()}))
    assert verdict("tuned", found).level == level


@pytest.mark.parametrize(("changes", "level"), [
    ({"read_only": True}, "bad"), ({"mode": 0o777}, "bad"), ({"mode": 0o775}, "bad"), ({"uid": 1000}, "bad"),
    ({"free": 4096}, "warn"), ({"inodes": 3}, "warn"), ({"writable": False}, "unknown"),
    ({"spooled": 3, "oldest": 61.0}, "warn"), ({"spooled": 3, "oldest": 1.0}, "ok"), ({}, "ok"),
])
def test_the_run_directory_is_looked_at(changes: dict[str, Any], level: str) -> None:
    good = facts()
    judged = verdict("run-directory", replace(good, run=replace(good.run, **changes)))
    assert judged.level == level, judged


def test_old_messages_in_the_spool_are_right_where_no_watcher_runs() -> None:
    found = facts(watcher=WatcherFacts())
    assert verdict("run-directory", replace(found, run=replace(found.run, spooled=3, oldest=999.0))).level is Level.OK


@pytest.mark.parametrize(("version", "words"), [
    ((5, 15), "kernel threads beside"), ((6, 3), "kernel threads beside"), ((6, 4), "are threads of the VMM (since"),
    ((6, 12), "vmpin finds both"), ((7, 0), "vmpin finds both")])
def test_where_vhost_workers_live_follows_from_the_version(version: tuple[int, int], words: str) -> None:
    judged = verdict("kernel", facts(kernel=Kernel("x", version)))
    assert any(words in line for line in judged.evidence)


@pytest.mark.parametrize("document", [
    {"node": {}, "sandboxes": [{}], "sources": {}}, {"node": 3}, {"sandboxes": None},
    {"node": {"exclusive": "x", "shared_pool": ""}, "sandboxes": [{"id": "a", "threads": 7}]}])
def test_the_status_of_another_version_costs_the_checks_that_need_it_alone(document: dict[str, Any]) -> None:
    found = {finding.check: finding.verdict for finding in examine(facts(status=document))}
    assert found["sandboxes"].level is Level.UNKNOWN
    assert "same version" in found["sandboxes"].remedy
    assert found["privileges"].level is found["state-file"].level is Level.OK


@pytest.mark.parametrize(("names", "chosen"), [
    ((), [check.name for check in all_checks()]), (("kata",), ["kata", "kata-pinning", "kata-vcpus", "kata-cgroup",
                                                          "kata-guest"]),
    (("kubelet-options", "nri"), ["kubelet-options", "nri"]), (("kat",), [])])
def test_checks_are_chosen_by_name_or_its_beginning(names: tuple[str, ...], chosen: list[str]) -> None:
    assert [finding.check for finding in examine(facts(), names)] == chosen


def test_names_of_checks_are_distinguished() -> None:
    names = [check.name for check in all_checks()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)


def test_the_manual_has_every_check_and_no_other() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text().partition("## The checks")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", manual, re.MULTILINE) == [check.name for check in all_checks()]


def test_several_names_are_some_and_a_number() -> None:
    assert (several(["a"]), several("abc"), several("abcde")) == ("a", "a, b, c", "a, b, c and 2 more")


def test_lines_are_folded_under_themselves_and_steer_no_terminal() -> None:
    judged = facts(status=status(collisions=[{"cpu": 2, "what": "\x1b[2J" + "word " * 40}]))
    lines = ["".join(word for word, _ in line) for line in text(examine(judged, ["collisions"]), False, 60)]
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in "".join(lines)
    assert lines[0].startswith("bad     collisions  1 exclusive CPU is open")
    assert lines[1].startswith("            CPU 2: ")
    assert lines[2].startswith("            word ")
    assert lines[-1] == "1 bad"
    assert any(line.startswith("          → `vmpin status SANDBOX") for line in lines)
    unfolded = ["".join(word for word, _ in line) for line in text(examine(judged, ["collisions"]), False)]
    assert max(map(len, unfolded)) > 150


def test_the_text_ends_with_what_is_bad_and_the_numbers() -> None:
    levels = [Level.BAD, Level.OK, Level.WARN, Level.UNKNOWN, Level.BAD, Level.OK]
    judged = [Finding(f"check-{at}", CheckResult(level, "what", remedy="do" if level is Level.BAD else ""))
              for at, level in enumerate(levels)]
    lines = ["".join(word for word, _ in line).split()[:2] for line in text(judged, False)]
    assert lines == [["ok", "check-1"], ["ok", "check-5"], ["unknown", "check-3"], ["warn", "check-2"],
                     ["bad", "check-0"], ["→", "do"], ["bad", "check-4"], ["→", "do"], ["2", "ok,"]]


def test_a_guest_that_is_waited_for_is_called_as_its_session_calls_it() -> None:
    assert WAITING == words.WAITING


IN_POD, OUTSIDE = "0::/kubepods.slice/kubepods-pod1.slice/crio-a.scope", "0::/system.slice/containerd.service"


@pytest.mark.parametrize(("name", "helper", "cgroups", "level"), [
    ("qemu-kvm", "virtiofsd", OUTSIDE, "ok"), ("qemu-system-x86", "virtiofsd", OUTSIDE, "bad"),
    ("qemu-kvm", "nydusd", OUTSIDE, "warn"), ("qemu-kvm", "containerd-shim", OUTSIDE, "warn"),
    ("qemu-kvm", "vhost-7", OUTSIDE, "warn"),
    # OpenShift's profile: the pods' cgroups
    ("qemu-kvm", "containerd-shim", IN_POD, "ok"), ("qemu-system-x86", "nydusd", IN_POD, "bad")])
def test_tuned_is_judged_by_the_processes_of_the_vms_that_run(name: str, helper: str, cgroups: str,
                                                              level: str) -> None:
    """RHEL's VMM is qemu-kvm, which tuned's own profiles leave alone, but not what serves the VM beside it."""
    scheduler = {"isolated_cores": "1", "ps_blacklist": ".*qemu-kvm.*;^virtiofsd",
                 "cgroup_ps_blacklist": "/kubepods\\.slice/"}
    found = facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", (), {
        key: FoundSetting(value, "/t") for key, value in scheduler.items()}), vm_processes=(
            VmProcess(name, OUTSIDE, True), VmProcess(helper, cgroups, False)))
    assert verdict("tuned", found).level == level


@pytest.mark.parametrize(("pattern", "level"), [
    ("/kubepods\\.slice/", "ok"), ("(?i)/KUBEPODS", "warn"), ("^9:", "bad")])
def test_the_cgroups_that_tuned_spares_are_compared_with_the_vms(pattern: str, level: str) -> None:
    found = facts(daemons=(Daemon("tuned", "tuned", 4),), vm_processes=(VmProcess("qemu-system-x86", IN_POD, True),),
                  tuned=Tuned("p", (), {"isolated_cores": FoundSetting("1", "/t"),
                                        "group.vm": FoundSetting("0:f:2:1:qemu", "/t"),
                                        "cgroup_ps_blacklist": FoundSetting(pattern, "/t")}))
    assert verdict("tuned", found).level == level


def test_the_remedy_for_tuned_spares_every_process_of_a_vm() -> None:
    patterns = re.search(r"ps_blacklist=(\S+)", verdict("tuned", facts(daemons=(Daemon("tuned", "tuned", 4),),
                         tuned=Tuned("p", (), {"isolated_cores": FoundSetting("1", "/t")}))).remedy)
    assert patterns is not None
    names = ("qemu-system-x86", "qemu-kvm", "cloud-hyperviso", "firecracker", "stratovirt", "openvmm", "virtiofsd",
             "nydusd", "containerd-shim", "vhost-7", "kvm-pit/7", "kvm-nx-lpage-recovery-7")
    assert [name for name in names if not any(re.search(pattern, name) for pattern in patterns[1].split(";"))] == []


@pytest.mark.parametrize("own", [".*pmd.*;^DPDK", ".*pmd.*;^DPDK;", r"pmd\;", ";".join(["pmd"] * 30)])
def test_the_remedy_for_tuned_keeps_what_the_profile_spares(own: str) -> None:
    """cpu-partitioning spares OVS-DPDK's threads, which would be moved if a profile replaced its list. With the remedy
    nothing is left to mend, however long the profile's own list is, and however it ends."""
    def spares(patterns: str) -> NodeFacts:
        return facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", (), {
            "isolated_cores": FoundSetting("1", "/t"), "ps_blacklist": FoundSetting(patterns, "/t")}))

    remedy = re.search(r"ps_blacklist=(\S+)", verdict("tuned", spares(own)).remedy)
    assert remedy is not None
    assert remedy[1].endswith(f";{own}")
    assert verdict("tuned", spares(remedy[1])).level == "ok"


@pytest.mark.parametrize(("isolated", "listed"), [("1", True), ("", False)])
def test_a_list_of_names_is_no_remedy_for_tuneds_groups(isolated: str, listed: bool) -> None:
    found = facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", (), {
        "isolated_cores": FoundSetting(isolated, "/t"), "group.vms": FoundSetting("0:*:*:2-3:qemu", "/t")}))
    judged = verdict("tuned", found)
    assert judged.level == "bad"
    assert ("ps_blacklist=" in judged.remedy) is listed
    assert "group.vms with a pattern that no VMM's command line has" in judged.remedy


def test_tuned_without_a_profile_is_right() -> None:
    assert verdict("tuned", facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned(off=True))).level == "ok"
