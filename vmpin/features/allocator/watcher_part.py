"""The allocator in a watcher: its tasks, metrics and calls, and its answers on the control socket: the ledger
(`vmpin alloc`, `vmpin status --explain`), and other CPUs for a container that runs (`vmpin alloc set`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.errors import UsageError, WatcherError
from vmpin.feature import SocketRequest, WatcherPart
from vmpin.features.allocator.allocation_report import VERSION, AllocatorView, allocation_report, explanations
from vmpin.features.allocator.cri_calls import RuntimeLists
from vmpin.features.allocator.grants.admission import about
from vmpin.features.allocator.grants.decisions import due_updates
from vmpin.features.allocator.grants.ledger import Grant, Ledger
from vmpin.features.allocator.grants.pool_cpus import shrinking
from vmpin.features.allocator.node_allocator import NodeAllocator
from vmpin.reconcile.reconciler import Reconciler
from vmpin.reconcile.view import NodeView
from vmpin.status.pod_arguments import NamedSandbox, only_match

_NO_LIST = "the container runtime has not listed its containers yet", "is NRI on? `vmpin doctor nri`"


def watcher_part(reconciler: Reconciler, runtime: Callable[[], RuntimeLists | None],
                 deadline: float) -> WatcherPart:
    """Make the part, with `allocate.mode` observe or on. :param runtime: None without NRI.
    :param deadline: seconds for a CRI call. :raises SourceError: when the topology cannot be read."""
    node = NodeAllocator(reconciler, runtime, deadline)
    tasks = {"allocate": node.updates.run, "ended": node.ended.run}
    if node.live is not None:
        tasks["annotations"] = node.live.run
    return WatcherPart(
        tasks=tasks, requests={"allocations": SocketRequest(answer=lambda request, _: allocations(node, request)),
                               "set": SocketRequest(answer=lambda request, _: set_policy(node, request))},
        decider=node.allocator, begin=node.check, before_events=node.take, after_events=node.started,
        after_resync=node.resynced, take_annotations=None if node.live is None else node.live.take,
        status=node.data, brief=node.brief, metrics=partial(_metrics, node))


def _metrics(node: NodeAllocator, _: NodeView, per_sandbox: bool) -> Iterator[Any]:
    view = node.view()
    if view is not None:
        from vmpin.features.allocator.allocation_metrics import allocation_families  # prometheus_client

        yield from allocation_families(view, per_sandbox)


def release_task(config: Config, deadline: float) -> Callable[[], Coroutine[Any, Any, None]]:
    """The task that gives up the ledger of an allocator that was switched off; restarted when it ends, like every
    task. :param deadline: seconds for a CRI call."""
    async def run() -> None:
        from vmpin.features.allocator.cri_calls import release_ledger

        if await asyncio.to_thread(release_ledger, config, deadline):
            await asyncio.Event().wait()

    return run


def allocations(node: NodeAllocator, request: Mapping[str, object]) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Answer the request `allocations` with the report of the ledger, or with sentences about a pod or container.
    :raises WatcherError: before the runtime's first list."""
    view = node.view()
    if view is None:
        raise WatcherError(*_NO_LIST)
    name = request.get("explain")
    return _explained(view, str(name)) if name is not None else _reported(node, view, request.get("actual") is True)


async def _explained(view: AllocatorView, name: str) -> dict[str, Any]:
    """Explain in a thread of its own: on a machine of 16 nodes the search for the next best set may take seconds."""
    return {"sentences": await asyncio.to_thread(explanations, view, name)}


def _reported(node: NodeAllocator, view: AllocatorView, with_actual: bool) -> dict[str, Any]:
    report = allocation_report(view)
    if not with_actual:
        return report
    losing = {update.container for update in shrinking(view.machine, view.ledger, view.options)}
    due = dict(due_updates(view.machine, view.ledger, view.options))
    for grant in report["grants"]:
        actual = node.actual_cpus(view.ledger.grants[grant["id"]])
        wanted = due.get(grant["id"]) if grant["id"] in losing else None
        # CPUs that it has yet to lose are not its own, though its cgroup was written with them last. CPUs that it has
        # yet to get back, and headroom that it has yet to leave, are no mistake.
        if actual is not None and wanted is not None and not CpuSet.parse(actual) <= wanted:
            grant["cpuset"] = str(wanted)
        grant["actual"] = actual
    return report


def set_policy(node: NodeAllocator, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer the request `set`: change what a running container asks for. :raises WatcherError: before the runtime's
    first list. :raises UsageError: when it is refused, or the name fits no container, or several."""
    view = node.view()
    changes = request["changes"]
    if view is None or not isinstance(changes, dict):
        raise WatcherError(*_NO_LIST)
    if view.why:
        raise UsageError(f"nothing is given out: {view.why}", "nothing was changed")
    grant = _named(view.ledger, str(request["target"]), str(request.get("namespace", "")))
    texts = {str(key): str(value) for key, value in changes.items()}
    answer = node.change(grant.container, texts, dry_run=request.get("dry_run") is not False)
    if answer.refusal:
        raise UsageError(answer.refusal.removeprefix("vmpin: "), "nothing was changed")
    after = answer.ledger.grants[grant.container]
    return {"version": VERSION, "container": grant.container, "before": str(grant.cpus), "cpus": str(after.cpus),
            "policy": str(after.policy), "notes": list(answer.notes),
            "updates": [{"container": update.container, "cpus": str(update.cpus),
                         "name": about(answer.ledger.grants[update.container])} for update in answer.updates]}


def _named(ledger: Ledger, target: str, namespace: str) -> Grant:
    """The running container of a name, or of the beginning of an id; or the only one of a pod."""
    pods: dict[str, list[Grant]] = {}
    for grant in ledger.grants.values():
        if grant.live:
            pods.setdefault(grant.sandbox, []).append(grant)
    chosen = only_match(target, namespace, [NamedSandbox(
        sandbox, grants[0].namespace, grants[0].pod, [(grant.container, grant.name) for grant in grants])
        for sandbox, grants in pods.items()], "running container", "vmpin alloc -o wide")
    if chosen.container:
        return ledger.grants[ContainerId(chosen.container)]
    grants = pods[chosen.sandbox.id]
    if len(grants) > 1:
        names = ", ".join(f"{grant.namespace}/{grant.pod}/{grant.name}" for grant in grants[:8])
        raise UsageError(f"{target!r} has {len(grants)} containers: {names}", "name one of them")
    return grants[0]
