"""The doctor's checks: facts in, a level, a sentence, evidence and a remedy out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vmpin.cli.doctor import text
from vmpin.config import loading as config
from vmpin.cpuset import CpuSet
from vmpin.doctor.checks import CHECKS, examine
from vmpin.doctor.finding import CheckResult, Level, several
from vmpin.doctor.service_checks import WAITING
from vmpin.domain.facts import (
    Checkpoint,
    ConnectorFacts,
    CpuFacts,
    Daemon,
    Engine,
    FoundSetting,
    Handler,
    Hook,
    KataConfig,
    KataSandboxFacts,
    Kernel,
    KubeletConfig,
    NodeFacts,
    Rights,
    RunDirectoryFacts,
    Tuned,
    WatcherFacts,
)
from vmpin.guests import agent_reports as words

ALL = frozenset(("CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_NET_ADMIN", "CAP_CHOWN"))
ROOT = Rights("the watcher", 100, 0, ALL, user_ns=True, pid_ns=True)
DEFAULTS = {key: "" if entry["value"] is None else str(entry["value"])
            for key, entry in config.load(None, {}, {}).data().items()}
ABOUT: dict[str, Any] = {"pid": 100, "version": "1.2", "uptime": 5.0, "resynced": 1.0, "resync_seconds": 10.0,
                         "passes": {}, "sources": [],
                         "config": {"policy.vcpus": {"value": "auto", "from": "default"}}}
STATIC = Checkpoint("/k/cpu_manager_state", "static", CpuSet.parse("0-1"), CpuSet.parse("2-3"), 2, 2, True)


def facts(**changes: Any) -> NodeFacts:
    """A node on which nothing is wrong, but for the changes."""
    settings = {**DEFAULTS, **changes.pop("settings", {})}
    base = NodeFacts(
        rights=ROOT, kernel=Kernel("6.12.1-x", (6, 12), schedstat=True, kvm_debugfs=True),
        cpus=CpuFacts(CpuSet.parse("0-7"), CpuSet.parse("0-7"), cores=tuple(CpuSet((cpu,)) for cpu in range(8))),
        cgroups="v2", checkpoint=STATIC,
        kubelet=KubeletConfig(7, {"cpuManagerPolicy": FoundSetting("static", "/c.yaml")}, ("/c.yaml",)),
        nri_socket=True, connector=ConnectorFacts(True),
        watcher=WatcherFacts("running", 100, "", ABOUT, "1.2", ABOUT["config"]),
        run=RunDirectoryFacts("/run/vmpin", True, 0, 0o755, "tmpfs", free=1 << 30, inodes=1 << 20, writable=True,
                         state_size=10),
        status=status(), settings=settings)
    return replace(base, **changes)


def status(*sandboxes: dict[str, Any], **node: Any) -> dict[str, Any]:
    return {"watcher": 100, "policy": {"vcpus": "auto", "spare_vcpus": "sandbox", "iothreads": "apart",
                                       "vhost": "apart", "emulator": "apart", "virtiofsd": "apart",
                                       "shim": "apart"},
            "node": {"online": "0-7", "shared_pool": "0-1", "exclusive": "2-3", "owners": [], "collisions": [],
                     "disagreements": [], **node},
            "sources": {"nri": {"state": "connected to containerd", "events": 3, "last_error": ""}, "kubelet": None},
            "sandboxes": list(sandboxes)}


def sandbox(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {"id": name, "vmm": {"type": "qemu", "pid": 9}, "mask": "2-3", "verdict": "pinned", "reasons": [],
            "found_by": "names", "cgroup": None, "guest": None, "containers": [], "threads": [], **changes}


def verdict(name: str, found: NodeFacts) -> CheckResult:
    check = next(check for check in CHECKS if check.name == name)
    return check.judge(found)


def kata(path: str = "/k.toml", runtime: str = "go", readers: tuple[str, ...] = ("kata-qemu",),
         **settings: object) -> KataConfig:
    """A configuration with `runtime.x` written as runtime__x."""
    return KataConfig(path, runtime, readers, (), {key.replace("__", "."): FoundSetting(value, path)
                                                   for key, value in settings.items()})


def handler(name: str = "kata-qemu", **changes: Any) -> Handler:
    return replace(Handler(name, "containerd", True, "/etc/containerd/config.toml", config_path="/k.toml"), **changes)


def hook(**changes: Any) -> Hook:
    return replace(Hook("/h/50.json", ("createRuntime", "createContainer", "poststart", "poststop"), "/h/vmpin-hook",
                        "/run/vmpin/hook.sock", read_by=("crio",)), **changes)


def rights(*without: str, **changes: Any) -> Rights:
    return replace(ROOT, capabilities=ALL - set(without), **changes)


def containerd(*handlers: Handler, **changes: Any) -> Engine:
    return replace(Engine("containerd", 5, ("/etc/containerd/config.toml",), True, handlers=handlers), **changes)


CRIO = Engine("crio", 7, hooks_dirs=("/usr/share/containers/oci/hooks.d",), age=100.0)


def received(age: float | None, *begun: float, uptime: float = 1000.0) -> NodeFacts:
    """A hook that CRI-O reads, the age of the last that the watcher received, and those of CRI-O's containers."""
    about = {**ABOUT, "uptime": uptime, "hooks": {"taken": 0 if age is None else 1, "age": age}}
    return facts(hooks=(hook(),), engines=(replace(CRIO, begun=begun),),
                 watcher=WatcherFacts("running", 100, "", about, "1.2", ABOUT["config"]))


def configured(its: str, its_from: str, mine: str, mine_from: str) -> NodeFacts:
    """A watcher with one value of policy.vcpus, and this command with another."""
    about = {**ABOUT, "config": {"policy.vcpus": {"value": its, "from": its_from}}}
    return facts(watcher=WatcherFacts("running", 100, "", about, "1.2",
                                 {"policy.vcpus": {"value": mine, "from": mine_from}}))


def running(passes: dict[str, int] | None = None, **sources: bool) -> NodeFacts:
    """A watcher with these sources, up or down."""
    told = [{"name": name, "up": up, "needed": name != "births", "why": ""} for name, up in sources.items()]
    return facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "sources": told, "passes": passes or {}}, "1.2",
                                 ABOUT["config"]))


def test_nothing_is_wrong_on_a_node_where_nothing_is_wrong() -> None:
    """And no check fails for a node of which nothing at all is known."""
    found = {finding.check: finding.verdict.level for finding in examine(facts(kata=(kata(),), engines=(
        containerd(handler()),)))}
    assert {name for name, level in found.items() if level is not Level.OK} == set()
    levels = [finding.verdict.level for finding in examine(NodeFacts(Rights("this command", 1)))]
    assert Level.UNKNOWN in levels


@pytest.mark.parametrize(("check", "found", "level", "says"), [
    # the machine
    ("privileges", facts(rights=rights("CAP_SYS_NICE")), "bad", "cannot set masks"),
    ("privileges", facts(rights=rights("CAP_SYS_PTRACE")), "warn", "lacks CAP_SYS_PTRACE"),
    ("privileges", facts(rights=rights("CAP_DAC_READ_SEARCH")), "warn", "lacks CAP_DAC_READ_SEARCH"),
    ("privileges", facts(rights=rights("CAP_CHOWN")), "ok", "every required"),
    ("privileges", facts(rights=rights("CAP_CHOWN"), settings={"watch.status_group": "ops"}), "warn", "CAP_CHOWN"),
    ("privileges", facts(rights=Rights("the watcher", 100)), "unknown", "cannot be read"),
    ("privileges", facts(rights=Rights("this command", 5, 1000, frozenset()), watcher=WatcherFacts()), "unknown",
     "not root"),
    ("namespaces", facts(rights=rights(pid_ns=False)), "bad", "pid namespace"),
    ("namespaces", facts(rights=rights(user_ns=False)), "bad", "user namespace"),
    ("namespaces", facts(rights=rights(user_ns=None)), "unknown", "cannot be read"),
    ("kernel", facts(kernel=Kernel("6.1.0-37", (6, 1))), "warn", "before 6.2"),
    ("kernel", facts(kernel=Kernel("6.2.0", (6, 2))), "ok", "remembers"),
    ("kernel", facts(kernel=Kernel("weird")), "unknown", "'weird'"),
    ("cpus", facts(cpus=CpuFacts(trouble="no such file")), "unknown", "are unknown"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-2"), CpuSet.parse("0-3"))), "bad", "CPUs 3 are exclusive"),
    ("cpus", facts(settings={"node.housekeeping": "9"}), "warn", "CPUs 9 of node"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-6"), CpuSet.parse("0-7")), cgroups="hybrid"), "warn",
     "CPUs 7 are off"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-6"), CpuSet.parse("0-7"))), "ok", "7 CPUs"),
    ("isolation", facts(cpus=CpuFacts(CpuSet.parse("0-7"), isolated=CpuSet.parse("1-3"))), "warn",
     "CPUs 1 of the shared"),
    ("isolation", facts(cpus=CpuFacts(CpuSet.parse("0-7"), isolated=CpuSet.parse("2-3"))), "ok", "not conflict"),
    ("cgroups", facts(cgroups="none"), "bad", "no cpuset"),
    ("cgroups", facts(status=status(sandbox(cgroup={"path": "/g", "cpus": "2"}))), "warn", "1 VMMs"),
    ("cgroups", facts(status=status(sandbox(cgroup={"path": "/g", "cpus": "0-7"}))), "ok", "v2"),
    # who tells
    ("kubelet", facts(checkpoint=None), "bad", "has no checkpoint"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig()), "unknown", "no kubelet"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(3)), "warn", "no CPU manager"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(), settings={"node.shared_pool": "0"}), "ok", "is 0"),
    ("kubelet", facts(checkpoint=Checkpoint("/k", trouble="is empty")), "bad", "is empty"),
    ("kubelet", facts(checkpoint=STATIC, kubelet=KubeletConfig()), "warn", "no kubelet runs"),
    ("kubelet", facts(checkpoint=STATIC, kubelet=KubeletConfig(), sees=False), "ok", "static policy"),
    ("kubelet", facts(checkpoint=None, status={"sources": {"kubelet": {
        "stale": True, "written": "2026-11-22T13:41:00Z", "second_witness": "PodResources lists the same CPUs"}}}),
     "warn", "its last contents are used, written 2026-11-22T13:41:00Z; PodResources lists the same CPUs"),
    ("kubelet", facts(checkpoint=replace(STATIC, policy="none")), "bad", "policy static, its checkpoint"),
    ("kubelet", facts(checkpoint=replace(STATIC, policy="none"), kubelet=KubeletConfig(3)), "warn", "owns a CPU"),
    ("kubelet", facts(checkpoint=replace(STATIC, policy="none"), kubelet=KubeletConfig(3),
                      settings={"node.shared_pool": "0-1"}), "ok", "policy none"),
    ("kubelet", facts(settings={"watch.kubelet": "False"}), "warn", "not read"),
    ("kubelet", facts(checkpoint=replace(STATIC, trouble="CPUs 2 are both")), "warn", "CPUs 2 are both"),
    ("nri", facts(settings={"watch.nri": "off"}), "warn", "no runtime reads a registration"),
    ("nri", facts(settings={"watch.nri": "off"}, hooks=(hook(read_by=()),)), "warn", "no runtime reads"),
    ("nri", facts(settings={"watch.nri": "off"}, hooks=(hook(),)), "ok", "not used"),
    ("nri", facts(status={}, nri_socket=False), "unknown", "no container runtime"),
    ("nri", facts(status={}, nri_socket=False, engines=(containerd(nri=False),)), "warn", "disabled in"),
    ("nri", facts(status={}, nri_socket=False, engines=(containerd(nri=False),), settings={"watch.nri": "on"}), "bad",
     "disabled in"),
    ("nri", facts(status={}, engines=(containerd(),)), "ok", "available to a watcher"),
    ("hooks", facts(), "ok", "NRI reports"),
    ("hooks", facts(status={}), "warn", "no hook"),
    ("hooks", facts(hooks=(hook(broken="is not there"),)), "bad", "no container starts"),
    ("hooks", facts(hooks=(hook(socket="/run/other.sock"),)), "warn", "/run/other.sock"),
    ("hooks", facts(hooks=(hook(read_by=()),)), "warn", "no runtime"),
    ("hooks", facts(hooks=(hook(), hook(file="/left/1.json", read_by=()))), "warn", "reads /left/1.json"),
    ("hooks", facts(hooks=(hook(read_by=("podman",)),), engines=(CRIO,)), "warn", "CRI-O reads no registration"),
    ("hooks", facts(hooks=(hook(read_by=("podman",)),), engines=(replace(CRIO, pid=None),)), "ok", "1 reg"),
    ("hooks", received(None), "unknown", "no hook has been received since crio (pid 7) started, 100 s ago"),
    ("hooks", received(None, 3.0, 500.0), "unknown", "no hook has been received"),  # just begun; before CRI-O
    ("hooks", received(None, 30.0), "warn", "and it has started containers"),
    ("hooks", received(150.0, 30.0), "warn", "and it has started containers"),
    ("hooks", received(90.0, 30.0), "ok", "1 reg"),
    ("hooks", received(None, 30.0, uptime=20.0), "unknown", "no hook has been received"),
    ("hooks", facts(hooks=(hook(),), engines=(CRIO,)), "ok", "1 reg"),  # an older watcher does not say
    ("hooks", replace(received(None), hooks=(hook(read_by=("containerd handler kata",)),), engines=(
        containerd(age=50.0),)), "unknown", "since containerd (pid 5) started, 50 s ago"),
    ("hooks", facts(hooks=(hook(stages=("poststart",)),)), "warn", "createContainer, createRuntime, poststop"),
    # Kata
    ("kata", facts(), "unknown", "no Kata"),
    ("kata", facts(kata=(replace(kata(), trouble="is not TOML"),)), "bad", "is not TOML"),
    ("kata", facts(kata=(kata(),), engines=(containerd(handler(config_path="/gone.toml")),)), "warn", "/gone.toml"),
    ("kata", facts(kata=(kata(hypervisor__qemu__rootless=True),)), "warn", "rootless"),
    ("kata-pinning", facts(kata=(kata(runtime__enable_vcpus_pinning=True),)), "bad", "new sandboxes"),
    ("kata-pinning", facts(kata_sandboxes=(KataSandboxFacts("s", "kata-go", True),)), "bad",
     "1 sandboxes run with it"),
    ("kata-pinning", facts(kata=(kata(readers=(), runtime__enable_vcpus_pinning=True),)), "warn", "no known handler"),
    ("kata-pinning", facts(kata=(kata(runtime__enable_vcpus_pinning=False),)), "ok", "does not pin"),
    ("kata-vcpus", facts(kata=(kata(hypervisor__qemu__default_maxvcpus=1),)), "warn", "fewer vCPUs"),
    ("kata-vcpus", facts(kata=(kata(hypervisor__qemu__default_maxvcpus=0),)), "ok", "as many"),
    ("kata-vcpus", facts(kata=(kata(),), engines=(containerd(handler(), cpus=CpuSet.parse("0-1")),)), "warn",
     "2 of 8 CPUs"),
    ("kata-vcpus", facts(kata=(kata(),), engines=(containerd(handler(), cpus=CpuSet.parse("0-9")),)), "ok", "as many"),
    ("kata-vcpus", facts(kata=(kata(),), engines=(containerd(handler(kata=False), cpus=CpuSet.parse("0")),)), "ok",
     "as many"),
    ("kata-vcpus", facts(kata=(kata(runtime__static_sandbox_resource_mgmt=True),)), "ok", "as many"),
    ("kata-vcpus", facts(kata=(kata(runtime__static_sandbox_resource_mgmt=True),),
                         engines=(replace(containerd(handler()), name="crio"),)), "warn", "default_vcpus"),
    ("kata-cgroup", facts(kata=(kata(),)), "ok", "every cgroup allows"),
    ("kata-cgroup", facts(kata=(kata(),), status={}, settings={"policy.emulator": "housekeeping"}), "warn",
     "keeps emulator on"),
    ("kata-cgroup", facts(kata=(kata(),), status={}, cgroups="v1", settings={"policy.emulator": "shared"}), "ok",
     "separate cgroup"),
    ("kata-cgroup", facts(kata=(kata(runtime__sandbox_cgroup_only=True),), status={}, cgroups="v1",
                          settings={"policy.vhost": "0-1"}), "warn", "keeps vhost on"),
    ("kata-guest", facts(kata=(kata(hypervisor__qemu__confidential_guest=True),)), "warn", "handlers kata-qemu run"),
    ("kata-guest", facts(kata=(kata(hypervisor__qemu__confidential_guest=True),),
                         settings={"guest.disabled_handlers": "kata-tdx,kata-q*"}), "ok", "no setting"),
    ("kata-guest", facts(kata=(kata(runtime="rs", hypervisor__qemu__guest_hook_path="/x"),), hooks=(hook(),)), "warn",
     "drops the hooks"),
    ("kata-guest", facts(kata=(kata(hypervisor__qemu__guest_hook_path="/x"),), hooks=(hook(),)), "ok", "no setting"),
    # who else
    ("irqbalance", facts(daemons=(Daemon("irqbalance", "irqbalance", 4),)), "ok", "never threads"),
    ("irqbalance", facts(), "ok", "does not run"),
    ("tuned", facts(daemons=(Daemon("tuned", "tuned", 4),)), "unknown", "is unknown"),
    ("tuned", facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("balanced")), "ok", "no masks"),
    ("tuned", facts(tuned=Tuned("cpu-partitioning", scheduler={"isolated_cores": FoundSetting("2-3", "/t")})), "ok",
     "does not run"),
    ("pinners", facts(daemons=(Daemon("balloons", "nri-resource-policy-balloons", 4),)), "ok", "balloons"),
    ("pinners", facts(daemons=(Daemon("balloons", "nri-resource-policy-balloons", 4),),
                      settings={"node.shared_pool": "0"}), "warn", "balloons"),
    ("pinners", facts(daemons=(Daemon("koordinator", "koordlet", 4),), settings={"policy.runc_repair": "True"}), "bad",
     "koordinator write"),
    ("pinners", facts(daemons=(Daemon("numad", "numad", 4),)), "warn", "numad"),
    ("proc-connector", facts(connector=ConnectorFacts(False, "CAP_NET_ADMIN is missing")), "warn", "CAP_NET_ADMIN"),
    ("proc-connector", facts(connector=ConnectorFacts()), "unknown", "not tried"),
    ("proc-connector", facts(connector=ConnectorFacts(False), settings={"watch.births": "False"}), "ok", "not used"),
    # vmpin itself
    ("watcher", facts(watcher=WatcherFacts()), "bad", "no watcher runs"),
    ("watcher", running(hook=False), "bad", "receives no events"),
    ("watcher", running(hook=True, births=False, nri=False), "bad", "receives no events"),
    ("watcher", replace(running(hook=True), hooks=(hook(broken="gone"), hook(read_by=()))), "bad", "no hook reaches"),
    ("watcher", replace(running(hook=False, births=False, resync=True), hooks=(hook(),)), "bad", "receives no events"),
    ("watcher", replace(running(hook=True, births=False, nri=False), hooks=(hook(),)), "warn", "without nri"),
    ("watcher", running({"hook": 3}, hook=True, births=False), "ok", "runs"),
    ("watcher", running(hook=False, births=True), "warn", "without hook"),
    ("watcher", running(hook=True, births=True, resync=False), "bad", "passes fail"),
    ("watcher", facts(watcher=WatcherFacts("mute", 100, "does not answer within 10 s")), "bad", "within 10 s"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "unknown request 'about'")), "unknown", "unknown request"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "version": "1.1"}, "1.2")), "warn",
     "version 1.1"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "sources": [
        {"name": "nri", "up": False, "needed": True, "why": "refused"}]}, "1.2")), "warn", "without nri"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "sources": [
        {"name": "births", "up": False, "needed": False, "why": ""}]}, "1.2")), "ok", "runs"),
    ("config", configured("auto", "default", "union", "/f"), "warn", "1 keys"),
    ("config", configured("union", "/f", "union", "/f"), "ok", "current configuration"),
    ("config", configured("union", "flag", "auto", "default"), "ok", "current configuration"),
    ("config", configured("auto", "default", "union", "environment VMPIN_POLICY_VCPUS"), "ok",
     "current configuration"),
    ("resync", facts(watcher=WatcherFacts()), "unknown", "no watcher"),
    ("resync", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "resynced": 61.0})), "bad", "61.0 s ago"),
    ("resync", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "resynced": None})), "bad", "no pass yet"),
    ("resync", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "resynced": 61.0, "resync_seconds": 60.0})),
     "ok",
     "61.0 s ago"),
    ("run-directory", facts(run=RunDirectoryFacts("/r")), "bad", "was removed"),
    ("run-directory", facts(run=RunDirectoryFacts("/r"), watcher=WatcherFacts()), "ok", "no watcher has run"),
    ("state-file", facts(run=RunDirectoryFacts("/r", state_size=1, state_trouble="the checksum is wrong")), "bad",
     "checksum"),
    ("state-file", facts(run=RunDirectoryFacts("/r", state_size=1, set_aside=True)), "warn", "set aside"),
    ("state-file", facts(run=RunDirectoryFacts("/r")), "ok", "no state file"),
    ("state-file", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "saved": False})), "bad", "cannot write"),
    ("vcpu-threads", facts(status=status(sandbox(found_by="none"))), "bad", "1 VMs cannot"),
    ("vcpu-threads", facts(status=status(sandbox(found_by="none", vmm=None))), "ok", "no VM runs"),
    ("vcpu-threads", facts(status={}, status_trouble="denied"), "unknown", "denied"),
    ("guests", facts(status=status(sandbox(guest={"by": "", "state": "refused"}))), "warn", "1 of 1 guests"),
    ("guests", facts(status=status(sandbox(guest={"by": "vmpin-agent", "state": "up"}))), "ok", "1 guests answer"),
    ("guests", facts(status=status(sandbox(guest={"by": "", "state": WAITING}))), "ok", "waits for 1"),
    ("guests", facts(settings={"guest.via": "off"}), "ok", "nothing is sent"),
    ("guests", facts(watcher=WatcherFacts()), "unknown", "only a running watcher"),
    ("sandboxes", facts(status=status(sandbox(threads=[{"ok": False}]))), "bad", "1 threads"),
    ("sandboxes", facts(status=status(sandbox(threads=[{"ok": False}])), watcher=WatcherFacts()), "warn",
     "would place"),
    ("sandboxes", facts(status=status(sandbox(verdict="degraded", reasons=["too few"]))), "warn", "are degraded"),
    ("sandboxes", facts(status=status(sandbox(threads=[{"ok": True}]))), "ok", "1 sandboxes"),
    ("sandboxes", facts(status=status(sandbox(verdict="unmanaged", reasons=["x"], threads=[{"ok": True}]))), "warn",
     "1 VMs are left as they are"),
    ("collisions", facts(status=status(collisions=[{"cpu": 2, "what": "two"}])), "bad", "1 exclusive CPUs"),
    ("collisions", facts(status=status(disagreements=[{"container": "c", "what": "x"}])), "warn", "disagree"),
])
def test_a_check_judges(check: str, found: NodeFacts, level: str, says: str) -> None:
    told = verdict(check, found)
    assert (told.level, says in told.what) == (level, True), told
    if told.level in (Level.WARN, Level.BAD):
        assert told.remedy, "what is not right comes with what to do"
    if told.level is Level.OK:
        assert not told.remedy


NOT_ROOT = Rights("this command", 5, 1000, frozenset(), user_ns=True, pid_ns=True)
DENIED = "/etc/x: Permission denied"


@pytest.mark.parametrize(("check", "found"), [
    ("cgroups", facts(status={})), ("isolation", facts(cpus=CpuFacts(trouble="gone"))),
    ("kubelet", facts(checkpoint=Checkpoint("/k", trouble="Permission denied"))),
    ("kubelet-options", facts(checkpoint=Checkpoint("/k", trouble="Permission denied"))),
    ("kubelet-options", facts(status={})), ("kubelet-options", facts(cpus=CpuFacts(CpuSet.parse("0-7")))),
    ("nri", facts(status={}, nri_socket=None)),
    ("kata", facts(engines=(containerd(trouble=(DENIED,)),))),
    ("kata", facts(kata=(replace(kata(), trouble=DENIED),))),
    ("kata-pinning", facts(engines=(containerd(trouble=(DENIED,)),))),
    ("kata-pinning", facts(kata=(replace(kata(), trouble=DENIED),))),
    ("kata-vcpus", facts(kata=(replace(kata(), trouble=DENIED),))),
    ("kata-guest", facts(kata=(replace(kata(), trouble=DENIED),))),
    ("irqbalance", facts(sees=False)), ("tuned", facts(sees=False)), ("pinners", facts(sees=False)),
    ("tuned", facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", (), {}, ("p",)))),
    ("proc-connector", facts(connector=ConnectorFacts(False, "CAP_NET_ADMIN is missing"), rights=NOT_ROOT,
                             watcher=WatcherFacts())),
    ("config", facts(watcher=WatcherFacts("running", 100, "not permitted"))),
    ("state-file", facts(run=replace(facts().run, state_read=False))),
    ("guests", facts(status={}, status_trouble="no answer")), ("collisions", facts(status={})),
    ("watcher", facts(watcher=WatcherFacts("hidden", None, "permission denied"))),
    ("privileges", facts(watcher=WatcherFacts("hidden", None, "permission denied"), rights=NOT_ROOT)),
    ("sandboxes", facts(status={})), ("vcpu-threads", facts(status={}))])
def test_what_was_not_looked_at_is_never_called_right_nor_wrong(check: str, found: NodeFacts) -> None:
    told = verdict(check, found)
    assert told.level is Level.UNKNOWN, told


def test_a_mask_setter_that_is_seen_counts_though_not_everything_is() -> None:
    runs = facts(sees=False, daemons=(Daemon("numad", "numad", 4),))
    assert verdict("pinners", runs).level is Level.WARN
    moves = facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", ("/t.conf",), {
        "isolated_cores": FoundSetting("2-3", "/t.conf")}, ("q",)))
    assert verdict("tuned", moves).level is Level.BAD
    pins = kata(runtime__enable_vcpus_pinning=True)
    assert verdict("kata-pinning", facts(kata=(pins,), engines=(containerd(trouble=(DENIED,)),))).level is Level.BAD


def test_nri_that_the_watcher_lacks_is_worse_when_it_was_asked_for() -> None:
    lost = status()
    lost["sources"]["nri"] = {"state": "not connected: refused", "events": 0, "last_error": "invalid plugin events"}
    assert verdict("nri", facts(status=lost)).level is Level.WARN
    told = verdict("nri", facts(status=lost, settings={"watch.nri": "on"}))
    assert told.level is Level.BAD
    assert any("invalid plugin events" in line for line in told.evidence)


def test_nri_at_another_socket_is_named() -> None:
    elsewhere = containerd(nri_socket="/run/x/nri.sock")
    told = verdict("nri", facts(status={}, nri_socket=False, engines=(elsewhere,)))
    assert "set paths.nri" in told.remedy
    assert "/run/x/nri.sock" in told.remedy


def test_a_core_with_two_owners_is_named_only_where_the_policy_allows_it() -> None:
    owners = [{"sandbox": "a", "container": "x", "cpus": "2"}, {"sandbox": "b", "container": "y", "cpus": "3"}]
    split = facts(cpus=CpuFacts(CpuSet.parse("0-3"), cores=(CpuSet.parse("0-1"), CpuSet.parse("2-3"))),
                  status=status(owners=owners))
    told = verdict("kubelet-options", split)
    assert told.level is Level.WARN
    assert "core 2-3: a/x, b/y" in told.evidence
    options = {"cpuManagerPolicyOptions": FoundSetting({"full-pcpus-only": "true"}, "/c.yaml")}
    assert verdict("kubelet-options", replace(split, kubelet=KubeletConfig(7, options))).level is Level.OK
    one = status(owners=[{**owners[0], "cpus": "2-3"}])
    assert verdict("kubelet-options", replace(split, status=one)).level is Level.OK


def test_katas_pinning_names_the_file_the_handler_and_who_may_switch_it_on() -> None:
    pinning = kata(readers=("kata-qemu", "kata-clh"), runtime__enable_vcpus_pinning=True)
    passing = handler(annotations=("io.katacontainers.*",))
    told = verdict("kata-pinning", facts(kata=(pinning,), engines=(containerd(passing),)))
    assert told.evidence[0] == "/k.toml: runtime.enable_vcpus_pinning = true (handlers kata-qemu, kata-clh)"
    assert "handler kata-qemu passes the annotation" in told.evidence[1]
    closed = facts(kata=(kata(),), engines=(containerd(handler(annotations=("other/*",))),))
    assert verdict("kata-pinning", closed).evidence == ()
    crio = facts(kata=(kata(),), engines=(containerd(handler(annotations=None)),))
    assert "can enable it" in verdict("kata-pinning", crio).evidence[0]


@pytest.mark.parametrize(("scheduler", "level"), [
    ({"isolated_cores": "2-3"}, "bad"),
    ({"group.ksoftirqd": "0:f:2:*"}, "bad"),
    ({"isolated_cores": "2-3", "ps_blacklist": ".*pmd.*;.*qemu-kvm.*"}, "bad"),
    ({"isolated_cores": "2-3", "ps_blacklist": ".*pmd.*;.*qemu-system.*"}, "ok"),
    ({"isolated_cores": "2-3", "ps_blacklist": "(;.*qemu.*"}, "ok"),  # one pattern is none
    ({"isolated_cores": "2-3", "ps_blacklist": "("}, "bad"),
    ({"isolated_cores": "2-3", "cgroup_ps_blacklist": "/kubepods\\.slice/"}, "warn"),
])
def test_tuned_is_judged_by_what_its_profile_says_of_vmms(scheduler: dict[str, str], level: str) -> None:
    found = facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("p", ("/t.conf",), {
        key: FoundSetting(value, "/t.conf") for key, value in scheduler.items()}))
    assert verdict("tuned", found).level == level


def test_irqbalance_names_exclusive_cpus_that_it_may_use() -> None:
    runs = facts(daemons=(Daemon("irqbalance", "irqbalance", 4),))
    assert any("exclusive CPUs 2-3" in line for line in verdict("irqbalance", runs).evidence)
    banned = replace(runs, irqbalance={"IRQBALANCE_BANNED_CPULIST": FoundSetting("2-7", "/etc/default/irqbalance")})
    assert not any("exclusive CPUs" in line for line in verdict("irqbalance", banned).evidence)
    nonsense = replace(runs, irqbalance={"IRQBALANCE_BANNED_CPULIST": FoundSetting("x-y", "/etc/default/irqbalance")})
    assert any("exclusive CPUs 2-3" in line for line in verdict("irqbalance", nonsense).evidence)


@pytest.mark.parametrize(("changes", "level"), [
    ({"read_only": True}, "bad"), ({"mode": 0o777}, "bad"), ({"mode": 0o775}, "bad"), ({"uid": 1000}, "bad"),
    ({"free": 4096}, "warn"), ({"inodes": 3}, "warn"), ({"writable": False}, "unknown"),
    ({"spooled": 3, "oldest": 61.0}, "warn"), ({"spooled": 3, "oldest": 1.0}, "ok"), ({}, "ok"),
])
def test_the_run_directory_is_looked_at(changes: dict[str, Any], level: str) -> None:
    good = facts()
    told = verdict("run-directory", replace(good, run=replace(good.run, **changes)))
    assert told.level == level, told


def test_old_messages_in_the_spool_are_right_where_no_watcher_runs() -> None:
    found = facts(watcher=WatcherFacts())
    assert verdict("run-directory", replace(found, run=replace(found.run, spooled=3, oldest=999.0))).level is Level.OK


@pytest.mark.parametrize(("version", "words"), [
    ((5, 15), "kernel threads beside"), ((6, 3), "kernel threads beside"), ((6, 4), "are threads of the VMM (since"),
    ((6, 12), "vmpin finds both"), ((7, 0), "vmpin finds both")])
def test_where_vhost_workers_live_follows_from_the_version(version: tuple[int, int], words: str) -> None:
    told = verdict("kernel", facts(kernel=Kernel("x", version)))
    assert any(words in line for line in told.evidence)


@pytest.mark.parametrize("document", [
    {"node": {}, "sandboxes": [{}], "sources": {}}, {"node": 3}, {"sandboxes": None},
    {"node": {"exclusive": "x", "shared_pool": ""}, "sandboxes": [{"id": "a", "threads": 7}]}])
def test_the_status_of_another_version_costs_the_checks_that_need_it_alone(document: dict[str, Any]) -> None:
    found = {finding.check: finding.verdict for finding in examine(facts(status=document))}
    assert found["sandboxes"].level is Level.UNKNOWN
    assert "same version" in found["sandboxes"].remedy
    assert found["privileges"].level is found["state-file"].level is Level.OK


@pytest.mark.parametrize(("names", "chosen"), [
    ((), [check.name for check in CHECKS]), (("kata",), ["kata", "kata-pinning", "kata-vcpus", "kata-cgroup",
                                                          "kata-guest"]),
    (("kubelet-options", "nri"), ["kubelet-options", "nri"]), (("kat",), [])])
def test_checks_are_chosen_by_name_or_its_beginning(names: tuple[str, ...], chosen: list[str]) -> None:
    assert [finding.check for finding in examine(facts(), names)] == chosen


def test_names_of_checks_are_told_apart() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)


def test_the_manual_has_every_check_and_no_other() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text().partition("## The checks")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", manual, re.MULTILINE) == [check.name for check in CHECKS]


def test_several_names_are_some_and_a_number() -> None:
    assert (several(["a"]), several("abc"), several("abcde")) == ("a", "a, b, c", "a, b, c and 2 more")


def test_lines_are_folded_under_themselves_and_steer_no_terminal() -> None:
    told = facts(status=status(collisions=[{"cpu": 2, "what": "\x1b[2J" + "word " * 40}]))
    lines = ["".join(word for word, _ in line) for line in text(examine(told, ["collisions"]), False, 60)]
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in "".join(lines)
    assert lines[0].startswith("bad     collisions  1 exclusive CPUs are open")
    assert lines[1].startswith("            CPU 2: ")
    assert lines[2].startswith("            word ")
    assert lines[-1] == "1 bad"
    assert any(line.startswith("          → vmpin audit") for line in lines)
    unfolded = ["".join(word for word, _ in line) for line in text(examine(told, ["collisions"]), False)]
    assert max(map(len, unfolded)) > 150


def test_a_guest_that_is_waited_for_is_called_as_its_session_calls_it() -> None:
    assert WAITING == words.WAITING
