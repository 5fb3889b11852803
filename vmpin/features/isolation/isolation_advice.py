"""What to do about foreign work on exclusive CPUs, by its kind. Pure."""

from __future__ import annotations

from enum import StrEnum

from vmpin.features.isolation.isolation_books import Thief


class ThiefKind(StrEnum):
    """Kinds of foreign work."""

    VM = "vm"
    CONTAINER = "container"
    HOST = "host"
    KERNEL = "kernel"
    INTERRUPTS = "interrupts"
    HYPERVISOR = "hypervisor"
    #: Several thieves that had little each.
    OTHERS = "others"


#: A kernel thread that takes work of any CPU: its CPUs are set in another place than those of other threads.
_WORKQUEUE = "kworker/u"


def title(thief: Thief) -> str:
    """`backup in backup.service (host daemon)`"""
    kind = {ThiefKind.VM: "thread of another VM", ThiefKind.CONTAINER: "another container",
            ThiefKind.HOST: "program of the node", ThiefKind.KERNEL: "kernel thread"}.get(ThiefKind(thief.kind))
    where = f" in {thief.where}" if thief.where else ""
    return f"{thief.name}{where}" + (f" ({kind})" if kind else "")


def advice(thief: Thief, cpus: str) -> str:
    """Describe how to keep a thief off the CPUs. :param cpus: of the pod, as a list."""
    match ThiefKind(thief.kind):
        case ThiefKind.VM:
            return ("vmpin verify and vmpin plan show threads outside of their placement; a VM that vmpin does not "
                    "manage (watch.only) or that is unpinned is not kept off")
        case ThiefKind.CONTAINER:
            return (f"its cpuset should not have CPUs {cpus}: set the kubelet's cpuManagerPolicy to static, or, where "
                    "the runtime has lost the cpuset, policy.runc_repair; vmpin audit shows its mask")
        case ThiefKind.HOST:
            unit = thief.where.rpartition("/")[2]
            place = f"of {unit} (systemctl edit {unit})" if unit.endswith((".service", ".scope")) else \
                "of its unit, or in /etc/systemd/system.conf"
            return f"set CPUAffinity= {place} to CPUs that no pod owns, and reservedSystemCPUs of the kubelet to these"
        case ThiefKind.KERNEL if thief.name.startswith(_WORKQUEUE):
            return f"write a mask without CPUs {cpus} to /sys/devices/virtual/workqueue/cpumask"
        case ThiefKind.KERNEL:
            return (f"a kernel thread that is bound to a CPU does that CPU's work; rcu_nocbs={cpus} on the kernel's "
                    "command line moves RCU's, and reservedSystemCPUs of the kubelet keeps such a CPU from pods")
        case ThiefKind.INTERRUPTS:
            return (f"keep interrupts off CPUs {cpus}: irqaffinity= on the kernel's command line with the other CPUs, "
                    f"and IRQBALANCE_BANNED_CPULIST={cpus} for irqbalance")
        case ThiefKind.HYPERVISOR:
            return "this node is a virtual machine: have its vCPUs pinned, or its host less overcommitted"
        case ThiefKind.OTHERS:
            return f"many short runs of several programs: `vmpin audit --seconds 60` shows what may run on CPUs {cpus}"
