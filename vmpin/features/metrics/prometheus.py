"""The metrics for Prometheus: families made from counts, counters and the current state.

docs/metrics.md explains every name; the alert rules and the dashboard in config/ use no others (a test checks that).
No label names a pod or sandbox unless `metrics.per_sandbox` is set. Imported only for metrics: prometheus_client takes
5 MB."""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from vmpin.domain.counters import Histogram
from vmpin.domain.drift import Cause
from vmpin.domain.model import Pod, SandboxId, ThreadRole
from vmpin.domain.sandbox_placement import Verdict
from vmpin.feature import WatcherPart, features, present
from vmpin.features.common.metric_families import counter, gauge
from vmpin.features.common.pod_labels import POD, labels_of, pod_labels
from vmpin.install.own_version import installed_version
from vmpin.named_tuple import NamedTuple
from vmpin.pinning.apply import Outcome
from vmpin.placement.ownership import Collision, find_collisions
from vmpin.reconcile.view import NodeView
from vmpin.status.collector import shown, visited
from vmpin.status.document import ThreadStatus, judge, trespasses
from vmpin.status.health import SourceHealth


class ThreadPlace(enum.StrEnum):
    """The difference between a thread's mask and its placement."""

    PLACED = "placed"
    TRIMMED = "trimmed"  #: On a part of it: its cpuset cgroup has no other CPUs.
    ELSEWHERE = "elsewhere"
    UNASKED = "unasked"  #: Left alone, by policy or by hand.


class SandboxCount(NamedTuple):
    pod: Pod | None
    verdict: Verdict
    threads: Counter[tuple[ThreadRole, ThreadPlace]]


@dataclass
class Headcount:
    """The sandboxes and threads of the node by verdict, role and place, from the masks in the kernel: as in a status
    document, at less cost. Each sandbox is counted at one moment, the node's collisions after all of them."""

    sandboxes: dict[SandboxId, SandboxCount] = field(default_factory=dict)
    collisions: int = 0  #: As many as status lists.
    #: The number of these by each sandbox that takes part, with a VM or without: as owner, by its threads or cpuset.
    collided: Counter[SandboxId] = field(default_factory=Counter)

    def take(self, view: NodeView) -> Iterator[None]:
        """Count one sandbox a step, so that the caller can do other work in between."""
        collisions: list[Collision] = []
        listing = shown(view)
        yield
        for sandbox, vm, threads in visited(view, listing):
            verdict, _ = judge(sandbox, view.placements.get(sandbox.id), None if vm is None else {}, threads,
                               unmanaged=view.unmanaged.get(sandbox.id, ""))
            self.sandboxes[sandbox.id] = SandboxCount(
                sandbox.pod, verdict, Counter((seen.thread.role, _place(seen)) for seen in threads))
            collisions += trespasses(view.ownership, sandbox.id, threads)
            yield
        collisions += find_collisions(view.ownership, {sandbox.id for sandbox in listing})
        self.collisions = len(collisions)
        self.collided.update(owner for collision in collisions for owner in collision.sandboxes)

    def verdicts(self) -> Counter[Verdict]:
        return Counter(count.verdict for count in self.sandboxes.values())

    def threads(self) -> Counter[tuple[ThreadRole, ThreadPlace]]:
        threads: Counter[tuple[ThreadRole, ThreadPlace]] = Counter()
        for count in self.sandboxes.values():
            threads.update(count.threads)
        return threads


def _place(seen: ThreadStatus) -> ThreadPlace:
    if seen.wanted is None:
        return ThreadPlace.UNASKED
    if seen.ok:
        return ThreadPlace.PLACED
    return ThreadPlace.TRIMMED if seen.less else ThreadPlace.ELSEWHERE


#: The text format that every Prometheus reads; prometheus_client's own constant is another with each version.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The states of a container in its guest; any other counts as the last.
GUEST_STATES = ("applied", "sent", "pending", "no agent", "left alone", "error", "unknown")


class ScrapeData(NamedTuple):
    """The input of a scrape."""

    view: NodeView
    headcount: Headcount
    sources: Iterable[SourceHealth]
    guests: Mapping[SandboxId, Counter[str]]  #: Containers by their state in the guest, of each sandbox.
    restarts: Mapping[str, int]  #: Restarts after a failure, by the watcher's task.
    resynced: float  #: Unix time of the last resync, in seconds.
    tasks: int  #: Tasks of the watcher's loop.
    per_sandbox: bool
    parts: Iterable[WatcherPart] = ()  #: What features do in the watcher.


class NodeCollector(Collector):
    """A collector of prometheus_client. `facts` is set before each collection."""

    def __init__(self) -> None:
        self.facts: ScrapeData | None = None
        self._version = installed_version() or ""
        self._process = ProcessCollector(registry=None)
        self._host = os.uname().nodename

    def collect(self) -> Iterator[Metric]:
        if self.facts is None:
            return
        yield gauge("vmpin_build_info", "The running version, always 1.", {self._version: 1}, "version")
        names = (name(self.facts.view.config) for name in present(feature.node_name for feature in features()))
        yield gauge("vmpin_node_info", "The node that it runs on, by its name and the kernel's boot id, always 1.",
                    {(next(filter(None, names), self._host), self.facts.view.boot_id): 1},
                    "node", "boot_id")
        yield from _state(self.facts)
        yield from _counts(self.facts)
        if self.facts.per_sandbox:
            yield from _sandboxes(self.facts)
        for metrics in present(part.metrics for part in self.facts.parts):
            yield from metrics(self.facts.view, self.facts.per_sandbox)
        yield from self._process.collect()


def text_of(family: Metric) -> bytes:
    """One family in the text format, so that writing can pause between families."""
    return generate_latest(SimpleNamespace(collect=lambda: [family]))  # in place of a registry


def _state(facts: ScrapeData) -> Iterator[Metric]:
    view, count = facts.view, facts.headcount
    verdicts, threads = count.verdicts(), count.threads()
    yield gauge("vmpin_sandboxes", "VM sandboxes, by verdict as in vmpin status.",
                {verdict.value: verdicts[verdict] for verdict in Verdict}, "verdict")
    yield gauge("vmpin_threads", "Threads of VM sandboxes, by role and by how their mask, read from the kernel, "
                "compares with what was decided.",
                {(role.value, place.value): threads[role, place] for role in ThreadRole for place in ThreadPlace},
                "role", "place")
    yield gauge("vmpin_collisions", "CPUs on which work other than the owner's may run, as listed by vmpin "
                "status.", count.collisions)
    yield gauge("vmpin_unknown_owners", "Pods with exclusive CPUs of which no container is known, as listed by vmpin "
                "status.", len(view.unknown_owners))
    yield gauge("vmpin_disagreements", "Containers for which the sources have reported different CPUs for longer "
                "than a resync.", len(view.disagreements))
    yield gauge("vmpin_cpus", "Online CPUs of the node, and how many of them are owned by one container, shared, or "
                "for housekeeping.",
                {"online": len(view.node.online), "exclusive": len(view.ownership.exclusive),
                 "shared": len(view.ownership.pool), "housekeeping": len(view.node.housekeeping)}, "set")
    yield gauge("vmpin_source_up", "Whether a source of the watcher is available and works.",
                {source.name: source.up for source in facts.sources}, "source")
    states = sum(map(_guest_states, facts.guests.values()), Counter[str]())
    yield gauge("vmpin_guest_containers", "Containers of VMs, by the result of their placement in the guest.",
                {state: states[state] for state in GUEST_STATES}, "state")
    yield gauge("vmpin_state_saved", "Whether the last attempt to write the state file succeeded.",
                not view.save_trouble)
    yield gauge("vmpin_tasks", "Tasks of the watcher's event loop.", facts.tasks)
    yield gauge("vmpin_last_resync_timestamp_seconds", "Unix time of the last resync.", facts.resynced)


def _counts(facts: ScrapeData) -> Iterator[Metric]:
    """Counters since the watcher started."""
    counters = facts.view.counters
    yield counter("vmpin_pins_total", "Masks set, by role and result.",
                  {(role.value, outcome.value): counters.pins[role, outcome.value]
                   for role in ThreadRole for outcome in Outcome}, "role", "outcome")
    yield counter("vmpin_drift_total", "Threads found elsewhere and put back, by cause.",
                  {cause.value: counters.drift[cause.value] for cause in Cause}, "cause")
    yield counter("vmpin_contentions_total", "Contention with another writer of the same masks.",
                  counters.contentions)
    yield _histogram("vmpin_new_thread_latency_seconds", "From the creation of a thread until its placement.",
                     counters.new_thread_latency)
    yield _histogram("vmpin_allowed_outside_seconds", "How long the mask of a thread allowed CPUs outside its "
                     "sandbox, for threads with such a mask.", counters.allowed_outside)
    yield _histogram("vmpin_pin_latency_seconds", "From the receipt of an event until the masks that follow from it "
                     "were set.", counters.pin_latency)
    yield counter("vmpin_proc_events_total", "Events from the kernel's proc connector, by kind.",
                  {kind: counters.proc_events[kind] for kind in ("fork", "exec", "comm", "exit")}, "kind")
    yield counter("vmpin_proc_overruns_total", "Overflows of the proc connector's buffer, each followed by a "
                  "resync.", counters.overruns)
    yield counter("vmpin_hook_messages_total", "Messages from the OCI hook, by result.",
                  {result: counters.hooks[result] for result in ("applied", "refused")}, "result")
    yield counter("vmpin_disputed_annotations_total", "Annotations by a pod's author that contradicted the "
                  "runtime and were ignored.", counters.disputed)
    yield counter("vmpin_passes_total", "Passes, by reason.", counters.passes, "why")
    yield _histogram("vmpin_pass_duration_seconds", "Duration of the passes.", counters.pass_seconds)
    yield _histogram("vmpin_loop_lag_seconds", "Delay of the watcher's event loop behind its schedule, "
                     "measured twice a second.", counters.loop_lag)
    yield counter("vmpin_source_restarts_total", "Restarts of the watcher's tasks after a failure.", facts.restarts,
                  "source")


def _sandboxes(facts: ScrapeData) -> Iterator[Metric]:
    """The metrics with names of pods (metrics.per_sandbox)."""
    count = facts.headcount
    labels = {sandbox: labels_of(sandbox, tally.pod) for sandbox, tally in count.sandboxes.items()}
    yield gauge("vmpin_sandbox_verdict", "The verdict on each VM sandbox, always 1.",
                {(*labels[sandbox], tally.verdict.value): 1 for sandbox, tally in count.sandboxes.items()},
                *POD, "verdict")
    yield gauge("vmpin_sandbox_threads", "As vmpin_threads, of each VM sandbox, without zero values.",
                {(*labels[sandbox], role.value, place.value): number for sandbox, tally in count.sandboxes.items()
                 for (role, place), number in tally.threads.items()}, *POD, "role", "place")
    yield gauge("vmpin_sandbox_guest_containers", "As vmpin_guest_containers, of each VM sandbox, without zero "
                "values.",
                {(*labels[sandbox], state): number for sandbox, states in facts.guests.items() if sandbox in labels
                 for state, number in _guest_states(states).items()}, *POD, "state")
    yield gauge("vmpin_sandbox_collisions", "As vmpin_collisions, of each sandbox that takes part in one, with a VM "
                "or without.",
                {names: count.collided[sandbox] for sandbox, names in pod_labels(count.collided, facts.view).items()},
                *POD)
    counters = facts.view.counters
    for name, text, counted in (
            ("contentions", "As vmpin_contentions_total", counters.contentions_by),
            ("disputed_annotations", "As vmpin_disputed_annotations_total", counters.disputed_by),
            ("pins_refused", "Masks that the kernel refused", counters.refused_by)):
        yield counter(f"vmpin_sandbox_{name}_total", f"{text}, of each sandbox with any.",
                      {names: counted[sandbox] for sandbox, names in pod_labels(counted, facts.view).items()}, *POD)
    disagreements = Counter(sandbox for sandbox, _ in facts.view.disagreements)
    yield gauge("vmpin_sandbox_disagreements", "As vmpin_disagreements, of each sandbox with any.",
                {names: disagreements[sandbox] for sandbox, names in pod_labels(disagreements, facts.view).items()},
                *POD)


def _guest_states(counts: Counter[str]) -> Counter[str]:
    """Count guests by state; any other text that a guest reports counts as the last of GUEST_STATES."""
    states: Counter[str] = Counter()
    for state, number in counts.items():
        states[state if state in GUEST_STATES else GUEST_STATES[-1]] += number
    return states


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in histogram.cumulative()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum)
