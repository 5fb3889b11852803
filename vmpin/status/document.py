"""The entries of the status document, and the verdict on each sandbox: no verdict is better than its threads' masks.

Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import AuthorityRival, Rulings
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.kubelet_cpus import UnknownOwner
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId, VmThread, uid_of
from vmpin.domain.sandbox_placement import Placement, Verdict
from vmpin.domain.terminal import number_of, printable
from vmpin.named_tuple import NamedTuple
from vmpin.placement.ownership import Collision, Node, Ownership, is_counted, is_exclusive
from vmpin.placement.rules import UNLISTED
from vmpin.placement.rulings import effective_containers

VERSION = 1
#: Why a sandbox is off that has no VMM.
NOT_RUNNING = "its VMM does not run"
_NO_RULINGS = Rulings()


class ThreadStatus(NamedTuple):
    """A thread with its wanted mask (None: left alone) and its mask in the kernel (None: it has ended). `limit` are
    the CPUs of its cpuset cgroup, None if unknown; they are read only if the mask is not the wanted one."""

    thread: VmThread
    wanted: CpuSet | None
    actual: CpuSet | None
    limit: CpuSet | None = None

    @property
    def ok(self) -> bool:
        return self.wanted is None or self.wanted == self.actual

    @property
    def less(self) -> bool:
        """True if its cpuset cgroup has only a part of the wanted mask, and the thread has all of that part. (Another
        program set a smaller mask than that.)"""
        if not self.actual or self.wanted is None or self.limit is None or self.ok:
            return False
        return self.actual == self.wanted & self.limit or self.barred

    @property
    def barred(self) -> bool:
        """True if its cpuset cgroup has none of the wanted CPUs: the kernel refuses the mask (EINVAL), and the thread
        keeps its previous one."""
        if not self.actual or not self.wanted or not self.limit:
            return False
        return self.wanted.isdisjoint(self.limit) and self.actual <= self.limit


def thread_data(seen: ThreadStatus) -> dict[str, object]:
    thread = seen.thread
    return {"tid": thread.id.tid, "role": thread.role.value, "name": thread.name, "vcpu": thread.vcpu,
            "wanted": _text(seen.wanted), "actual": str(seen.actual), "ok": seen.ok,
            # The cpuset of its cgroup, if that is the reason for the difference.
            "cgroup": str(seen.limit) if seen.less else None}


def pod_data(pod: Pod | None) -> dict[str, str] | None:
    return None if pod is None else {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def sandbox_data(state: SandboxState, placement: Placement | None, vmm: Mapping[str, object] | None, found_by: str,
                 threads: Sequence[ThreadStatus], notes: Iterable[str] = (), rulings: Rulings = _NO_RULINGS,
                 disagreements: Mapping[ContainerId, str] | None = None,
                 guest: tuple[Mapping[str, object], Mapping[ContainerId, Mapping[str, object]]] | None = None,
                 unmanaged: str = "", wall_offset: int = 0, rivals: Sequence[int] = (),
                 absent: str = NOT_RUNNING, **more: object) -> dict[str, object]:
    """The entry of one sandbox.
    :param vmm: {type, pid}, None if it does not run. :param notes: reasons beside the placement's own.
    :param disagreements: by container, the difference between its sources.
    :param guest: the reports from its guest, for the sandbox and by container; None if nothing is sent to it.
    :param unmanaged: why it is left as it is, "" where it is not.
    :param wall_offset: nanoseconds from CLOCK_BOOTTIME to the wall clock.
    :param rivals: the pids of VMMs that name it with equal evidence, the placed one first.
    :param absent: why it has no VMM. :param more: further members."""
    differing = disagreements or {}
    disagreeing = [f"the sources disagree on the CPUs of container {container}: {text}"
                   for container, text in differing.items()]
    verdict, reasons = judge(state, placement, vmm, threads, [*notes, *disagreeing], unmanaged, absent)
    if rivals:
        verdict = Verdict.DEGRADED
        reasons.append(f"processes {', '.join(map(str, rivals))} all name it as their VM, and nothing shows which is "
                       f"its VMM: {rivals[0]}, the eldest, is placed, the others are not")
    containers = []
    live = effective_containers(state, rulings)
    for container in live:
        vcpus = placement.containers.get(container.id) if placement is not None else None
        containers.append({
            **_container(state, container, rulings, wall_offset),
            "shared_with": _shared_with(container, live), "vcpus": None if vcpus is None else str(CpuSet(vcpus)),
            "guest": None if guest is None else guest[1].get(container.id),
            "disagreement": differing.get(container.id)})
    return {"id": state.id, "guest": None if guest is None else guest[0], "runtime": state.runtime,
            "handler": state.handler, "vmm": vmm, "pod": pod_data(state.pod),
            "mask": None if placement is None else str(placement.mask), "verdict": str(verdict), "reasons": reasons,
            "rivals": list(rivals), "found_by": found_by, "containers": containers,
            "threads": [thread_data(seen) for seen in threads], **more}


def _container(state: SandboxState, container: Container, rulings: Rulings, wall_offset: int) -> dict[str, object]:
    record = state.containers[container.id]
    cpus = rulings.by_authority("kubelet", uid_of(state.pod), container)
    exclusive = not container.pause and is_exclusive(container)
    report = record.reports.get(record.source)
    reports = {source.label: {"cpus": str(cpuset_report.cpuset), "since": _when(cpuset_report.time, wall_offset)}
               for source, cpuset_report in record.reports.items()}
    return {"id": container.id, "name": container.name, "cpuset": _text(container.cpuset),
            "own_cpus": str(container.own_cpus) if exclusive else None,
            "stale_cpuset": _text(container.stale_cpuset), "exclusive": exclusive,
            "exclusive_by": container.ruled_by if exclusive else None,
            "state": str(container.state), "pause": container.pause,
            "source": container.ruled_by if report is None and container.cpuset else record.source.label,
            "since": None if report is None else _when(report.time, wall_offset), "cpusets_by_source": reports,
            "kubelet": _text(cpus)}


def _shared_with(container: Container, others: Iterable[Container]) -> list[str]:
    """The other containers of the pod that have some of its exclusive CPUs."""
    owners = {member.id: member.own_cpus for member in (container, *others)
              if is_counted(member) and is_exclusive(member)}
    own_cpus = owners.pop(container.id, EMPTY)
    return [owner for owner, cpus in owners.items() if not cpus.isdisjoint(own_cpus)]


def _text(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def _when(moment: int, wall_offset: int) -> str | None:
    """The wall clock's time of a moment of CLOCK_BOOTTIME (ns), as RFC 3339 with milliseconds; None for 0: no time."""
    if not moment:
        return None
    from datetime import UTC, datetime  # a pass without a watcher has no time of a hook

    nanoseconds = moment + wall_offset
    try:
        seconds = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        return ""  # the time comes from a hook
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 10**6 % 1000:03d}Z"


def judge(state: SandboxState, placement: Placement | None, vmm: Mapping[str, object] | None,
          threads: Sequence[ThreadStatus], notes: Iterable[str] = (),
          unmanaged: str = "", absent: str = NOT_RUNNING) -> tuple[Verdict, list[str]]:
    """The verdict of a sandbox and its reasons; `notes` are more reasons, which do not change the verdict.
    :param unmanaged: why it has no placement and is left as it is; "" where it is not.
    :param absent: why it has no VMM."""
    if vmm is None:
        return Verdict.OFF, [absent]
    if placement is None:
        if state.suspended:
            return Verdict.OFF, ["unpinned by hand: `vmpin repin` manages it again"]
        if unmanaged:
            return Verdict.WAITING if unmanaged == UNLISTED else Verdict.UNMANAGED, [unmanaged]
        return Verdict.WAITING, ["not yet placed"]
    reasons = list(placement.reasons)
    verdict = placement.verdict
    wrong = [seen for seen in threads if not seen.ok]
    if wrong and placement.waiting:
        reasons.append(f"{placement.waiting}: until then {_until_then(len(threads), wrong)}")
        verdict = verdict if verdict is Verdict.DEGRADED else Verdict.WAITING
    elif wrong:
        barred = [seen for seen in wrong if seen.barred]
        less = sum(seen.less for seen in wrong) - len(barred)
        if barred:
            reasons.append(_barred(state, len(threads), barred))
        if less:
            reasons.append(f"{less} of {number_of(len(threads), 'thread has fewer CPUs than decided')}: their "
                           "cpuset cgroup has no others")
        if len(wrong) > less + len(barred):
            reasons.append(f"{len(wrong) - less - len(barred)} of {number_of(len(threads), 'thread is misplaced')}")
        verdict = Verdict.DEGRADED
    reasons += notes
    return verdict, list(dict.fromkeys(reasons))


def _until_then(threads: int, wrong: Sequence[ThreadStatus]) -> str:
    """The threads that a waiting placement has not reached yet, as a text."""
    partly = sum(bool(seen.actual and seen.wanted and seen.actual <= seen.wanted) for seen in wrong)
    unmoved = len(wrong) - partly
    texts = [f"{unmoved} of {number_of(threads, 'thread is not moved')}"] * bool(unmoved)
    texts += [f"{partly} of {number_of(threads, 'thread has only a part of the CPUs')}"] * bool(partly)
    return ", and ".join(texts)


def _barred(state: SandboxState, threads: int, barred: Sequence[ThreadStatus]) -> str:
    """Why threads cannot leave their cgroup's CPUs, with the remedy if there is one."""
    limit = union(seen.limit for seen in barred if seen.limit is not None)
    wanted = union(seen.wanted for seen in barred if seen.wanted is not None)
    why = (f"{len(barred)} of {number_of(threads, 'thread belongs')} on {wanted}, but their cpuset cgroup has only "
           f"{limit}")
    without = [container.name or container.id for container in state.live()
               if is_counted(container) and not container.cpuset]
    if not without or not any(container.cpuset for container in state.live() if is_counted(container)):
        return why
    # Kata writes the union of its containers' cpusets to the sandbox's cgroup (on cgroup v2 the whole VMM is in it).
    return (f"{why}: that is the union of its containers' cpusets, and {', '.join(without)} has none; give it a "
            "cpuset (under the kubelet's static policy shared containers have one)")


def node_data(node: Node, own: Ownership, collisions: Iterable[Collision],
              owners: Mapping[tuple[SandboxId, ContainerId], Mapping[str, object]] | None = None,
              disagreements: Sequence[Mapping[str, object]] = (),
              impostors: Iterable[Mapping[str, object]] = (),
              unknown: Iterable[UnknownOwner] = (), authorities: Sequence[str] = (),
              rivals: Iterable[AuthorityRival] = ()) -> dict[str, object]:
    """The entry of the node.
    :param owners: details of owners of CPUs. :param disagreements: those of runc's pods, too.
    :param impostors: processes of users that pose as a sandbox's.
    :param unknown: pods with exclusive CPUs of which no container is known.
    :param authorities: those that decide who owns which CPU, the strongest first.
    :param rivals: two that decide on the same CPUs."""
    details = owners or {}
    return {"online": str(node.online), "shared_pool": str(own.pool), "pool_known": node.shared_pool is not None,
            "exclusive": str(own.exclusive), "housekeeping": str(node.housekeeping),
            "authorities": list(authorities),
            "rivals": [{"authorities": list(rival.authorities), "cpus": str(rival.cpus),
                        "sandboxes": list(rival.sandboxes), "what": rival.what} for rival in rivals],
            "owners": [{"sandbox": sandbox, "container": container, "cpus": str(cpus),
                        **details.get((sandbox, container), {})}
                       for sandbox, claim in own.claims.items() for container, cpus in claim.exclusive],
            "unknown_owners": [{"pod": owner.pod, "cpus": str(owner.cpus), "here": owner.here, "what": owner.text}
                               for owner in unknown],
            "impostors": list(impostors), "disagreements": list(disagreements),
            "collisions": [collision._asdict() for collision in collisions]}


def with_doubts(collisions: Collection[Collision], unknown: Mapping[str, UnknownOwner],
                doubt: Callable[[], str]) -> list[Collision]:
    """Sort collisions, and add to their texts that a checkpoint may be out of date, or that no container of a pod is
    known.
    :param unknown: pods of which no container is known, by uid.
    :param doubt: returns why the checkpoint may be out of date, "" for nothing; called only for a collision."""
    outdated = doubt() if collisions else ""
    doubted = []
    for collision in collisions:
        owner = next((unknown[sandbox] for sandbox in collision.sandboxes if sandbox in unknown), None)
        why = outdated if owner is None else (
            f"of pod {printable(owner.pod)} no container is known: {owner._replace(doubt=outdated).where}")
        doubted.append(collision._replace(what=f"{collision.what} ({why})") if why else collision)
    return sorted(doubted)


def trespasses(own: Ownership, sandbox: SandboxId, threads: Iterable[ThreadStatus]) -> list[Collision]:
    """Exclusive CPUs of others in the masks of this sandbox's threads, one collision a CPU."""
    foreign = own.foreign(sandbox)
    if not foreign:
        return []
    threads_by_cpu: dict[int, list[VmThread]] = {}
    for seen in threads:
        if seen.actual is not None:
            for cpu in seen.actual & foreign:
                threads_by_cpu.setdefault(cpu, []).append(seen.thread)
    collisions = []
    for cpu, intruders in sorted(threads_by_cpu.items()):
        owners = own.owners(cpu)
        first = intruders[0]
        collisions.append(Collision(cpu, tuple(dict.fromkeys([*(owner for owner, _ in owners), sandbox])),
                                    f"exclusive to {own.owner_names(cpu)}, but "
                                    f"{number_of(len(intruders), 'thread')} of {sandbox} may run there "
                                    f"(thread {first.id.tid}, {first.role})"))
    return collisions
