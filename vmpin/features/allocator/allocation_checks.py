"""Checks of the allocator: whether anything else gives out CPUs, and whether the scheduler counts as it does.

Pure."""

from __future__ import annotations

import math
import re

from vmpin.bounded import parse_real
from vmpin.cpuset import CpuSet, CpuSetError, union
from vmpin.domain.facts import ALLOCATORS, KubeletConfig, NodeFacts
from vmpin.domain.terminal import number_of
from vmpin.features.common.finding import Check, CheckResult, bad, ok, several, unknown, warn

_RESERVATIONS = ("systemReserved", "kubeReserved")
_QUANTITY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)")


def allocation(facts: NodeFacts) -> CheckResult:
    mode = facts.settings.get("allocate.mode", "off")
    if mode == "off":
        return ok("vmpin gives out no CPUs (allocate.mode: off): it follows the CPUs that other programs assign")
    reserved = CpuSet.parse(facts.settings.get("allocate.reserved", ""))
    evidence = [f"allocate.mode {mode}, reserved CPUs {reserved or 'none'}", *_kubelet_evidence(facts)]
    point = facts.checkpoint
    if point is not None and point.policy.lower() == "static":
        return bad("the kubelet's CPU manager is static, so vmpin gives out no CPUs and follows the kubelet's",
                   "set allocate.mode: off, or give the kubelet the policy none: drain the node, remove "
                   f"{point.path}, restart the kubelet", *evidence)
    beside = _beside(facts, reserved, evidence)
    if beside is not None:
        return beside
    if facts.settings.get("watch.nri") == "off" or facts.nri_socket is False:
        return bad("CPUs are given in the answers to NRI's calls, and NRI is off", "enable NRI in the container "
                   "runtime's configuration, and set watch.nri: on", *evidence)
    return _counts(facts, reserved, evidence)


def _beside(facts: NodeFacts, reserved: CpuSet, evidence: list[str]) -> CheckResult | None:
    """The result where another program gives out CPUs; None without one."""
    status = (facts.status.get("features") or {}).get("allocator") or {}
    proven = [other for other in facts.allocators if other.is_rival(reserved)]
    named = list(dict.fromkeys(other.name for other in proven))
    rivals = [*dict.fromkeys([*named, *(daemon.name for daemon in facts.daemons
                                        if daemon.kind in ALLOCATORS and daemon.kind not in named)])]
    others = status.get("foreign") or ()
    evidence += [f"{other.name}: {other.evidence}" for other in proven]
    evidence += [f"{name} came with a cpuset that vmpin did not give" for name in others]
    if status.get("suspended"):
        return bad(f"vmpin gives out no CPUs: {status['suspended']}", "let only one program decide, and restart vmpin "
                   "(docs/migrate.md has the order)", *evidence)
    if rivals or others:
        who = several(rivals) + (" give" if len(rivals) > 1 else " gives") if rivals else (
            f"another NRI plugin or the runtime ({number_of(len(others), 'container')} came with a cpuset) gives")
        return bad(f"{who} out CPUs as well", "let only one of them decide: remove it from this node "
                   "(docs/migrate.md has the order), or set allocate.mode: off", *evidence)
    return None


def _counts(facts: NodeFacts, kept: CpuSet, evidence: list[str]) -> CheckResult:
    """Compare the CPUs that the scheduler gives out with those that vmpin can give out."""
    if not facts.cpus.online:
        return unknown("the online CPUs are unknown", facts.cpus.trouble)
    if facts.cpus.online <= kept:
        return bad(f"every online CPU is reserved ({kept}): no container can get CPUs of its own",
                   "reserve fewer CPUs (allocate.reserved)", *evidence)
    if not kept <= facts.cpus.online:
        evidence.append(f"of the reserved CPUs {kept - facts.cpus.online} are not online")
    free, why = _to_give(facts, kept)
    left = f"{free} are " + ("for any request" if why else "not reserved")
    allocatable = len(facts.cpus.online) - _reserved_by_kubelet(facts.kubelet)
    if facts.kubelet.pid is None and not facts.kubelet.files:
        return unknown("no kubelet was found: how many CPUs the scheduler gives out is unknown", *evidence)
    evidence += [f"the kubelet lets the scheduler give out CPUs of this node: {allocatable:g}; {left}",
                 *why]
    if math.floor(allocatable) > free:
        return warn(f"the scheduler gives out {number_of(math.floor(allocatable), 'CPU')}, and only {left}: "
                    "containers with CPUs of their own may be refused, or leave the others too few",
                    f"reserve {number_of(math.floor(allocatable) - free, 'CPU')} more in the kubelet's configuration "
                    "(systemReserved.cpu or reservedSystemCPUs), or fewer in allocate.reserved", *evidence)
    if not facts.cri_sockets:
        return warn("no CRI socket was found: CPUs that come back reach the shared containers only with the next "
                    "answer to the runtime", "name the container runtime's socket: paths.cri", *evidence)
    if missed := _missed_socket(facts):
        return warn(f"the kubelet's container runtime listens on {missed}, and vmpin calls "
                    f"{several(facts.cri_sockets)}: CPUs that come back reach the shared containers only with the "
                    "next answer to the runtime", f"set paths.cri: {missed}", *evidence)
    return ok(f"CPUs can be given out: {left}, and the scheduler gives out "
              f"{math.floor(allocatable)}", *evidence)


def _missed_socket(facts: NodeFacts) -> str:
    """The socket of the kubelet's container runtime, if it is set and none of those that are called by default; "" if
    it is one of them."""
    socket = _short(facts.kubelet.text("containerRuntimeEndpoint").removeprefix("unix://"))
    called = not socket.startswith("/") or facts.settings.get("paths.cri") or socket in map(_short, facts.cri_sockets)
    return "" if called else socket


def _short(path: str) -> str:
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


def _to_give(facts: NodeFacts, kept: CpuSet) -> tuple[int, list[str]]:
    """How many CPUs any request may get, and the reasons for those that it may not: isolated CPUs, those of groups,
    and one for the pool where no reserved one stays in it."""
    isolated = facts.cpus.isolated & facts.cpus.online - kept
    why = [f"isolated CPUs {isolated} are not counted: cpu-kind.vmpin.io=isolated alone gets them"] if isolated else []
    online = facts.cpus.online - kept - isolated
    grouped = _grouped(facts) & online
    if grouped:
        why.append(f"CPUs {grouped} are not counted: they are those of allocate.groups")
    free = len(online - grouped)
    if facts.settings.get("allocate.strict_reserved") == "true" or kept.isdisjoint(facts.cpus.online):
        free -= 1
        why.append("one CPU is not counted: the pool keeps it, as no reserved one is in it")
    return free, why


def _grouped(facts: NodeFacts) -> CpuSet:
    """The fixed sets of allocate.groups: NAME=CPUS@NAMESPACES;…, as the configuration has read it."""
    groups = facts.settings.get("allocate.groups", "").split(";")
    return union(CpuSet.parse(group.partition("@")[0].partition("=")[2]) for group in groups)


def _kubelet_evidence(facts: NodeFacts) -> list[str]:
    settings = facts.kubelet.settings
    return [f"{settings[key].file}: {key} {_plain(settings[key].value)}"
            for key in ("cpuManagerPolicy", "reservedSystemCPUs", *_RESERVATIONS) if key in settings]


def _plain(value: object) -> object:
    return f"cpu {value.get('cpu', 'none')}" if isinstance(value, dict) else value


def _reserved_by_kubelet(kubelet: KubeletConfig) -> float:
    """The CPUs that the kubelet subtracts from the allocatable ones. reservedSystemCPUs replaces both amounts
    (kubernetes pkg/kubelet/cm/container_manager_linux.go; cmd/kubelet/app/server.go)."""
    try:
        listed = CpuSet.parse(kubelet.text("reservedSystemCPUs"))
    except CpuSetError:
        listed = CpuSet()
    if listed:
        return len(listed)
    return sum(_amount(kubelet.settings[key].value) for key in _RESERVATIONS if key in kubelet.settings)


def _amount(value: object) -> float:
    """`500m` and `1.5` as CPUs; 0 for what is neither."""
    match = _QUANTITY.fullmatch(str(value.get("cpu", ""))) if isinstance(value, dict) else None
    number = None if match is None else parse_real(match[1], 1e9)
    return 0.0 if match is None or number is None else number / (1000 if match[2] else 1)


CHECKS = (Check("allocation", "allocate.mode: other programs that give out CPUs, and what the scheduler counts",
                  allocation),)
