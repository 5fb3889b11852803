"""What each of the doctor's checks concludes from facts: a table, and what cannot be judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from healthy_node import (
    ABOUT,
    CRIO,
    STATIC,
    configured,
    containerd,
    facts,
    handler,
    hook,
    kata,
    received,
    rights,
    running,
    sandbox,
    status,
    verdict,
)

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.facts import (
    Checkpoint,
    ConnectorFacts,
    CpuFacts,
    Daemon,
    FoundSetting,
    KataSandboxFacts,
    Kernel,
    KubeletConfig,
    NodeFacts,
    Rights,
    RunDirectoryFacts,
    Tuned,
    WatcherFacts,
)
from vmpin.features.common.finding import Level
from vmpin.features.doctor.service_checks import WAITING


def partitioned(*vmms: str) -> NodeFacts:
    """A node without VMs, with tuned's cpu-partitioning, and a Kata configuration for each of these VMMs."""
    scheduler = {"isolated_cores": FoundSetting("2-3", "/t"), "ps_blacklist": FoundSetting(".*qemu-kvm.*", "/t")}
    return facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("cpu-partitioning", scheduler=scheduler),
                 kata=tuple(kata(hypervisor__qemu__path=path) for path in vmms))



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
    ("namespaces", facts(rights=rights(pid_ns=False), engines=(containerd(),)), "bad", "pid namespace"),
    ("namespaces", facts(rights=rights(pid_ns=False), sees=False, engines=(containerd(pid=None),)), "bad",
     "pid namespace"),
    ("namespaces", facts(rights=rights(pid_ns=False), sees=False, engines=(containerd(),)), "ok",
     "a container itself"),
    ("namespaces", facts(rights=rights(pid_ns=False, user_ns=False), sees=False, engines=(containerd(),)), "bad",
     "user namespace"),
    ("namespaces", facts(rights=rights(user_ns=False)), "bad", "user namespace"),
    ("namespaces", facts(rights=rights(user_ns=None)), "unknown", "cannot be read"),
    ("kernel", facts(kernel=Kernel("6.1.0-37", (6, 1))), "warn", "before 6.2"),
    ("kernel", facts(kernel=Kernel("6.2.0", (6, 2))), "ok", "remembers"),
    ("kernel", facts(kernel=Kernel("weird")), "unknown", "'weird'"),
    ("kernel", facts(kernel=Kernel("6.6.96.mshv", (6, 6), mshv=True)), "warn", "Microsoft's hypervisor"),
    ("cpus", facts(cpus=CpuFacts(trouble="no such file")), "unknown", "are unknown"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-2"), CpuSet.parse("0-3"))), "bad", "CPUs 3 are exclusive"),
    # The status has owned CPUs of the node as far as they are online.
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-2"), CpuSet.parse("0-3")), checkpoint=STATIC,
                   status={**status(), "node": {**status()["node"], "exclusive": "2"}}), "bad",
     "CPUs 3 are exclusive"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-2"), CpuSet.parse("0-3")), checkpoint=None,
                   status={**status(sandbox(containers=[{"own_cpus": "2-3"}, {"own_cpus": None}])),
                           "node": {**status()["node"], "exclusive": "2"}}), "bad", "CPUs 3 are exclusive"),
    ("cpus", facts(settings={"node.housekeeping": "9"}), "warn", "CPUs 9 of node"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-6"), CpuSet.parse("0-7")), cgroups="hybrid"), "warn",
     "CPUs 7 are off"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-6"), CpuSet.parse("0-7"))), "ok", "7 CPUs"),
    ("cpus", facts(cpus=CpuFacts(CpuSet.parse("0-6"), CpuSet.parse("0-7"), smt_off=True), cgroups="v1"), "ok",
     "7 CPUs"),
    ("isolation", facts(cpus=CpuFacts(CpuSet.parse("0-7"), isolated=CpuSet.parse("1-3"))), "warn",
     "CPUs 1 of the shared"),
    ("isolation", facts(cpus=CpuFacts(CpuSet.parse("0-7"), isolated=CpuSet.parse("2-3"))), "ok", "not conflict"),
    ("cgroups", facts(cgroups="none"), "bad", "no cpuset"),
    ("cgroups", facts(status=status(sandbox(cgroup={"path": "/g", "cpus": "2"}))), "warn", "1 VMM off"),
    ("cgroups", facts(status=status(sandbox(cgroup={"path": "/g", "cpus": "0-7"}))), "ok", "v2"),
    # In a container with a cgroup namespace of its own all of them are outside its root.
    ("cgroups", facts(status=status(sandbox(cgroup=None))), "unknown", "1 VMM cannot be read here"),
    ("cgroups", facts(status=status(sandbox(cgroup=None, vmm=None))), "ok", "v2"),
    # sources
    ("authorities", facts(status=status(authorities=["kubelet", "pool"])), "ok", "decided by: kubelet, pool"),
    ("authorities", facts(status=status(authorities=[])), "ok", "decided by: none"),
    ("authorities", facts(status=status(authorities=["kubelet"], rivals=[
        {"authorities": ["kubelet", "dra"], "cpus": "4", "sandboxes": [], "what": "CPUs 4 are"}])), "warn",
     "two decide on the same CPUs: kubelet and dra"),
    ("authorities", facts(status={}, status_trouble="no answer"), "unknown", "no answer"),
    ("kubelet", facts(checkpoint=None), "bad", "has no checkpoint"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig()), "unknown", "no kubelet"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(3)), "warn", "no CPU manager"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(3), status={"node": {"authorities": ["dra"]}}), "ok",
     "the claims of dra-driver-cpu decide"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(3),
                      status={"node": {"authorities": ["declared", "observed"]}}), "ok",
     "CPUs that no other pod's container may use are exclusive"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(3), status={"node": {"authorities": ["declared"]}}),
     "warn", "no CPU manager"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(), settings={"node.shared_pool": "0"}), "ok", "is 0"),
    ("kubelet", facts(kubelet=KubeletConfig(3, directory="/data/k", reached=False),
                      settings={"paths.kubelet": "/var/lib/kubelet"}), "bad",
     "the kubelet's directory is /data/k, and paths.kubelet is /var/lib/kubelet"),
    ("kubelet", facts(kubelet=KubeletConfig(3, directory="/data/k", reached=False),
                      settings={"paths.kubelet": "/data/k"}), "bad", "/data/k is not the kubelet's directory here"),
    ("kubelet", facts(kubelet=KubeletConfig(3, directory="/data/k", reached=False),
                      settings={"watch.kubelet": "false"}), "warn", "not read"),
    ("kubelet", facts(checkpoint=None, kubelet=KubeletConfig(
        3, {"cpuManagerPolicy": FoundSetting("none", "/c.yaml")}, directory="/data/k", reached=False)),
     "warn", "no CPU manager"),
    ("kubelet", facts(checkpoint=STATIC, kubelet=KubeletConfig(
        3, {"cpuManagerPolicy": FoundSetting("none", "/c.yaml")}, directory="/data/k", reached=False)),
     "bad", "the kubelet's directory is /data/k"),
    ("kubelet", facts(checkpoint=Checkpoint("/k", trouble="is empty")), "bad", "is empty"),
    ("kubelet", facts(checkpoint=STATIC, kubelet=KubeletConfig()), "warn",
     "no kubelet runs: CPUs 2-3 stay exclusive by it"),
    ("kubelet", facts(checkpoint=replace(STATIC, exclusive=EMPTY), kubelet=KubeletConfig()), "warn",
     "no kubelet runs: no CPU is exclusive by it"),
    ("kubelet", facts(checkpoint=replace(STATIC, exclusive=EMPTY)), "ok",
     "static policy: no CPU is exclusive, 0-1 shared"),
    ("kubelet", facts(checkpoint=STATIC, kubelet=KubeletConfig(), sees=False), "ok", "static policy"),
    ("kubelet", facts(checkpoint=None, status={"sources": {"kubelet": {
        "stale": True, "written": "2026-11-22T13:41:00Z", "second_witness": "PodResources lists the same CPUs"}}}),
     "warn", "its last contents are used, written 2026-11-22T13:41:00Z; PodResources lists the same CPUs"),
    ("kubelet", facts(checkpoint=replace(STATIC, policy="none")), "bad", "policy static, its checkpoint"),
    ("kubelet", facts(checkpoint=replace(STATIC, policy="none"), kubelet=KubeletConfig(3)), "warn", "owns a CPU"),
    ("kubelet", facts(checkpoint=replace(STATIC, policy="none"), kubelet=KubeletConfig(3),
                      settings={"node.shared_pool": "0-1"}), "ok", "policy none"),
    ("kubelet", facts(settings={"watch.kubelet": "false"}), "warn", "not read"),
    ("kubelet", facts(checkpoint=replace(STATIC, trouble="CPUs 2 are both")), "warn", "CPUs 2 are both"),
    ("nri", facts(settings={"watch.nri": "off"}), "warn", "no runtime reads a registration"),
    ("nri", facts(settings={"watch.nri": "off"}, hooks=(hook(read_by=()),)), "warn", "no runtime reads"),
    ("nri", facts(settings={"watch.nri": "off"}, hooks=(hook(),)), "ok", "not used"),
    ("nri", facts(status={}, nri_socket=False), "unknown", "no container runtime"),
    ("nri", facts(status={}, nri_socket=False, engines=(containerd(nri=False),)), "warn", "disabled in"),
    ("nri", facts(status={}, nri_socket=False, engines=(containerd(nri_closed=True),)), "warn",
     "takes no connections"),
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
    ("hooks", facts(hooks=(hook(read_by=("podman",)),), engines=(replace(CRIO, hooks_dirs=()),)), "warn", "is empty"),
    ("hooks", facts(hooks=(hook(read_by=("podman",)),), engines=(replace(CRIO, pid=None),)), "ok", "1 reg"),
    ("hooks", facts(status={}, hooks=(hook(read_by=("containerd handler runc",)),), engines=(containerd(handler()),)),
     "warn", "handlers kata-qemu: their"),
    ("hooks", facts(hooks=(hook(read_by=("podman",)),), engines=(containerd(handler()),)), "ok", "1 reg"),  # by NRI
    ("hooks", facts(status={}, hooks=(hook(read_by=("containerd handler kata-qemu",)),),
                    engines=(containerd(handler(), handler("runc", kata=False)),)), "ok", "1 reg"),
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
     "1 sandbox runs with it"),
    ("kata-pinning", facts(kata=(kata(readers=(), runtime__enable_vcpus_pinning=True),)), "warn", "no known handler"),
    ("kata-pinning", facts(kata=(kata(runtime__enable_vcpus_pinning=False),)), "ok", "does not pin"),
    ("kata-vcpus", facts(kata=(kata(hypervisor__qemu__default_maxvcpus=1),), status={}), "warn", "fewer vCPUs"),
    ("kata-vcpus", facts(kata=(kata(hypervisor__qemu__default_maxvcpus=3),), status=status(
        sandbox(), owners=[{"sandbox": "a", "container": "x", "cpus": "2-3"},
                           {"sandbox": "a", "container": "y", "cpus": "4-5"}])), "warn", "of its own (4)"),
    ("kata-vcpus", facts(kata=(kata(hypervisor__qemu__default_maxvcpus=3),), checkpoint=replace(STATIC, largest=4),
                         status=status(sandbox(), owners=[{"sandbox": "a", "container": "x", "cpus": "2-3"},
                                                          {"sandbox": "runc's", "container": "y", "cpus": "4-7"}])),
     "ok", "as many"),
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
    ("kata-cgroup", facts(kata=(kata(),), status={}, settings={"policy.vhost": "near"}), "ok", "every cgroup allows"),
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
    ("tuned", facts(daemons=(Daemon("tuned", "tuned", 4),)), "unknown", "is unknown"),
    ("tuned", facts(daemons=(Daemon("tuned", "tuned", 4),), tuned=Tuned("balanced")), "ok", "no masks"),
    ("tuned", facts(tuned=Tuned("cpu-partitioning", scheduler={"isolated_cores": FoundSetting("2-3", "/t")})), "ok",
     "does not run"),
    ("tuned", partitioned(), "bad", "also sets the masks"),
    ("tuned", partitioned("/usr/libexec/qemu-kvm"), "warn", "spares VMMs"),
    ("tuned", partitioned("/usr/libexec/qemu-kvm", "/opt/kata/bin/cloud-hypervisor"), "bad", "also sets the masks"),
    ("pinners", facts(daemons=(Daemon("balloons", "nri-resource-policy-balloons", 4),)), "ok", "balloons"),
    ("pinners", facts(daemons=(Daemon("balloons", "nri-resource-policy-balloons", 4),),
                      settings={"node.shared_pool": "0"}), "warn", "balloons"),
    ("pinners", facts(daemons=(Daemon("koordinator", "koordlet", 4),)), "ok", "koordinator runs here"),
    ("pinners", facts(daemons=(Daemon("ctlplane", "ctlplane", 4), Daemon("cmk", "cmk.py", 5))), "ok",
     "ctlplane, cmk run here"),
    ("pinners", facts(daemons=(Daemon("numad", "numad", 4),)), "warn", "numad"),
    ("pinners", facts(daemons=(Daemon("lpmd", "intel_lpmd", 4),)), "warn", "intel_lpmd runs"),
    ("pinners", facts(daemons=(Daemon("nomad", "nomad", 4), Daemon("slurm", "slurmd", 5))), "ok",
     "nomad, slurm run here"),
    ("pinners", facts(daemons=(Daemon("lxd", "incusd", 4),)), "ok", "lxd run"),
    ("proc-connector", facts(connector=ConnectorFacts(False, "CAP_NET_ADMIN is missing")), "warn", "CAP_NET_ADMIN"),
    ("proc-connector", facts(connector=ConnectorFacts()), "unknown", "not tried"),
    ("proc-connector", facts(connector=ConnectorFacts(False), settings={"watch.births": "false"}), "ok",
     "not used"),
    # vmpin itself
    ("watcher", facts(watcher=WatcherFacts()), "bad", "no watcher runs"),
    ("watcher", running(hook=False), "bad", "receives no events"),
    ("watcher", running(hook=True, new_threads=False, nri=False), "bad", "receives no events"),
    ("watcher", replace(running(hook=True), hooks=(hook(broken="gone"), hook(read_by=()))), "bad", "no hook reaches"),
    ("watcher", replace(running(hook=False, new_threads=False, resync=True), hooks=(hook(),)), "bad",
     "receives no events"),
    ("watcher", replace(running(hook=True, new_threads=False, nri=False), hooks=(hook(),)), "warn", "without nri"),
    ("watcher", running({"hook": 3}, hook=True, new_threads=False), "ok", "runs"),
    ("watcher", running(hook=False, new_threads=True), "warn", "without hook"),
    ("watcher", running(hook=True, new_threads=True, another=False), "ok", "runs"),
    ("watcher", running(hook=True, new_threads=True, resync=False), "bad", "passes fail"),
    ("watcher", facts(watcher=WatcherFacts("stopped", 100)), "bad", "is stopped"),
    ("watcher", facts(watcher=WatcherFacts("mute", 100, "does not answer within 10 s")), "bad", "within 10 s"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "unknown request 'about'")), "unknown", "unknown request"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "version": "1.1"}, "1.2")), "warn",
     "version 1.1"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "sources": [
        {"name": "nri", "up": False, "needed": True, "why": "refused"}]}, "1.2")), "warn", "without nri"),
    ("watcher", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "sources": [
        {"name": "new_threads", "up": False, "needed": False, "why": ""}]}, "1.2")), "ok", "runs"),
    ("config", configured("auto", "default", "union", "/f"), "warn", "1 key"),
    ("config", configured("union", "/f", "union", "/f"), "ok", "current configuration"),
    ("config", configured("union", "flag", "auto", "default"), "ok", "current configuration"),
    ("config", configured("auto", "default", "union", "environment VMPIN_POLICY_VCPUS"), "ok",
     "current configuration"),
    ("config", facts(watcher=WatcherFacts("running", config_warnings=("/f: unknown section 'x' is empty: ignored",))),
     "warn", "1 empty part of the configuration is ignored"),
    ("resync", facts(watcher=WatcherFacts()), "unknown", "no watcher"),
    ("resync", facts(watcher=WatcherFacts("running", 100, "", {**ABOUT, "resynced": 61.0})), "bad", "61.0 s ago"),
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
    ("vmms", facts(status=status(sandbox(), sandbox("b", vmm=None))), "ok", "1 VMM recognized"),
    ("vmms", facts(status=status()), "ok", "no VMM runs"),
    ("vmms", facts(status={}, status_trouble="denied"), "unknown", "denied"),
    ("vmms", facts(status=status(sandbox(rivals=[7, 8], reasons=["processes 7, 8 all name it"]))), "bad",
     "several VMMs name one sandbox"),
    ("vmms", facts(status=status(impostors=[{"pid": 7, "uid": 1000, "sandbox": "x"}])), "warn",
     "1 process of unprivileged users"),
    ("vcpu-threads", facts(status=status(sandbox(found_by="none"))), "bad", "1 VM cannot"),
    ("vcpu-threads", facts(status=status(sandbox(found_by="none", vmm=None))), "ok", "no VM runs"),
    ("vcpu-threads", facts(status={}, status_trouble="denied"), "unknown", "denied"),
    ("guests", facts(status=status(sandbox(guest={"by": "", "state": "refused"}))), "warn", "1 of 1 guest does"),
    ("guests", facts(status=status(sandbox(guest={"by": "vmpin-agent", "state": "up"}))), "ok", "1 guest answers"),
    ("guests", facts(status=status(sandbox(guest={"by": "", "state": WAITING}))), "ok", "waits for 1"),
    ("guests", facts(settings={"guest.via": "off"}), "ok", "nothing is sent"),
    ("guests", facts(watcher=WatcherFacts()), "unknown", "only a running watcher"),
    ("sandboxes", facts(status=status(sandbox(threads=[{"ok": False}]))), "bad", "1 thread is"),
    ("sandboxes", facts(status=status(sandbox(threads=[{"ok": False}])), watcher=WatcherFacts()), "warn",
     "would place"),
    ("sandboxes", facts(status=status(sandbox(verdict="degraded", reasons=["too few"]))), "warn", "is degraded"),
    ("sandboxes", facts(status=status(sandbox(threads=[{"ok": True}]))), "ok", "1 sandbox,"),
    ("sandboxes", facts(status=status(sandbox(verdict="unmanaged", reasons=["x"], threads=[{"ok": True}]))), "warn",
     "1 VM is left alone"),
    ("collisions", facts(status=status(collisions=[{"cpu": 2, "what": "two"}])), "bad", "1 exclusive CPU is open"),
    ("collisions", facts(status=status(disagreements=[{"container": "c", "what": "x"}])), "warn", "disagree"),
])
def test_a_check_judges(check: str, found: NodeFacts, level: str, says: str) -> None:
    judged = verdict(check, found)
    assert (judged.level, says in judged.what) == (level, True), judged
    if judged.level in (Level.WARN, Level.BAD):
        assert judged.remedy, "what is not right comes with what to do"
    if judged.level is Level.OK:
        assert not judged.remedy


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
    ("tuned", facts(sees=False)), ("pinners", facts(sees=False)),
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
    judged = verdict(check, found)
    assert judged.level is Level.UNKNOWN, judged


@pytest.mark.parametrize(("parameters", "says"), [
    (("isolcpus=managed_irq,domain,1-3",), "remove isolcpus from the kernel's command line"),
    (("nohz_full=1-3",), "end their isolated partition (cpuset.cpus.partition)")])
def test_isolated_cpus_in_the_pool_are_freed_where_they_were_isolated(parameters: tuple[str, ...], says: str) -> None:
    found = facts(cpus=CpuFacts(CpuSet.parse("0-7"), isolated=CpuSet.parse("1-3")),
                  kernel=Kernel("6.12.1", (6, 12), parameters))
    remedy = verdict("isolation", found).remedy
    assert remedy.endswith(says)
    # Only strict-cpu-reservation keeps any out of the kubelet's pool (cpumanager/policy_static.go: validateState).
    assert "shares each other CPU that no container owns, isolated or not" in remedy


@pytest.mark.parametrize(("authorities", "says"), [
    (["kubelet"], "strict-cpu-reservation"), (["ledger", "declared", "pool"], "allocator's pool"),
    (["dra"], "--reserved-cpus"), (["declared", "pool"], "keep them out of node.shared_pool,"),
    (["declared", "observed"], "keep them out of node.shared_pool")])
def test_isolated_cpus_are_kept_out_of_the_pool_where_it_is_set(authorities: list[str], says: str) -> None:
    found = facts(cpus=CpuFacts(CpuSet.parse("0-7"), isolated=CpuSet.parse("1-3")),
                  status=status(shared_pool="0-7", exclusive="", authorities=authorities))
    remedy = verdict("isolation", found).remedy
    assert says in remedy
    assert ("kubelet" in remedy) is (authorities == ["kubelet"])


@pytest.mark.parametrize(("file", "says"), [
    ("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "config-v3.toml.tmpl beside it"),
    ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "config-v3.toml.tmpl beside it"),
    ("/var/snap/microk8s/current/args/containerd.toml", "containerd-template.toml beside it"),
    ("/etc/k0s/containerd.toml", "a file in /etc/k0s/containerd.d"),
    ("/etc/cri/containerd.toml", "machine.files of Talos' configuration"),
    ("/etc/containerd/config.toml", "")])
def test_no_remedy_changes_a_file_that_a_distribution_overwrites(file: str, says: str) -> None:
    engine = containerd(handler(), nri=False, files=(file, "/other"))
    for check in ("nri", "hooks"):
        remedy = verdict(check, facts(status={}, nri_socket=False, engines=(engine,), hooks=(
            hook(read_by=("podman",)),))).remedy
        made = f"({file} is made anew at each start: change {says}"
        assert made in remedy if says else "made anew" not in remedy


def test_a_value_that_is_not_set_is_named_so() -> None:
    (line, *_) = verdict("config", configured("", "default", "/x", "/f")).evidence
    assert line.endswith(": the watcher has unset (default), this command /x (/f)")


def test_a_change_that_takes_a_restart_has_one_as_its_remedy() -> None:
    remedy = verdict("config", configured("auto", "default", "union", "/f")).remedy
    assert "its log then says that a change takes a restart: systemctl restart vmpin" in remedy
