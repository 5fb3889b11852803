"""The table of all checks, in the order of the output: machine, sources, Kata, other writers of masks, vmpin.

Pure."""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.domain.facts import NodeFacts
from vmpin.feature import features
from vmpin.features.common.finding import Check, CheckResult, Finding, unknown
from vmpin.features.doctor import kata_checks, node_checks, rival_checks, service_checks, source_checks

CHECKS = (
    Check("privileges", "the capabilities of the watcher, or of this command", node_checks.privileges),
    Check("namespaces", "whether it sees the node's processes", node_checks.namespaces),
    Check("kernel", "its version, and what follows from it", node_checks.kernel),
    Check("cpus", "offline CPUs that are exclusive or configured", node_checks.cpus),
    Check("isolation", "isolcpus=, nohz_full= and the shared pool", node_checks.isolation),
    Check("cgroups", "the layout, and cpusets that keep a VMM off its sandbox's CPUs", node_checks.cgroups),
    Check("kubelet", "the CPU manager's policy, its configuration and its checkpoint", source_checks.kubelet),
    Check("kubelet-options", "the policy's options, and cores that two owners share", source_checks.kubelet_options),
    Check("authorities", "what decides on exclusive CPUs, and whether two do at once", source_checks.authorities),
    Check("nri", "the container runtime's NRI: configured, available, connected", source_checks.nri),
    Check("hooks", "vmpin's OCI hook: registrations, their readers, received messages", source_checks.hooks),
    Check("kata", "Kata's configurations, drop-ins and handlers, of both its runtimes", kata_checks.kata),
    Check("kata-pinning", "Kata's own enable_vcpus_pinning, which sets the same masks", kata_checks.pinning),
    Check("kata-vcpus", "how many vCPUs Kata's VMs can have (static_sandbox_resource_mgmt, default_maxvcpus)",
          kata_checks.vcpus),
    Check("kata-cgroup", "policies that a sandbox's cgroup prevents (sandbox_cgroup_only)", kata_checks.cgroup),
    Check("kata-guest", "confidential guests, and hooks of the guest's image", kata_checks.guest),
    Check("tuned", "whether its scheduler plugin also sets the VMMs' masks", rival_checks.tuned),
    Check("pinners", "KubeVirt, libvirt, NRI policies and others that pin or write cpusets", rival_checks.pinners),
    Check("proc-connector", "whether the kernel reports new threads", rival_checks.proc_connector),
    Check("watcher", "whether it runs, its version, its sources", service_checks.watcher),
    Check("config", "whether the watcher has loaded the current configuration", service_checks.configuration),
    Check("resync", "time since the last resync", service_checks.resync),
    Check("run-directory", "/run/vmpin: permissions, space, waiting messages", service_checks.run_directory),
    Check("state-file", "whether it is sound", service_checks.state_file),
    Check("vmms", "whether each sandbox's VMM is recognized, and the only one", service_checks.vmms),
    Check("vcpu-threads", "whether the VMs' vCPU threads are identified", service_checks.vcpu_threads),
    Check("guests", "whether the guests' agents answer", service_checks.guests),
    Check("sandboxes", "misplaced threads, and degraded sandboxes", service_checks.sandboxes),
    Check("collisions", "exclusive CPUs that others may use", service_checks.collisions))


def all_checks() -> tuple[Check, ...]:
    """The checks of every node, then those of other features."""
    return tuple(check for feature in features() if feature.checks for check in feature.loaded(feature.checks, tuple))


def examine(facts: NodeFacts, only: Iterable[str] = ()) -> list[Finding]:
    """The findings of the checks. :param only: names, or prefixes of names (kata: all of Kata's); () for all."""
    wanted = tuple(only)
    return [Finding(check.name, _judge(check, facts)) for check in all_checks()
            if not wanted or any(check.name == name or check.name.startswith(f"{name}-") for name in wanted)]


def _judge(check: Check, facts: NodeFacts) -> CheckResult:
    """The result of one check; unknown where the status of a watcher of another version lacks a needed key."""
    try:
        return check.judge(facts)
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        return unknown(f"the facts cannot be evaluated: {err!r}"[:200],
                       remedy="are vmpin and its watcher the same version?")
