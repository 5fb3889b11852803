"""The JSON documents of a node, from the view of the reconciler's state and the masks in the kernel: its status, and
what plan, reconcile, unpin and verify print. Reads only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.kubelet_cpus import compare_with_pod_resources
from vmpin.domain.model import ContainerId, SandboxId, VmThread
from vmpin.domain.terminal import ENDED, REMOTE
from vmpin.feature import features, present
from vmpin.host import boottime
from vmpin.host.cgroup import Cgroups
from vmpin.install.own_version import installed_version
from vmpin.named_tuple import NamedTuple
from vmpin.pinning.apply import Outcome, Result, shared_cpuset
from vmpin.pinning.original_mask_store import FreeThread
from vmpin.pinning.plan import SetAffinity
from vmpin.placement.ownership import find_collisions
from vmpin.reconcile.reconciler import PassReport
from vmpin.reconcile.view import NodeView
from vmpin.status.document import (
    NOT_RUNNING,
    VERSION,
    ThreadStatus,
    node_data,
    pod_data,
    sandbox_data,
    trespasses,
    with_doubts,
)
from vmpin.status.health import SourceHealth
from vmpin.vmm.virtual_machine import Vm

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestData


class WatcherStatus(NamedTuple):
    """What a running watcher adds to the status document: the states of its feeds (None: switched off), the guests'
    reports, and what features add to a sandbox's entry (`members`) and to the document."""

    pid: int
    nri: dict[str, object] | None = None
    proc_events: dict[str, object] | None = None
    guest: Callable[[SandboxId], GuestData | None] = lambda sandbox: None
    members: Sequence[Callable[[SandboxState], Mapping[str, object]]] = ()
    of_features: Mapping[str, object] = MappingProxyType({})


def document(view: NodeView, watcher: WatcherStatus | None = None, only: SandboxId | None = None, wide: bool = False,
             pods: bool = False, entry: Callable[[dict[str, object]], object] = lambda data: data,
             ) -> dict[str, object]:
    """The status document.
    :param watcher: None where none runs. :param only: leaves other sandboxes out, but not the collisions with them.
    :param wide: also read the VMMs' cgroups, which costs a tenth of a millisecond each.
    :param pods: also name the pods and containers of the node, including runc's.
    :param entry: converts each sandbox's entry at once: all entries of a large node together take much memory."""
    sandboxes = []
    hook = view.counters.last_hook_at
    last = None if hook is None else when(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + hook)
    listing = shown(view)
    collisions = find_collisions(view.ownership, {sandbox.id for sandbox in listing})
    colliding = {sandbox for collision in collisions for sandbox in collision.sandboxes}
    for sandbox, vm, threads in visited(view, listing):
        collisions += trespasses(view.ownership, sandbox.id, threads)
        if only in (None, sandbox.id):
            guest = None if watcher is None else watcher.guest(sandbox.id)
            fields = sandbox_entry(view, sandbox, vm, threads, wide or only is not None, guest)
            for members_of in () if watcher is None else watcher.members:
                fields |= members_of(sandbox)
            sandboxes.append(entry(fields))
    return {"version": VERSION, "time": when(time.time()), "watcher": None if watcher is None else watcher.pid,
            "policy": view.config.rules.as_text(),
            "node": node_data(view.node, view.ownership,
                              with_doubts(collisions, view.unknown_owners, view.checkpoint_doubt),
                              _owners(view), _disagreements(view),
                              [{"pid": impostor.thread.tid, "uid": impostor.uid, "sandbox": impostor.sandbox}
                               for impostor in view.impostors],
                              view.unknown_owners.values(), view.rulings.authorities, view.rivals)
            | {"names": names_by_id(sandbox for sandbox in view.sandboxes.values() if sandbox.id in colliding)},
            "sources": {"nri": None if watcher is None else watcher.nri, "kubelet": _kubelet(view),
                        "new_threads": None if watcher is None else watcher.proc_events,
                        "hooks": {**{result: view.counters.hooks[result] for result in ("applied", "refused")},
                                  "disputed": view.counters.disputed, "last": last}},
            "state_file": {"save_trouble": view.save_trouble, "load_trouble": view.load_trouble,
                           "unknown_originals": view.unknown_originals},
            "features": {} if watcher is None else dict(watcher.of_features), "sandboxes": sandboxes,
            **({"pods": _pods(view)} if pods else {})}


def encoded(data: Mapping[str, object]) -> bytes:
    """JSON as the watcher sends it: one line without blanks."""
    return json.dumps(data, separators=(",", ":")).encode()


def shown(view: NodeView) -> list[SandboxState]:
    """The managed sandboxes that are VMs, by namespace and name; those without a pod last, by id."""
    vms = view.vm_sandboxes()
    return sorted((sandbox for sandbox in view.sandboxes.values() if sandbox.id in view.vms or (
        sandbox.id in vms and fnmatchcase(sandbox.id, view.config.watch.pattern))), key=_order)


def names_by_id(sandboxes: Iterable[SandboxState]) -> dict[str, str]:
    """`namespace/pod` by sandbox id and by the pod's uid, and a live container's name by its id."""
    names: dict[str, str] = {}
    for sandbox in sandboxes:
        names |= {container.id: container.name for container in sandbox.live() if container.name}
        if sandbox.pod is not None:
            names[sandbox.id] = names[sandbox.pod.uid] = f"{sandbox.pod.namespace}/{sandbox.pod.name}"
    return names


def _order(sandbox: SandboxState) -> tuple[bool, str, str, str]:
    pod = sandbox.pod
    return (True, "", "", sandbox.id) if pod is None else (False, pod.namespace, pod.name, sandbox.id)


def _kubelet(view: NodeView) -> dict[str, object] | None:
    """None where no kubelet was found; all but `trouble` and `bad` is of its last good checkpoint."""
    kubelet, file = view.kubelet, view.checkpoint
    if kubelet is None and not file.trouble and view.pod_resources is None:
        return None
    facts = dict.fromkeys(("policy", "shared_pool", "exclusive", "version", "checksum_ok")) if kubelet is None else {
        "policy": kubelet.policy, "shared_pool": str(kubelet.default), "exclusive": str(kubelet.exclusive),
        "version": kubelet.version, "checksum_ok": kubelet.checksum_ok}
    stale = file.stale and kubelet is not None
    return {**facts, "trouble": file.trouble, "bad": file.bad, "pod_resources": view.pod_resources is not None,
            "stale": stale, "written": when(file.written / 1e9) if file.written else None,
            "second_witness": compare_with_pod_resources(kubelet, view.pod_resources) if stale and kubelet else None}


def _disagreements(view: NodeView) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for (sandbox, container), text in view.disagreements.items():
        state = view.sandboxes.get(sandbox)
        record = None if state is None else state.containers.get(container)
        entries.append({"sandbox": sandbox, "pod": pod_data(None if state is None else state.pod),
                        "container": container, "name": "" if record is None else record.container.name, "what": text})
    return entries


def _why_absent(view: NodeView, sandbox: SandboxId) -> str:
    """Why a sandbox has no VMM; a process of an unprivileged user may pose as it."""
    kata = view.kata(sandbox)
    if kata is not None and kata.remote:
        return REMOTE
    if view.has_ended(sandbox):
        return ENDED
    for impostor in view.impostors:
        if impostor.sandbox == sandbox:
            return f"{NOT_RUNNING}; process {impostor.thread.tid} of user {impostor.uid} poses as it, and is ignored"
    return NOT_RUNNING


def _pods(view: NodeView) -> list[dict[str, object]]:
    return [{"sandbox": sandbox.id, "pod": pod_data(sandbox.pod), "containers": [
        {"id": container.id, "name": container.name, "pause": container.pause} for container in sandbox.live()]}
            for sandbox in view.sandboxes.values()]


def _owners(view: NodeView) -> dict[tuple[SandboxId, ContainerId], dict[str, object]]:
    """Describe each owner of CPUs: its kind (VM, runc), its first process on the host, its cpuset cgroup."""
    owners: dict[tuple[SandboxId, ContainerId], dict[str, object]] = {}
    vms = view.vm_sandboxes()
    pods = {state.pod.uid: state.pod for state in view.sandboxes.values() if state.pod is not None}
    for sandbox, claim in view.ownership.claims.items():
        state = view.sandboxes.get(sandbox)
        for container, _ in claim.exclusive:
            if state is None:  # known by the kubelet's checkpoint alone, by its pod's uid
                owners[sandbox, container] = {"kind": "unseen", "pod": pod_data(pods.get(sandbox)),
                                              "name": container, "init": None, "cgroup": None}
                continue
            record = state.containers.get(container)
            init = None if record is None else record.init
            path = None if init is None else view.cgroups.cpuset_path(init.tid)
            owners[sandbox, container] = {"kind": "vm" if sandbox in vms else "runc", "pod": pod_data(state.pod),
                                          "name": "" if record is None else record.container.name,
                                          "init": None if init is None else init.tid,
                                          "cgroup": None if path is None else str(path)}
    return owners


def visited(view: NodeView,
            listing: Iterable[SandboxState]) -> Iterator[tuple[SandboxState, Vm | None, list[ThreadStatus]]]:
    """Yield each sandbox of a listing that still exists at its turn, as it is then, with its VM and its threads."""
    for listed in listing:
        sandbox = view.sandboxes.get(listed.id)
        if sandbox is not None:
            vm = view.vms.get(sandbox.id)
            yield sandbox, vm, [] if vm is None else threads_of(view, vm)


def threads_of(view: NodeView, vm: Vm) -> list[ThreadStatus]:
    """A VM's threads with their current masks."""
    placement = view.placements.get(vm.sandbox)
    limits: dict[Path, CpuSet] = {}
    threads = []
    for thread in vm.threads():
        try:
            actual = shared_cpuset(frozenset(os.sched_getaffinity(thread.id.tid)))
        except ProcessLookupError:
            continue
        wanted = None if placement is None else placement.cpus_for(thread.role, thread.vcpu)
        limit = None if wanted is None or wanted == actual else _limit(view.cgroups, thread, limits)
        threads.append(ThreadStatus(thread, wanted, actual, limit))
    return threads


def _limit(cgroups: Cgroups, thread: VmThread, limits: dict[Path, CpuSet]) -> CpuSet | None:
    """Return the CPUs of a thread's cpuset cgroup, None where they are unknown. :param limits: cache, by cgroup."""
    path = cgroups.cpuset_path(thread.pid, thread.id.tid)
    if path is None or path in limits:
        return None if path is None else limits[path]
    cgroup = cgroups.cpuset_of(thread.pid, thread.id.tid)
    if cgroup is None:
        return None
    limits[cgroup.path] = cgroup.effective
    return cgroup.effective


def sandbox_entry(view: NodeView, sandbox: SandboxState, vm: Vm | None, threads: list[ThreadStatus], wide: bool,
                  guest: GuestData | None) -> dict[str, object]:
    """The document's entry of one sandbox. :param wide: also read the VMM's cgroup."""
    vmm = None if vm is None else {"type": vm.type.name, "pid": vm.vmm.pid, "starttime": vm.vmm.id.starttime}
    # One reason for all threads that their cgroup refuses.
    notes = view.refusals(sandbox.id, {seen.thread.id for seen in threads if seen.barred})
    kata = view.kata(sandbox.id)
    if kata is not None and kata.pins_vcpus:
        notes.append("Kata pins the vCPUs too (enable_vcpus_pinning): two writers of the same masks, turn one off")
    history = view.drift(sandbox.id)
    newborns = view.newborn_counts.get(sandbox.id)
    more: dict[str, Any] = {}
    for members in present(feature.members for feature in features()):
        more |= members(view, vm)
    return sandbox_data(sandbox, view.placements.get(sandbox.id), vmm,
                        "none" if vm is None else vm.found_by, threads, notes, view.rulings,
                        {container: text for (of, container), text in view.disagreements.items() if of == sandbox.id},
                        guest, view.unmanaged.get(sandbox.id, ""), boottime.wall_offset(),
                        rivals=view.contested.get(sandbox.id, ()),
                        absent=_why_absent(view, sandbox.id) if vm is None else "", **more,
                        cgroup=_cgroup(view, vm) if wide and vm is not None else None,
                        new_threads=None if newborns is None else newborns.data(),
                        drift=None if history is None else history.data())


def _cgroup(view: NodeView, vm: Vm) -> dict[str, object] | None:
    cgroup = view.cgroups.cpuset_of(vm.vmm.pid)
    return None if cgroup is None else {"path": str(cgroup.path), "cpus": str(cgroup.effective)}


def when(seconds: float) -> str:
    """Seconds of CLOCK_REALTIME, as RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def outcome(report: PassReport) -> dict[str, object]:
    """The operations of a pass, for `vmpin repin`."""
    return {"version": VERSION, "vms": report.vms, "operations": [_result(result) for result in report.results],
            "seconds": round(report.seconds, 6)}


def planned(view: NodeView, report: PassReport, of_features: Iterable[str] = ()) -> dict[str, object]:
    """The operations that a pass would carry out, and the unmanaged VMs, for `vmpin plan`.
    :param of_features: sentences on what features would change."""
    return {"version": VERSION, "operations": [_operation(result.operation) for result in report.results],
            "unmanaged": sorted(view.unmanaged), "of_features": list(of_features)}


def unpinned(results: list[Result], kept: Iterable[SandboxId], settled: bool = True) -> dict[str, object]:
    """The restored masks, for `vmpin unpin`.
    :param kept: sandboxes in which some threads do not have their original masks.
    :param settled: whether all that features changed of the sandboxes is given back."""
    counts = dict.fromkeys(("restored", "already_original", "already_trimmed", "unknown", "already_free", "refused",
                            "gone"), 0)
    for result in results:
        counts[_restored_as(result)] += 1
    return {"version": VERSION, "operations": [_result(result) | _original(result.operation) for result in results],
            "counts": counts, "kept": sorted(kept), "settled": settled}


def _restored_as(result: Result) -> str:
    """Return the key of `counts` for a thread."""
    if result.outcome in (Outcome.REFUSED, Outcome.GONE):
        return result.outcome.value
    same = result.got == result.operation.was
    if isinstance(result.operation, FreeThread):
        return "already_free" if same else "unknown"
    if not same:
        return "restored"
    return "already_trimmed" if result.outcome is Outcome.TRIMMED else "already_original"


def _original(operation: SetAffinity) -> dict[str, object]:
    return {"original": "unknown" if isinstance(operation, FreeThread) else "known"}


def unpinning(view: NodeView, sandboxes: Iterable[SandboxId], operations: Iterable[SetAffinity],
              guests: Iterable[SandboxId]) -> dict[str, object]:
    """The changes of `vmpin unpin`, for its --dry-run.
    :param operations: what would give these sandboxes' threads their original masks (`Reconciler.restoring`).
    :param guests: sandboxes whose guests would be asked to drop their maps."""
    wanted, vms = list(sandboxes), view.vm_sandboxes()
    suspended = [sandbox for sandbox in wanted if sandbox in vms
                 and (state := view.sandboxes.get(sandbox)) is not None and not state.suspended]
    return {"version": VERSION, "dry_run": True,
            "operations": [_operation(operation) | _original(operation) for operation in operations],
            "suspended": sorted(suspended), "guests": sorted(guests)}


def _result(result: Result) -> dict[str, object]:
    return {**_operation(result.operation), "outcome": result.outcome.value,
            "got": None if result.got is None else str(result.got), "why": result.why}


def _operation(operation: SetAffinity) -> dict[str, object]:
    thread = operation.thread
    return {"sandbox": operation.sandbox, "tid": thread.id.tid, "role": thread.role.value, "vcpu": thread.vcpu,
            "cpus": str(operation.cpus), "was": str(operation.was), "what": operation.describe()}


class About:
    """Created when the watcher is ready: the version is that of the running code, not of a later installation."""

    def __init__(self) -> None:
        self._version = installed_version() or ""
        self._since = time.monotonic()

    def data(self, view: NodeView, resynced: float, sources: Iterable[SourceHealth]) -> dict[str, object]:
        """Return the watcher's own part of the status, as JSON data. Times are in seconds; `resynced` and the `age` of
        the last hook are ages.
        :param resynced: time of the last resync, by time.monotonic()."""
        now, counters = time.monotonic(), view.counters
        hook_age = (None if counters.last_hook_at is None else
                    round(time.clock_gettime(time.CLOCK_BOOTTIME) - counters.last_hook_at, 3))
        return {"pid": os.getpid(), "version": self._version, "uptime": round(now - self._since, 3),
                "resynced": round(now - resynced, 3), "resync_seconds": view.config.watch.resync_seconds,
                "passes": dict(counters.passes), "hooks": {"applied": counters.hooks["applied"], "age": hook_age},
                "sources": [source._asdict() for source in sources], "saved": not view.save_trouble,
                "config": view.config.data()}
