"""What the allocator does in a watcher: its tasks, requests, metrics, and when it is called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.errors import UsageError, WatcherError
from vmpin.feature import SocketRequest, WatcherPart
from vmpin.features.allocator.allocation_report import VERSION, AllocatorView, allocation_report, explanations
from vmpin.features.allocator.cri_calls import RuntimeLists
from vmpin.features.allocator.grants.decisions import due_updates
from vmpin.features.allocator.grants.ledger import Grant, Ledger
from vmpin.features.allocator.node_allocator import NodeAllocator
from vmpin.reconcile.node_state import NodeState
from vmpin.status.pod_arguments import NamedSandbox, the_one_meant

if TYPE_CHECKING:
    from vmpin.features.allocator.node_allocator import NodeAllocator
    from vmpin.status.prometheus import ScrapeData

def watcher_part(node_state: NodeState, runtime: Callable[[], RuntimeLists | None],
                 timeouts: Timeouts) -> WatcherPart:
    """Make the part, with `allocate.mode` observe or on. :param runtime: None without NRI.
    :raises SourceError: when the topology cannot be read."""
    node = NodeAllocator(node_state, runtime, timeouts)
    tasks = {"allocate": node.updates.run, "ended": node.ended.run}
    if node.live is not None:
        tasks["annotations"] = node.live.run
    return WatcherPart(
        tasks=tasks, requests={"allocations": SocketRequest(lambda request, _: allocations(node, request)),
                               "set": SocketRequest(lambda request, _: set_policy(node, request))},
        decider=node.allocator, begin=node.check, before_events=node.take, after_events=node.started,
        after_resync=node.resynced, take_annotations=None if node.live is None else node.live.take,
        status=node.data, brief=node.brief, metrics=partial(_metrics, node))


def _metrics(node: NodeAllocator, scrape: ScrapeData) -> Iterator[Any]:
    view = node.view()
    if view is not None:
        from vmpin.features.allocator.allocation_metrics import allocation_families  # prometheus_client

        yield from allocation_families(view, scrape.per_sandbox)


def release_task(config: Config, timeouts: Timeouts) -> Callable[[], Coroutine[Any, Any, None]]:
    """The task that gives up the ledger of an allocator that was switched off. As every task that ends, it is made
    again."""
    async def run() -> None:
        from vmpin.features.allocator.cri_calls import release_ledger

        if await asyncio.to_thread(release_ledger, config, timeouts.cri_call):
            await asyncio.Event().wait()

    return run


_NO_LIST = "the container runtime has not listed its containers yet", "is NRI on? `vmpin doctor nri`"


def allocations(node: NodeAllocator, request: Mapping[str, object]) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Answer the request `allocations` with the report of the ledger, or with sentences about a pod or container.
    :raises WatcherError: while nothing is given out."""
    view = node.view()
    if view is None:
        raise WatcherError(*_NO_LIST)
    return _reported(node, view, request) if request.get("explain") is None else _explained(view, str(
        request["explain"]))


async def _explained(view: AllocatorView, name: str) -> dict[str, Any]:
    """Explain in a thread of its own: on a machine of 16 nodes the next best set may take seconds to be found."""
    return {"sentences": await asyncio.to_thread(explanations, view, name)}


def _reported(node: NodeAllocator, view: AllocatorView, request: Mapping[str, object]) -> dict[str, Any]:
    report = allocation_report(view)
    if request.get("actual") is True:
        due = dict(due_updates(view.machine, view.ledger, view.options))
        for grant in report["grants"]:
            actual = node.actual_cpus(view.ledger.grants[grant["id"]])
            wanted = due.get(grant["id"])
            # CPUs that it has yet to lose are not its own, though its cgroup was written with them last. Those that it
            # has yet to get back are no mistake.
            if actual is not None and wanted is not None and not CpuSet.parse(actual) <= wanted:
                grant["cpuset"] = str(wanted)
            grant["actual"] = actual
    return report


def set_policy(node: NodeAllocator, request: Mapping[str, Any]) -> dict[str, Any]:
    """Change what a running container asks for. :raises WatcherError: while nothing is given out.
    :raises UsageError: when it is refused, or the name fits no container, or several."""
    ledger = node.allocator.ledger()
    changes = request["changes"]
    if ledger is None or not isinstance(changes, dict):
        raise WatcherError(*_NO_LIST)
    grant = _named(ledger, str(request["target"]), str(request.get("namespace", "")))
    texts = {str(key): str(value) for key, value in changes.items()}
    answer = node.change(grant.container, texts, dry_run=request.get("dry_run") is not False)
    if answer.refusal:
        raise UsageError(answer.refusal.removeprefix("vmpin: "), "nothing was changed")
    after = answer.ledger.grants[grant.container]
    return {"version": VERSION, "container": grant.container, "before": str(grant.cpus), "cpus": str(after.cpus),
            "policy": str(after.policy), "notes": list(answer.notes),
            "updates": [{"container": update.container, "cpus": str(update.cpus), "name": _name(ledger, update[0])}
                        for update in answer.updates]}


def _named(ledger: Ledger, target: str, namespace: str) -> Grant:
    """The running container of a name or of the first digits of an id; a pod's with one container, too."""
    pods: dict[str, list[Grant]] = {}
    for grant in ledger.grants.values():
        if grant.live:
            pods.setdefault(grant.sandbox, []).append(grant)
    chosen = the_one_meant(target, namespace, [NamedSandbox(
        sandbox, many[0].namespace, many[0].pod, [(grant.container, grant.name) for grant in many])
        for sandbox, many in pods.items()], "running container", "vmpin allocations -o wide")
    if chosen.container:
        return ledger.grants[ContainerId(chosen.container)]
    found = pods[chosen.sandbox.id]
    if len(found) > 1:
        names = ", ".join(f"{grant.namespace}/{grant.pod}/{grant.name}" for grant in found[:8])
        raise UsageError(f"{target!r} has {len(found)} containers: {names}", "name one of them")
    return found[0]


def _name(ledger: Ledger, container: ContainerId) -> str:
    grant = ledger.grants.get(container)
    return container if grant is None else f"{grant.namespace}/{grant.pod}/{grant.name}"
