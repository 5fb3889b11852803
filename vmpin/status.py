"""What status shows, as data: the document behind `vmpin status`, `explain` and `verify`.

Pure. Every `actual` in it is a mask the kernel was asked for just now, and a sandbox is never called better than its
threads are. What stays out: asking the kernel (snapshot), and how it looks on a terminal (cli).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vmpin.cpuset import CpuSet
from vmpin.model import ContainerState, Pod, SandboxId, VmThread
from vmpin.ownership import Collision, Node, Ownership, is_exclusive
from vmpin.placement import Placement, Verdict
from vmpin.state import SandboxState

VERSION = 1


class Seen:
    """A thread with what was wanted and what the kernel shows (None: it ended while it was asked for)."""

    __slots__ = ("actual", "thread", "wanted")

    def __init__(self, thread: VmThread, wanted: CpuSet | None, actual: CpuSet | None) -> None:
        self.thread = thread
        self.wanted = wanted
        self.actual = actual

    @property
    def ok(self) -> bool:
        return self.wanted is None or self.wanted == self.actual


def thread_data(seen: Seen) -> dict[str, object]:
    thread = seen.thread
    return {"tid": thread.id.tid, "role": thread.role.value, "name": thread.name, "vcpu": thread.vcpu,
            "wanted": None if seen.wanted is None else str(seen.wanted), "actual": str(seen.actual), "ok": seen.ok}


def pod_data(pod: Pod | None) -> dict[str, str] | None:
    return None if pod is None else {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def sandbox_data(state: SandboxState, node: Node, placement: Placement | None, vmm: Mapping[str, object] | None,
                 found_by: str, threads: Sequence[Seen], notes: Iterable[str] = ()) -> dict[str, object]:
    """One sandbox. `vmm` is {type, pid}, None when it does not run; `notes` are reasons beside the placement's own."""
    verdict, reasons = _judge(state, placement, vmm, threads, notes)
    containers = []
    for known in state.containers.values():
        container = known.container
        if container.state is ContainerState.STOPPED:
            continue
        vcpus = placement.containers.get(container.id) if placement is not None else None
        containers.append({
            "id": container.id, "name": container.name,
            "cpuset": None if container.cpuset is None else str(container.cpuset),
            "exclusive": not container.pause and is_exclusive(container, node.shared_pool),
            "vcpus": None if vcpus is None else str(CpuSet(vcpus)), "guest": None,
            "state": str(container.state), "pause": container.pause, "source": known.source.word})
    return {
        "id": state.id, "runtime": state.runtime, "vmm": vmm, "pod": pod_data(state.pod),
        "mask": None if placement is None else str(placement.mask), "verdict": str(verdict), "reasons": reasons,
        "found_by": found_by, "containers": containers, "threads": [thread_data(seen) for seen in threads]}


def _judge(state: SandboxState, placement: Placement | None, vmm: Mapping[str, object] | None,
           threads: Sequence[Seen], notes: Iterable[str]) -> tuple[Verdict, list[str]]:
    if vmm is None:
        return Verdict.OFF, ["its VMM does not run"]
    if placement is None:
        return Verdict.OFF, ["unpinned by hand: `vmpin reconcile` takes it back"] if state.held else ["not yet placed"]
    reasons = list(placement.reasons)
    verdict = placement.verdict
    wrong = [seen for seen in threads if not seen.ok]
    if wrong:
        inside = [seen for seen in wrong if seen.wanted is not None and seen.actual is not None
                  and seen.actual and seen.actual <= seen.wanted]
        if inside:
            reasons.append(f"{len(inside)} of {len(threads)} threads have less than was asked: their cpuset cgroup "
                           "has no more")
        if len(wrong) > len(inside):
            reasons.append(f"{len(wrong) - len(inside)} of {len(threads)} threads are not where they should be")
        verdict = Verdict.DEGRADED
    reasons += notes
    return verdict, list(dict.fromkeys(reasons))


def node_data(node: Node, own: Ownership, collisions: Iterable[Collision]) -> dict[str, object]:
    return {
        "online": str(node.online), "shared_pool": str(own.pool), "exclusive": str(own.exclusive),
        "housekeeping": str(node.housekeeping),
        "owners": [{"sandbox": sandbox, "container": container, "cpus": str(cpus)}
                   for sandbox, claim in own.claims.items() for container, cpus in claim.exclusive],
        "collisions": [{"cpu": collision.cpu, "sandboxes": list(collision.sandboxes), "what": collision.what}
                       for collision in collisions]}


def trespasses(own: Ownership, sandbox: SandboxId, threads: Iterable[Seen]) -> list[Collision]:
    """CPUs that are another's alone and that the kernel lets this sandbox's threads use, one line a CPU."""
    foreign = own.foreign(sandbox)
    if not foreign:
        return []
    found: dict[int, list[VmThread]] = {}
    for seen in threads:
        if seen.actual is not None:
            for cpu in seen.actual & foreign:
                found.setdefault(cpu, []).append(seen.thread)
    collisions = []
    for cpu, there in sorted(found.items()):
        owners = own.owners(cpu)
        first = there[0]
        collisions.append(Collision(
            cpu, tuple(dict.fromkeys([*(owner for owner, _ in owners), sandbox])),
            f"exclusive to {own.named(cpu)}, but {len(there)} threads of {sandbox} may run there "
            f"(thread {first.id.tid}, {first.role})"))
    return collisions
