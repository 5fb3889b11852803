"""All checks, in the order in which they are told: the machine, who tells vmpin what, who else pins, vmpin itself."""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.doctor import cluster, hooks, kata, node, others, service
from vmpin.doctor.finding import Check, Finding, Verdict, unknown
from vmpin.domain.facts import Facts

CHECKS = (
    Check("privileges", "the capabilities of the watcher, or of this command", node.privileges),
    Check("namespaces", "whether it sees the node's processes", node.namespaces),
    Check("kernel", "its version, and what follows from it", node.kernel),
    Check("cpus", "offline CPUs that somebody counts on", node.cpus),
    Check("isolation", "isolcpus=, nohz_full= and the shared pool", node.isolation),
    Check("cgroups", "the layout, and cpusets that keep a VMM off its sandbox's CPUs", node.cgroups),
    Check("kubelet", "the CPU manager's policy, its configuration and its checkpoint", cluster.kubelet),
    Check("kubelet-options", "the policy's options, and cores that two owners share", cluster.kubelet_options),
    Check("nri", "the container runtime's NRI: configured, there, connected", cluster.nri),
    Check("hooks", "vmpin's OCI hook: where, which runtime reads it, whether it runs and was received", hooks.hooks),
    Check("kata", "Kata's configurations, drop-ins and handlers, of both its runtimes", kata.kata),
    Check("kata-pinning", "Kata's own enable_vcpus_pinning, which fights with vmpin", kata.pinning),
    Check("kata-vcpus", "how many vCPUs Kata's VMs can have (static_sandbox_resource_mgmt, default_maxvcpus)",
          kata.vcpus),
    Check("kata-cgroup", "policies that a sandbox's cgroup does not let through (sandbox_cgroup_only)", kata.cgroup),
    Check("kata-guest", "confidential guests, and hooks of the guest's image", kata.guest),
    Check("irqbalance", "whether it runs; harmless", others.irqbalance),
    Check("tuned", "whether its scheduler plugin sets the VMMs' masks, too", others.tuned),
    Check("pinners", "KubeVirt, libvirt, NRI policies and others that pin or write cpusets", others.pinners),
    Check("proc-connector", "whether the kernel tells of new threads", others.proc_connector),
    Check("watcher", "whether it runs, its version, its sources", service.watcher),
    Check("config", "whether the watcher has the configuration that is there now", service.configuration),
    Check("resync", "how long ago everything was looked at", service.resync),
    Check("run-directory", "/run/vmpin: permissions, space, messages that wait", service.run_directory),
    Check("state-file", "whether it is sound", service.state_file),
    Check("vcpu-threads", "whether the VMs' vCPU threads can be told from the others", service.vcpu_threads),
    Check("guests", "whether the guests' agents answer", service.guests),
    Check("sandboxes", "threads out of place, and sandboxes that have less than was asked", service.sandboxes),
    Check("collisions", "CPUs that are not their owner's alone", service.collisions),
)


def examine(facts: Facts, only: Iterable[str] = ()) -> list[Finding]:
    """Each check's finding; `only` are names, or beginnings of names (kata: all of Kata's), () is all."""
    wanted = tuple(only)
    return [Finding(check.name, _judge(check, facts)) for check in CHECKS
            if not wanted or any(check.name == name or check.name.startswith(f"{name}-") for name in wanted)]


def _judge(check: Check, facts: Facts) -> Verdict:
    """The status may be that of a watcher of another version: what it lacks costs the checks that need it."""
    try:
        return check.judge(facts)
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        return unknown(f"it cannot be judged by what was found: {err!r}"[:200],
                       remedy="are vmpin and its watcher the same version?")
