"""What to do about foreign work on exclusive CPUs, by its kind. Pure."""

from __future__ import annotations

from enum import StrEnum

from vmpin.features.isolation.isolation_books import ForeignProgram


class ProgramKind(StrEnum):
    """Kinds of foreign programs."""

    VM = "vm"
    CONTAINER = "container"
    HOST = "host"
    KERNEL = "kernel"
    INTERRUPTS = "interrupts"
    HYPERVISOR = "hypervisor"
    #: Several programs that each had little time.
    OTHERS = "others"


#: A kernel thread that takes work of any CPU: its CPUs are set in another place than those of other threads.
_WORKQUEUE = "kworker/u"


def title(program: ForeignProgram) -> str:
    """`backup in backup.service (host daemon)`"""
    kinds = {ProgramKind.VM: "thread of another VM", ProgramKind.CONTAINER: "another container",
             ProgramKind.HOST: "program of the node", ProgramKind.KERNEL: "kernel thread"}
    kind = kinds.get(ProgramKind(program.kind))
    where = f" in {program.where}" if program.where else ""
    return f"{program.name}{where}" + (f" ({kind})" if kind else "")


def advice(program: ForeignProgram, cpus: str) -> str:
    """How to keep a program off a pod's CPUs. :param cpus: as a list."""
    match ProgramKind(program.kind):
        case ProgramKind.VM:
            return ("run `vmpin verify`: it lists threads outside of their placement; vmpin keeps no VM off that it "
                    "does not manage (watch.only), or that is unpinned")
        case ProgramKind.CONTAINER:
            return (f"its cpuset must not include CPUs {cpus}: set the kubelet's cpuManagerPolicy to static, or "
                    "policy.runc_repair where the runtime has lost the cpuset; `vmpin audit` shows its mask")
        case ProgramKind.HOST:
            unit = program.where.rpartition("/")[2]
            place = f"of {unit} (systemctl edit {unit})" if unit.endswith((".service", ".scope")) else \
                "of its unit, or in /etc/systemd/system.conf"
            return f"set CPUAffinity= {place} to CPUs that no pod owns, and the kubelet's reservedSystemCPUs to them"
        case ProgramKind.KERNEL if program.name.startswith(_WORKQUEUE):
            return f"write a mask without CPUs {cpus} to /sys/devices/virtual/workqueue/cpumask"
        case ProgramKind.KERNEL:
            return (f"a kernel thread that is bound to a CPU does that CPU's work; rcu_nocbs={cpus} on the kernel's "
                    "command line moves RCU's work, and the kubelet's reservedSystemCPUs keeps such a CPU from pods")
        case ProgramKind.INTERRUPTS:
            return (f"keep interrupts off CPUs {cpus}: irqaffinity= on the kernel's command line with the other CPUs, "
                    f"and IRQBALANCE_BANNED_CPULIST={cpus} for irqbalance")
        case ProgramKind.HYPERVISOR:
            return "this node is a virtual machine: pin its vCPUs on its host, or run fewer VMs there"
        case ProgramKind.OTHERS:
            return f"many short runs of several programs: `vmpin audit --seconds 60` shows what may run on CPUs {cpus}"
