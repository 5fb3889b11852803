"""What a container may have: its policy by annotation or default, the CPUs in question, and the query for the search.

A pod's author cannot take what the scheduler did not count: CPUs of a container's own need request = limit in whole
CPUs, in any QoS class.
"""

from __future__ import annotations

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions, DefaultPolicy
from vmpin.features.allocator.grants.cpu_request import CpuKind, CpuPolicy, CpuQuery, CpuWish, Refusal, RefusalKind
from vmpin.features.allocator.grants.ledger import CpuAmount, Grant
from vmpin.features.allocator.texts.annotation_values import AnnotatedWish, nodes_near
from vmpin.named_tuple import NamedTuple

#: The policies by which a container gets CPUs of its own, and those by which it has them without a group.
OWN = frozenset({CpuPolicy.EXCLUSIVE, CpuPolicy.FIXED, CpuPolicy.GROUP})
SINGLE = OWN - {CpuPolicy.GROUP}
#: The kernel's largest cpu.shares: every request of 256 CPUs and more.
_MOST_SHARES = 262_144
_POLICY = "cpu-policy.vmpin.io"


class PolicyRuling(NamedTuple):
    """The policy that a container gets. `group` is NAMESPACE/NAME, or NAME of a configured group. `note` is for the
    log, "" for none."""

    policy: CpuPolicy
    group: str = ""
    note: str = ""


def requested_amount(container: RequestedContainer) -> CpuAmount:
    """Return the CPU request and limit of a container, by what the runtime has for it."""
    return amount_of(container.shares, container.quota, container.period, container.guaranteed)


def amount_of(shares: int | None, quota: int | None, period: int | None, guaranteed: bool = False) -> CpuAmount:
    """Return the CPU request and limit from which the kubelet computed these: shares = request * 1024, rounded down,
    and quota = limit * period. Whole CPUs are exact; other requests are within a thousandth of a CPU. A request beyond
    256 CPUs shows as 256.
    :param guaranteed: the pod is of that class, so that every request in it is its limit."""
    period = period or 100_000
    request = -(-(shares or 0) * 1000 // 1024)
    if quota is None or quota <= 0:
        return CpuAmount(request)
    size, rest = divmod(quota, period)
    limit = -(-quota * 1000 // period)
    if shares == _MOST_SHARES and guaranteed and limit > request:
        request = limit
    elif shares != size * 1024:
        size = 0
    return CpuAmount(request, limit, 0 if rest else size)


def amount_after(before: CpuAmount, shares: int | None, quota: int | None, period: int | None,
                 guaranteed: bool = False) -> CpuAmount:
    """The amount after an update. What it does not name stays, and shares alone change nothing of the size."""
    if not quota:
        return before if shares is None else before._replace(request=amount_of(shares, None, None).request)
    if shares is not None:
        return amount_of(shares, quota, period, guaranteed)
    alone = amount_of(None, quota, period)
    whole = alone.limit == before.request and not alone.limit % 1000
    return CpuAmount(before.request, alone.limit, alone.limit // 1000 if whole else 0)


def ruling(machine: Topology, annotated: AnnotatedWish, namespace: str, guaranteed: bool, amount: CpuAmount,
           options: AllocationOptions) -> PolicyRuling | Refusal:
    """The policy of a container. :returns: why it is refused, where vmpin's own key asks for what it cannot have. What
    a peer's key or the default asks for in vain leaves it on the pool, as that peer would."""
    wish = annotated.wish
    if wish.policy is None:
        exclusive = amount.size and (options.default is DefaultPolicy.EXCLUSIVE or (
            options.default is DefaultPolicy.GUARANTEED and guaranteed))
        if not exclusive:
            return PolicyRuling(CpuPolicy.NONE)
        why = _objection(machine, wish._replace(policy=CpuPolicy.EXCLUSIVE), namespace, amount, options)
        return PolicyRuling(CpuPolicy.NONE, note=why) if why else PolicyRuling(CpuPolicy.EXCLUSIVE)
    why = _objection(machine, wish, namespace, amount, options)
    if why:
        if annotated.by == "vmpin":
            return Refusal(RefusalKind.REQUEST, why)
        return PolicyRuling(CpuPolicy.NONE, note=f"{annotated.by}: {why}")
    return PolicyRuling(wish.policy, group_of(wish, namespace, options))


def as_required(annotated: AnnotatedWish, options: AllocationOptions) -> AnnotatedWish:
    """Return the wish without a peer's preference that loosens the alignment which the configuration requires."""
    if not (annotated.peer_align and options.align_required and annotated.wish.align is options.align):
        return annotated
    return annotated._replace(wish=annotated.wish._replace(align=None))


def group_of(wish: CpuWish, namespace: str, options: AllocationOptions) -> str:
    if wish.policy is not CpuPolicy.GROUP:
        return ""
    return wish.group if wish.group in options.groups else f"{namespace}/{wish.group}"


def brings_cpus(policy: CpuPolicy, group: str, options: AllocationOptions) -> bool:
    """True where the container needs CPUs of its own; members of a group with a fixed set bring none."""
    return policy in OWN and not (policy is CpuPolicy.GROUP and group in options.groups and options.groups[group].cpus)


def _objection(machine: Topology, wish: CpuWish, namespace: str, amount: CpuAmount,
               options: AllocationOptions) -> str:
    """Why a container cannot have the policy of its wish; "" where it can."""
    assert wish.policy is not None
    privileged = namespace in options.privileged_namespaces
    key = f"{_POLICY}={wish.policy}" + (f":{wish.group}" if wish.group else "")
    only = f"only namespaces in allocate.privileged_namespaces may, and {namespace} is none of them"
    if wish.policy is CpuPolicy.INFRA and not privileged:
        return f"{key}: {only}"
    if wish.policy is CpuPolicy.GROUP and wish.group in options.groups:
        allowed = options.groups[wish.group].namespaces
        if allowed and namespace not in allowed:
            return f"{key}: the group is for the namespaces {', '.join(sorted(allowed))}, not for {namespace}"
    if not brings_cpus(wish.policy, group_of(wish, namespace, options), options):
        why = _no_cpu_online(machine, wish, options)
        return f"{key}: {why}" if why else ""
    if wish.kind is CpuKind.ISOLATED and not privileged:
        return f"cpu-kind.vmpin.io=isolated: {only}"
    if wish.kind is CpuKind.ISOLATED and wish.policy is CpuPolicy.FIXED:
        return f"{key}: cpu-kind.vmpin.io=isolated are never in the pool, where fixed CPUs stay"
    return "" if amount.size else whole_cpus_needed(key, amount)


def _no_cpu_online(machine: Topology, wish: CpuWish, options: AllocationOptions) -> str:
    """Why the set that the configuration has for such containers is empty; "" where it is not. Without a cpuset, they
    would run on the CPUs of all others."""
    if wish.policy is CpuPolicy.INFRA and options.reserved.isdisjoint(machine.online):
        return (f"of allocate.reserved={options.reserved} no CPU is online" if options.reserved else
                "allocate.reserved has no CPU")
    fixed = options.groups[wish.group].cpus if wish.policy is CpuPolicy.GROUP else EMPTY
    if fixed and (fixed - options.reserved).isdisjoint(machine.online):
        return f"of the CPUs {fixed} that allocate.groups has for it, none is online and not reserved"
    return ""


def whole_cpus_needed(key: str, amount: CpuAmount) -> str:
    """The reason where the request is not the limit in whole CPUs. :param key: the key that asks for them."""
    limit = f"{amount.limit / 1000:g}" if amount.limit else "none"
    return (f"{key} needs request = limit in whole CPUs: the request is {amount.request / 1000:g}, the limit "
            f"{limit}")


def decided_by(grant: Grant, options: AllocationOptions) -> str:
    """The key and the value that gave a container its policy: an annotation, or the configuration's default, which
    may have been another at the container's creation."""
    if grant.wish.policy is not None:
        return f"{_POLICY}={grant.policy}" + (f":{grant.wish.group}" if grant.wish.group else "")
    default = options.default is not DefaultPolicy.NONE
    return f"allocate.default{f'={options.default}' if default else ' at its creation'} (policy {grant.policy})"


def allowed_cpus(machine: Topology, wish: CpuWish, options: AllocationOptions) -> CpuSet | Refusal:
    """The CPUs that a container may have at all, held or not. :returns: why there are none."""
    fixed = configured_groups(options)
    if wish.kind is CpuKind.ISOLATED:
        cpus = machine.online & machine.isolated - options.reserved - fixed
        return cpus or Refusal(RefusalKind.REQUEST, "cpu-kind.vmpin.io=isolated: this machine has no isolated CPUs "
                               "that are online and not reserved")
    cpus = machine.online - machine.isolated - options.reserved - fixed
    if wish.kind is CpuKind.ANY or (not machine.kinds and wish.kind is CpuKind.PERFORMANCE):
        return cpus
    of_kind = machine.kinds.get(wish.kind)
    if not of_kind:
        return Refusal(RefusalKind.REQUEST, f"cpu-kind.vmpin.io={wish.kind}: this machine has no such CPUs")
    return cpus & of_kind


def configured_groups(options: AllocationOptions) -> CpuSet:
    """The fixed sets of all groups: only their members get them."""
    return union(rule.cpus for rule in options.groups.values()) - options.reserved


def query_of(grant: Grant, size: int, options: AllocationOptions, keep: CpuSet) -> CpuQuery:
    """The query for `size` CPUs, `keep` among them."""
    wish = grant.wish
    return CpuQuery(size, wish.align or options.align, align_required(wish, options),
                    wish.smt or options.smt, options.spread == "nodes", frozenset(grant.near), keep)


def align_required(wish: CpuWish, options: AllocationOptions) -> bool:
    """True where CPUs of a container's own are refused unless they are aligned."""
    return options.align_required if wish.align is None else wish.align_required


def near_nodes(machine: Topology, wish: CpuWish, devices: CpuSet) -> CpuSet:
    """The NUMA nodes that `near` names; none for a device that is not in machine.devices.
    :param devices: the nodes of the container's own devices."""
    if wish.near.startswith("nodes:"):
        nodes = nodes_near(wish.near, "cpu-near.vmpin.io")
    elif wish.near == "devices":
        nodes = devices
    else:
        nodes = CpuSet((machine.devices[wish.near],) if wish.near in machine.devices else ())
    return nodes & CpuSet(machine.nodes)
