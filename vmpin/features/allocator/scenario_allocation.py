"""A scenario's events, played: which CPUs each container gets, by the rules that the watcher uses; and their text.

The containers are those that the runtime would show, and updates that are due are made at once. Nothing on the machine
is read or touched.
"""

from __future__ import annotations

from typing import Any

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.terminal import printable
from vmpin.domain.topology import Topology
from vmpin.domain.wrapping import wrapped
from vmpin.features.allocator.allocation_report import AllocatorView, allocation_report
from vmpin.features.allocator.grants import decisions
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuCost, Refusal
from vmpin.features.allocator.grants.eligibility import SINGLE, query_of
from vmpin.features.allocator.grants.ledger import Answer, Grant, Ledger
from vmpin.features.allocator.grants.live_change import set_policy
from vmpin.features.allocator.grants.placing import room_for
from vmpin.features.allocator.grants.pool_cpus import applied, pool, target
from vmpin.features.allocator.ledger_holders import held_cpus
from vmpin.features.allocator.scenario_events import ContainerCreated, ContainerRemoved, ScenarioEvent, WishChanged
from vmpin.features.allocator.search.best_set import best_part
from vmpin.features.allocator.search.cost_tables import cost_order
from vmpin.features.common.scenario_values import PlayedPart
from vmpin.named_tuple import NamedTuple

#: Microseconds: the kubelet's (cpu.cfs_period_us).
_PERIOD = 100_000
_NAMES = {ContainerCreated: "create", ContainerRemoved: "remove", WishChanged: "set"}


class AllocationPart(NamedTuple):
    """The allocator's part of a scenario."""

    machine: Topology
    options: AllocationOptions
    events: tuple[ScenarioEvent, ...]

    def played(self) -> PlayedPart:
        """Return what comes of the events, and what is given out after the last."""
        node = _PlayedNode(self)
        events = [node.play(number, event) for number, event in enumerate(self.events, 1)]
        return PlayedPart({"events": events}, [_text(event) for event in events],
                          any("refused" in event for event in events), held_cpus(allocation_report(node.view())))


class _PlayedNode:
    """The node between two events, and its containers by pod and name."""

    def __init__(self, scenario: AllocationPart) -> None:
        machine = scenario.machine
        # A scenario need not name the one node of a machine without NUMA, which sysfs shows.
        self._machine = machine if machine.nodes else machine._replace(nodes={0: machine.all_cpus},
                                                                       memory_nodes=CpuSet((0,)))
        self._options = scenario.options._replace(mode=AllocationMode.ON)
        self._ledger = Ledger()
        self._containers: dict[tuple[str, str], ContainerId] = {}
        self._mems: dict[ContainerId, CpuSet] = {}
        #: The pods whose QoS class is not Guaranteed, as some container's request is not its limit.
        self._others = {event.pod for event in scenario.events
                        if isinstance(event, ContainerCreated) and event.limit != event.request}

    def play(self, number: int, event: ScenarioEvent) -> dict[str, object]:
        about: dict[str, object] = {"event": _NAMES[type(event)], "pod": event.pod, "container": event.container}
        running = self._containers.get((event.pod, event.container))
        if (running is None) != isinstance(event, ContainerCreated):
            outcome: dict[str, object] = {"refused": "it runs already" if running else "it does not run"}
        elif isinstance(event, ContainerCreated):
            outcome = self._create(number, event)
        elif isinstance(event, WishChanged):
            outcome = self._set(event)
        else:
            outcome = self._remove(event)
        updates = decisions.due_updates(self._machine, self._ledger, self._options)
        self._ledger = applied(self._ledger, list(updates))
        return {**about, **outcome, "pool": str(pool(self._machine, self._ledger, self._options))}

    def view(self) -> AllocatorView:
        return AllocatorView("on", "", self._machine, self._options, self._ledger,
                             pool(self._machine, self._ledger, self._options))

    def _create(self, number: int, event: ContainerCreated) -> dict[str, object]:
        container = _requested(number, event)._replace(devices={name: name for name in self._machine.devices},
                                                       guaranteed=event.pod not in self._others)
        before = self._ledger
        answer = decisions.on_create(self._machine, before, container, self._options)
        self._ledger = answer.ledger
        if answer.refusal:
            return _refused(answer)
        self._containers[event.pod, event.container] = container.id
        assert answer.adjustment is not None
        started = container._replace(cpuset=answer.adjustment.cpus or container.cpuset)
        self._ledger = decisions.on_start(self._machine, self._ledger, started, self._options).ledger
        self._mems[container.id] = answer.adjustment.mems or self._machine.memory_nodes
        return {**self._outcome(before, container.id), **_noted(answer, event)}

    def _remove(self, event: ContainerRemoved) -> dict[str, object]:
        container = self._containers.pop((event.pod, event.container))
        for end in (decisions.on_stop, decisions.on_remove):
            self._ledger = end(self._machine, self._ledger, container, self._options).ledger
        if not any(pod == event.pod for pod, _ in self._containers):
            self._ledger = decisions.on_pod_end(self._machine, self._ledger, SandboxId(event.pod),
                                                self._options).ledger
        return {"cpus": "", "mems": ""}

    def _set(self, event: WishChanged) -> dict[str, object]:
        container = self._containers[event.pod, event.container]
        before = self._ledger
        if event.amount is None:
            answer = set_policy(self._machine, before, container, event.changes, self._options)
        else:
            grant = before.grants[container]
            resized = RequestedContainer(container, grant.sandbox, grant.name, grant.namespace, grant.pod,
                                         guaranteed=grant.guaranteed, **_resources(*event.amount))
            answer = decisions.on_update(self._machine, before, resized, self._options)
        self._ledger = answer.ledger
        return _refused(answer) if answer.refusal else self._outcome(before.without([container]), container)

    def _outcome(self, before: Ledger, container: ContainerId) -> dict[str, object]:
        """Return a container's CPUs and memory nodes, with their cost. :param before: the ledger without it."""
        grant = self._ledger.grants[container]
        # Containers of a VM on the pool have no cpuset; their threads are kept there.
        cpus = grant.cpus or target(self._machine, self._ledger, grant, self._options)
        if not cpus and grant.left_alone:
            cpus = grant.written
        elif not cpus:
            cpus = self._ledger.shared
        cpus = cpus or self._machine.online
        outcome: dict[str, object] = {"cpus": str(cpus), "mems": str(self._mems[container])}
        if grant.spare:
            outcome["spare"] = str(grant.spare)
        cost = self._cost(before, grant)
        if cost is not None:
            order = cost_order(grant.wish.align or self._options.align)
            outcome["cost"] = {part: getattr(cost, part) for part in order}
        if grant.least_distance is not None:
            outcome["least_distance"] = grant.least_distance
        return outcome

    def _cost(self, before: Ledger, grant: Grant) -> CpuCost | None:
        """The cost of a container's own CPUs, None where it has none, or shares them with its group."""
        room = room_for(self._machine, before, grant, self._options)
        if isinstance(room, Refusal) or grant.policy not in SINGLE:
            return None
        query = query_of(grant, len(grant.cpus), self._options, EMPTY)
        own = best_part(self._machine, room.free | room.lapsed, grant.cpus, query)
        return None if isinstance(own, Refusal) else own.cost


def _requested(number: int, event: ContainerCreated) -> RequestedContainer:
    """The container as the runtime shows it: shares and quota as the kubelet makes them of request and limit."""
    namespace, _, pod = event.pod.partition("/")
    return RequestedContainer(
        ContainerId(f"{event.pod}/{event.container}/{number}"), SandboxId(event.pod), event.container, namespace, pod,
        event.pod, pod_annotations=event.annotations, **_resources(event.request, event.limit), cpuset=event.cpuset,
        vm=event.vm, vm_vcpus=event.vcpus if event.vm else None, vm_overhead=event.overhead if event.vm else 0,
        time_ns=number)


def _resources(request: int, limit: int | None) -> dict[str, Any]:
    """Shares, quota and period, as the kubelet makes them of thousandths of a CPU."""
    return {"shares": max(2, request * 1024 // 1000), "period": _PERIOD,
            "quota": -1 if limit is None else limit * _PERIOD // 1000}


def _noted(answer: Answer, event: ContainerCreated) -> dict[str, object]:
    """The log's lines about a new container but for its CPUs: ignored values, a cpuset of another program."""
    name = f"{event.pod}/{event.container}"
    notes = [note.removeprefix(f"{name}: ").removeprefix(f"{name} ") for note in answer.notes
             if not note.startswith(f"{name} gets the CPUs ")]
    return {"notes": notes} if notes else {}


def _refused(answer: Answer) -> dict[str, object]:
    return {"refused": answer.refusal.removeprefix("vmpin: ")}


def _text(event: dict[str, Any]) -> str:
    """The outcome of an event: its container, cost and notes, as lines of 80 columns at most."""
    container = f"{event['event']} {event['pod']}/{event['container']}"
    if "refused" in event:
        lines = [f"{container}: refused", event["refused"]]
    elif event["event"] == "remove":
        lines = [f"{container}: the pool is {event['pool'] or 'empty'}"]
    else:
        spare = f", spare {event['spare']}" if "spare" in event else ""
        mems = f", memory of node {event['mems']}" if event.get("mems") else ""
        lines = [f"{container}: CPUs {event['cpus']}{spare}{mems}"]
        if "cost" in event:
            lines.append("cost: " + ", ".join(f"{part} {count}" for part, count in event["cost"].items()))
        if "least_distance" in event:
            lines.append("not all sets of nodes could be tried: none as good in the parts before has a distance of "
                         f"less than {event['least_distance']}")
        lines += [f"note: {note}" for note in event.get("notes", ())]
        lines.append(f"pool: {event['pool']}")
    return "\n".join(part for line, indent in zip(lines, ["", *["  "] * len(lines)], strict=False)
                     for part in wrapped(printable(line), 80, indent, f"{indent}  "))
