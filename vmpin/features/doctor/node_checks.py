"""Checks of the machine: privileges and namespaces, kernel, CPUs and their isolation, cgroups.

Pure."""

from __future__ import annotations

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import number_of
from vmpin.features.common.finding import CheckResult, bad, ok, several, unknown, warn

#: By capability, the effect of its absence.
NEEDED = {
    "CAP_SYS_NICE": "masks of other users' threads cannot be set",
    "CAP_SYS_PTRACE": "vCPU threads without a name cannot be identified (/proc/PID/task/TID/syscall and /proc/PID/fd)",
    "CAP_DAC_READ_SEARCH": "VMMs that do not run as root, and their bundles, cannot be read"}
_GRANT = ("run it as root, or give the service the capability (CapabilityBoundingSet= in config/vmpin.service, "
          "watcher.privileged in the chart's values)")
_ALONE = "run only containers with CPUs of their own on this node, or reserve these CPUs"
#: How to keep isolated CPUs out of the shared pool, by the authority that has the pool (kubelet:
#: cpumanager/policy_static.go, validateState). Without one of these it is node.shared_pool.
_OUT_OF_POOL = {
    "kubelet": f"{_ALONE} (reservedSystemCPUs, with the policy option strict-cpu-reservation: the kubelet shares each "
               "other CPU that no container owns, isolated or not)",
    "ledger": "wait for the next resync, which takes them out of the allocator's pool",
    "dra": f"{_ALONE} (reservedCPUs of dra-driver-cpu, or --reserved-cpus)"}


def privileges(facts: NodeFacts) -> CheckResult:
    rights = facts.rights
    process = f"{rights.who} (pid {rights.pid}, uid {rights.uid})"
    if rights.capabilities is None:
        return unknown(f"the capabilities of {rights.who} cannot be read", process, remedy="run this as root")
    has = ", ".join(sorted(rights.capabilities)) or "none of the required ones"
    evidence = [f"{process} has {has}"]
    wanted = dict(NEEDED)
    if "CAP_DAC_OVERRIDE" in rights.capabilities:
        del wanted["CAP_DAC_READ_SEARCH"]  # CAP_DAC_OVERRIDE includes it
    if facts.settings.get("watch.status_group"):
        wanted["CAP_CHOWN"] = "the status socket cannot be given to watch.status_group"
    lacking = [name for name in wanted if name not in rights.capabilities]
    evidence += [f"without {name} {wanted[name]}" for name in lacking]
    if facts.watcher.state != "running" and rights.uid != 0 and "CAP_SYS_NICE" in lacking:
        return unknown("no watcher was found, and this command is not root: the privileges of a watcher are unknown",
                       *evidence, remedy="run this as root")
    if "CAP_SYS_NICE" in lacking:
        return bad(f"{rights.who} cannot set masks", _GRANT, *evidence)
    if lacking:
        return warn(f"{rights.who} lacks {', '.join(lacking)}", _GRANT, *evidence)
    return ok(f"{rights.who} has every required capability", *evidence)


def namespaces(facts: NodeFacts) -> CheckResult:
    rights = facts.rights
    initial_by_name = {"pid": rights.pid_ns, "user": rights.user_ns}
    evidence = [f"{name} namespace: {'the machine' if initial else 'not the machine'}'s own"
                for name, initial in initial_by_name.items() if initial is not None]
    # With the container runtime in the same namespace as this command, all of the node is in a container.
    contained = rights.pid_ns is False and not facts.sees and any(engine.pid for engine in facts.engines)
    if rights.pid_ns is False and not contained:
        return bad(f"{rights.who} is in a pid namespace of its own: the VMMs of the node are invisible",
                   "in a pod: hostPID: true (config/kubernetes/vmpin.yaml)", *evidence)
    if rights.user_ns is False:
        return bad(f"{rights.who} is in a user namespace: its capabilities do not reach the node's threads",
                   "run it outside that namespace; in a pod without hostUsers: false", *evidence)
    if None in initial_by_name.values():
        return unknown("the namespaces cannot be read", *evidence)
    if contained:
        return ok(f"{rights.who} sees the processes of this node, which is a container itself (kind, LXD): VMs "
                  "outside it are no part of the node", *evidence)
    return ok(f"{rights.who} sees the machine's processes", *evidence)


def kernel(facts: NodeFacts) -> CheckResult:
    running = facts.kernel
    if running.version is None:
        return unknown(f"the kernel's release {running.release!r} names no version")
    evidence = [f"Linux {running.release}"]
    if running.version < (6, 4):
        evidence.append("vhost workers are kernel threads beside the VMM (before 6.4)")
    elif running.version < (6, 12):
        evidence.append("vhost workers are threads of the VMM (since 6.4)")
    else:
        evidence.append("vhost workers are threads of the VMM (since 6.4), or beside it if the kernel is configured "
                        "to fork them (since 6.12): vmpin finds both")
    if not running.schedstat:
        evidence.append("no /proc/PID/schedstat (CONFIG_SCHED_INFO): run times are in clock ticks only")
    if not running.kvm_debugfs:
        evidence.append("no KVM debugfs (/sys/kernel/debug/kvm): one method less to identify vCPU threads, which "
                        "matters for threads without names")
    if running.mshv:  # drivers/hv/mshv_root_main.c: mshv_vp_ioctl_run_vp
        return warn("VMs are Microsoft's hypervisor's: unless Linux schedules their vCPUs, masks do not bind them",
                    "none on this node: the kernel's log names the scheduler (`mshv: Hypervisor using …`), and only "
                    "the root scheduler is Linux'. A VM's other threads have their masks in any case", *evidence)
    if running.version < (6, 2):
        return warn("before 6.2 the kernel forgets a thread's mask whenever its cpuset changes", "none needed: masks "
                    f"are restored at the next resync (every {facts.settings.get('watch.resync_seconds', '10')} s, "
                    f"watch.resync_seconds). Linux 6.2 and newer remember it", *evidence)
    return ok("the kernel remembers masks when a cpuset changes (since 6.2)", *evidence)


def cpus(facts: NodeFacts) -> CheckResult:
    machine = facts.cpus
    if not machine.online:
        return unknown("the online CPUs are unknown", machine.trouble)
    evidence = [f"online {machine.online}" + (f" of {machine.present}" if machine.present else ""),
                f"SMT {'is on' if machine.smt else 'is switched off' if machine.smt_off else 'is off or absent'}",
                f"exclusive {facts.exclusive or 'none'}, shared pool {facts.pool or 'unknown'}"]
    gone = _owned(facts) - machine.online
    if gone:
        return bad(f"CPUs {gone} are exclusive to a container and not online",
                   "bring them online (echo 1 >/sys/devices/system/cpu/cpuN/online), or restart their pods", *evidence)
    configured = union(CpuSet.parse(facts.settings.get(key, "")) for key in ("node.shared_pool", "node.housekeeping"))
    if configured - machine.online:
        return warn(f"CPUs {configured - machine.online} of node.shared_pool or node.housekeeping are not online",
                    "correct the configuration, or bring them online", *evidence)
    offline = machine.present - machine.online
    if offline and facts.cgroups in ("v1", "hybrid") and not machine.smt_off:
        return warn(f"CPUs {offline} are offline, and cgroup v1 has removed them from every cpuset permanently",
                    "once they are online, write the CPUs into cpuset.cpus again, or restart the pods", *evidence)
    return ok(f"{number_of(len(machine.online), 'CPU is')} online", *evidence)


def _owned(facts: NodeFacts) -> CpuSet:
    """The CPUs that containers own, online or not: those in the status of the node are online."""
    point = None if facts.settings.get("watch.kubelet") == "false" else facts.checkpoint
    return union((facts.exclusive, EMPTY if point is None else point.exclusive, *(
        CpuSet.parse(container.get("own_cpus") or "") for sandbox in facts.sandboxes
        for container in sandbox.get("containers", ()))))


def isolation(facts: NodeFacts) -> CheckResult:
    machine = facts.cpus
    if not machine.online:
        return unknown("the isolated CPUs are unknown", machine.trouble)
    parameters = [text for text in facts.kernel.parameters
                  if text.partition("=")[0] in ("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity")]
    evidence = [f"isolated {machine.isolated or 'none'}, nohz_full {machine.nohz_full or 'none'}", *parameters]
    piled = machine.isolated & facts.pool
    if piled:
        how = ("remove isolcpus from the kernel's command line" if any(
            text.startswith("isolcpus=") for text in parameters) else
            "end their isolated partition (cpuset.cpus.partition)")
        return warn(f"CPUs {piled} of the shared pool are isolated: the scheduler does not move threads among them, "
                    "so shared containers and floating vCPUs pile up on one",
                    f"{_out_of_pool(facts)}, or {how}", *evidence)
    if machine.isolated and not machine.isolated.isdisjoint(facts.exclusive):
        evidence.append(f"isolated and exclusive: {machine.isolated & facts.exclusive}; one pinned vCPU on each works "
                        "well, several floating vCPUs do not")
    if machine.nohz_full & facts.pool:
        evidence.append(f"nohz_full CPUs {machine.nohz_full & facts.pool} are in the shared pool, where it only "
                        "adds overhead")
    return ok("the kernel's CPU isolation does not conflict with placement" if evidence[1:] or machine.isolated
              else "no CPU is isolated by the kernel", *evidence)


def _out_of_pool(facts: NodeFacts) -> str:
    """How to keep isolated CPUs out of the pool. Without a status the pool is that of the kubelet's checkpoint."""
    authorities = (facts.status.get("node") or {}).get("authorities", ("kubelet",))
    return next((_OUT_OF_POOL[name] for name in authorities if name in _OUT_OF_POOL),
                "keep them out of node.shared_pool")


def cgroups(facts: NodeFacts) -> CheckResult:
    if facts.cgroups == "none":
        return bad("no cpuset cgroups were found", "mount them at paths.cgroup (in a pod: /sys/fs/cgroup of the node, "
                   "as in config/kubernetes/vmpin.yaml)")
    evidence = [f"layout {facts.cgroups}"]
    capped, hidden = list[str](), list[str]()
    for sandbox in facts.sandboxes:
        group, mask = sandbox.get("cgroup"), sandbox.get("mask")
        if group is None and sandbox.get("vmm") is not None:
            hidden.append(sandbox["id"])
        if group is None or not mask:
            continue
        lacking = CpuSet.parse(mask) - CpuSet.parse(group["cpus"])
        if lacking:
            capped.append(sandbox["id"])
            path, cpus = facts.narrow_cgroups.get(group["path"], (group["path"], group["cpus"]))
            above = f", as has {group['path']} below it" * (path != group["path"])
            evidence.append(f"{sandbox['id']}: mask {mask}, but {path} has {cpus}{above}")
    if capped:
        vmms = number_of(len(capped), "VMM")
        return warn(f"the cpuset cgroup keeps {vmms} off CPUs of the sandbox: {several(capped)}",
                    "find the program that writes that cgroup: the kubelet, Kata (sandbox_cgroup_only), an NRI "
                    "plugin, or systemd (`systemctl show -p AllowedCPUs UNIT`: a slice above the pods needs the CPUs "
                    "of the shared pool)", *evidence)
    if hidden:
        return unknown(f"the cpuset cgroup of {number_of(len(hidden), 'VMM')} cannot be read here: {several(hidden)}",
                       *evidence, remedy="the machine's own cgroup namespace shows them: in a pod watcher.privileged "
                       "in the chart's values (on cgroup v2 a container has a namespace of its own otherwise)")
    if not facts.status:
        return unknown(f"cgroups are {facts.cgroups}; whether VMMs have the CPUs of their sandboxes is "
                       f"unknown: {facts.status_trouble}", *evidence, remedy="run this as root")
    return ok(f"cgroups are {facts.cgroups}, and every VMM's cgroup has the CPUs of its sandbox", *evidence)
