"""Checks of other programs that set masks or write cpusets, and of the kernel's process events.

Pure."""

from __future__ import annotations

from collections.abc import Sequence

from vmpin.domain.facts import NodeFacts, Tuned
from vmpin.domain.tuned_movers import HELPERS, VMMS, mask_options, movers, spares_cgroup
from vmpin.features.common.finding import CheckResult, bad, ok, several, unknown, warn

#: By kind of daemon: its effect on masks, and the remedy. tuned has a check of its own.
PINNERS = {
    "kubevirt": ("KubeVirt pins the vCPUs of its VMs with dedicatedCpuPlacement, and moves every other thread",
                 "none, unless its VMs have names that vmpin manages (sandbox-ID); then exclude them by "
                 "watch.only"),
    "libvirt": ("libvirt sets vcpupin, emulatorpin and iothreadpin when its VMs start",
                "none, unless its VMs have names that vmpin manages (sandbox-ID); then remove those elements"),
    "balloons": ("the NRI policy plugin gives containers CPUs of its own choosing, shared within a balloon",
                 "leave node.shared_pool unset: a VM that is alone in its balloon is then pinned on its CPUs, and one "
                 "that shares it floats there. With the key set, vmpin would treat a balloon's CPUs as exclusive to "
                 "one container"),
    "topology-aware": ("the NRI policy plugin changes containers' cpusets by itself",
                       "none: vmpin follows the cpusets that it sets"),
    "numad": ("numad moves processes to the node of their memory, all of their threads at once",
              "stop it (systemctl disable --now numad), or keep it off the VMMs (numad -x PID)"),
    "koordinator": ("koordlet writes cpusets of pods, and those of best-effort ones every second",
                    "none: vmpin follows them"),
    "crane": ("crane-agent writes containers' cpusets every five seconds", "none: vmpin follows them"),
    "nri-policy": ("the NRI policy plugin changes containers' cpusets by itself",
                   "none: vmpin follows the cpusets that it sets"),
    "dra-driver-cpu": ("dra-driver-cpu gives containers the CPUs of their ResourceClaims over NRI, others the rest",
                       "none: vmpin follows its claims"),
    "katalyst": ("katalyst-agent writes containers' cpusets by their QoS, and changes its pools as it runs",
                 "none: vmpin follows them"),
    "cpu-pooler": ("CPU-Pooler's setter writes containers' cpusets by the pool that they asked for",
                   "none: vmpin follows them"),
    "ctlplane": ("Intel's CPU control plane writes containers' cpuset cgroups by its own allocator",
                 "none: vmpin follows them"),
    "mixed-cpus": ("the NRI plugin mixedcpu adds CPUs that are shared to containers with exclusive ones",
                   "none: vmpin treats the added CPUs as shared"),
    "cmk": ("CMK starts containers' programs on CPUs of its pools, and sets their masks itself: no cpuset shows these",
            "name the CPUs outside its exclusive pools: node.shared_pool"),
    "cri-resmgr": ("cri-resource-manager rewrites containers' cpusets between the kubelet and the runtime",
                   "none: vmpin follows the cpusets that the runtime received"),
    # lpmd_cgroup.c: AllowedCPUs= of three slices, or an isolated partition of the root.
    "lpmd": ("intel_lpmd takes CPUs away from all services, or from every cgroup, in its low power mode",
             "stop it (systemctl disable --now intel_lpmd)"),
    "nomad": ("Nomad gives its tasks CPUs of its own choosing", "give each its own CPUs: client.reserved.cores of "
              "Nomad, reservedSystemCPUs of the kubelet"),
    "slurm": ("slurmd gives its jobs CPUs of its own choosing", "give each its own CPUs: CpuSpecList in slurm.conf, "
              "reservedSystemCPUs of the kubelet"),
    # incusd/devices.go: deviceTaskBalance; instance/drivers/driver_qemu.go: the threads of its own VMs.
    "lxd": ("LXD and Incus give their containers CPUs of their own choosing, or all of them", "limits.cpu of each "
            "instance: a list of CPUs that the kubelet reserves (reservedSystemCPUs)")}
_BLIND = "the node's processes are invisible here"
_SEE = "run this as root; in a pod: hostPID: true"


def tuned(facts: NodeFacts) -> CheckResult:
    running = [daemon for daemon in facts.daemons if daemon.kind == "tuned"]
    active = facts.tuned
    evidence = [f"tuned pid {daemon.pid}" for daemon in running]
    if active.profile:
        evidence.append(f"active profile {active.profile} ({several(active.files, 6) or 'its files were not found'})")
    evidence += [f"{setting.file}: [scheduler] {key} = {setting.value}" for key, setting in active.scheduler.items()]
    if not running:
        return ok("tuned does not run", *evidence) if facts.sees else unknown(_BLIND, *evidence, remedy=_SEE)
    if active.off:
        return ok("tuned runs without a profile (`tuned-adm off`)", *evidence)
    if not active.profile:
        return unknown("tuned runs, and its profile is unknown", *evidence, remedy="tuned-adm active")
    options = mask_options(active)
    spared = [spares_cgroup(active, process.cgroups) for process in facts.vm_processes]
    vmms, helpers = _names(facts, spared)
    moving, helping = (movers(active, names) if names else [] for names in (vmms, helpers))
    if not options and active.lost:
        return unknown(f"tuned runs with profile {active.profile}, and {several(active.lost)} cannot be read here: "
                       "whether it sets masks is unknown", *evidence, remedy="read the profile's tuned.conf "
                       "where tuned runs: isolated_cores and group.* under [scheduler] set masks")
    if not options:
        return ok(f"tuned's profile {active.profile} sets no masks", *evidence)
    if not moving and not helping:
        return ok(f"tuned's profile {active.profile} sets masks, but not those of VMs (ps_blacklist, ps_whitelist, "
                  "cgroup_ps_blacklist, or a group's pattern)", *evidence)
    if active.scheduler.get("cgroup_ps_blacklist") and (None in spared or not spared):
        return warn(f"tuned's profile {active.profile} sets masks; it excludes some cgroups, and the pattern decides "
                    "whether these are the VMs'", "make cgroup_ps_blacklist match the VMMs' cgroups, including "
                    "/kata_overhead", *evidence)
    if not moving:
        return warn(f"tuned's profile {active.profile} spares VMMs, but sets the masks of their virtiofsd or shims, "
                    f"{several(helping)}", _remedy(active, helping), *evidence)
    return bad(f"tuned's scheduler plugin also sets the masks of VMMs: profile {active.profile}, {several(moving)}",
               _remedy(active, moving), *evidence)


_VM_NAMES = (".*qemu-.*;.*cloud-hyperviso.*;.*firecracker.*;.*stratovirt.*;.*openvmm.*;.*virtiofsd.*;.*nydusd.*;"
             ".*containerd-shim.*;.*vhost-.*;.*kvm-.*")


def _remedy(active: Tuned, moving: Sequence[str]) -> str:
    """How to keep tuned off VMs. The new list replaces the profile's own, which may spare OVS-DPDK's threads, and may
    end with a backslash and a semicolon, or be longer than is evaluated: it comes last. Of groups tuned compares no
    list (plugin_scheduler.py: _instance_apply_static)."""
    own = active.scheduler.get("ps_blacklist")
    spared = ";".join(filter(None, (_VM_NAMES, "" if own is None else str(own.value))))
    groups = [key for key in moving if key != "isolated_cores"]
    ways = [f"[scheduler] ps_blacklist={spared} (tuned compares the first 15 characters of a name)"
            ] if len(groups) < len(moving) else []
    ways += [f"{several(groups)} with a pattern that no VMM's command line has (ps_blacklist spares none from a group)"
             ] if groups else []
    return f"in a profile that includes this one: {'; and '.join(ways)}"


def _names(facts: NodeFacts, spared: Sequence[bool | None]) -> tuple[set[str], set[str]]:
    """The names of the VMMs, and of the processes beside them, that are in no cgroup which tuned spares. Without VMs
    those of the VMMs that Kata's configurations name, else the usual ones. The kernel cuts a name to 15 characters."""
    left = [process for process, spares in zip(facts.vm_processes, spared, strict=True) if not spares]
    if spared:
        return {process.name for process in left if process.vmm}, {process.name for process in left if not process.vmm}
    return {str(setting.value).rpartition("/")[2][:15] for config in facts.kata if config.read_by
            for _, setting in config.find("path")} or {*VMMS}, {*HELPERS}


def pinners(facts: NodeFacts) -> CheckResult:
    rivals = [daemon for daemon in facts.daemons if daemon.kind in PINNERS]
    kinds = dict.fromkeys(daemon.kind for daemon in rivals)
    evidence = [f"{daemon.name} pid {daemon.pid}" for daemon in rivals]
    if not kinds and not facts.sees:
        return unknown(_BLIND, remedy=_SEE)
    if not kinds:
        return ok("no other program that pins threads or writes cpusets was found")
    evidence += [PINNERS[kind][0] for kind in kinds]
    if "numad" in kinds:
        return warn("numad runs, and moves all threads of a VMM together", PINNERS["numad"][1], *evidence)
    if "lpmd" in kinds:
        return warn("intel_lpmd runs, and takes CPUs away from cgroups", PINNERS["lpmd"][1], *evidence)
    if "balloons" in kinds and facts.settings.get("node.shared_pool"):
        return warn("nri-plugins' balloons run here, and node.shared_pool is set", PINNERS["balloons"][1], *evidence)
    return ok(f"{several(kinds)} run{'s' * (len(kinds) == 1)} here", *evidence,
              *(f"{kind}: {PINNERS[kind][1]}" for kind in kinds))


def proc_connector(facts: NodeFacts) -> CheckResult:
    connector = facts.connector
    if facts.settings.get("watch.births") == "false":
        return ok("process events are not used (watch.births: false): new threads are placed at a resync")
    if connector.available is None:
        return unknown(f"whether the kernel's process events are available is unknown: {connector.why or 'not tried'}",
                       remedy="run this as root")
    if not connector.available and facts.watcher.state != "running" and facts.rights.uid != 0:
        return unknown(f"whether a watcher would receive the kernel's process events is unknown: {connector.why} here",
                       remedy="run this as root")
    if not connector.available:
        return warn(f"no process events from the kernel: {connector.why}. New threads are placed at a resync instead "
                    "of at their creation", "process events need CAP_NET_ADMIN, and the machine's own pid, user "
                    "and network namespaces (config/vmpin.service; in a pod: hostNetwork: true, hostPID: true)")
    version = facts.kernel.version
    filters = version is not None and version >= (6, 6)
    return ok("the kernel reports new processes and threads", "the kernel filters events (since 6.6)" if filters else
              "the kernel does not filter events (before 6.6): each one on the node wakes the watcher")
