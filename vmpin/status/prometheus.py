"""What Prometheus is told: the families of metrics, from what was counted and what is so now.

docs/metrics.md explains every name; the alert rules and the dashboard in config/ use no others (a test sees to that).
No label names a pod or sandbox unless `metrics.per_sandbox` is set. What stays out: counting (tally, headcount) and
HTTP (exporter). Imported only when metrics are switched on: prometheus_client takes 5 MB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from vmpin.domain.counters import Histogram
from vmpin.domain.drift import Cause
from vmpin.domain.model import Pod, SandboxId, ThreadRole
from vmpin.domain.proof import ResidencyLedger, RunAccount
from vmpin.pinning.apply import Outcome
from vmpin.placement.rules import Verdict
from vmpin.reconcile.view import NodeView
from vmpin.status.about import version
from vmpin.status.headcount import Headcount, ThreadPlace
from vmpin.status.health import SourceHealth

#: The text format that every Prometheus reads; prometheus_client's own constant is another with each version.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: What a guest may be said to have done with a container's vCPUs; any other word counts as the last.
GUEST_STATES = ("applied", "sent", "pending", "no agent", "left alone", "error", "unknown")
#: A pod's name is its author's, or a hook's.
MAX_LABEL = 253

Values = Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class ScrapeData:
    """What a scrape is made of, beside the reconciler's own."""

    view: NodeView
    headcount: Headcount
    sources: Iterable[SourceHealth]
    #: Containers by the state of what their guest was told.
    guests: Counter[str]
    #: How often each of the watcher's tasks failed and was started again.
    restarts: Mapping[str, int]
    #: Unix time of the last look at everything, in seconds.
    resynced: float
    #: Tasks of the watcher's loop.
    tasks: int
    per_sandbox: bool


class NodeCollector(Collector):
    """A custom collector of prometheus_client's. `facts` is set before each collection."""

    def __init__(self) -> None:
        self.facts: ScrapeData | None = None
        self._version = version()
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        if self.facts is None:
            return
        yield _gauge("vmpin_build_info", "The running version, always 1.", ("version",), {(self._version,): 1})
        yield _gauge("vmpin_node_info", "The node that it runs on, by the kernel's boot id, always 1.", ("boot_id",),
                     {(self.facts.view.boot_id,): 1})
        yield from _state(self.facts)
        yield from _counts(self.facts)
        yield from _ran(self.facts.view.ledger)
        if self.facts.per_sandbox:
            yield from _sandboxes(self.facts)
        yield from self._process.collect()


class _Only(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def text_of(family: Metric) -> bytes:
    """One family in the text format, so that not all need be written in one go."""
    return generate_latest(_Only(family))  # type: ignore[arg-type,unused-ignore]  # 0.16 asks for a whole registry


def _state(facts: ScrapeData) -> Iterator[Metric]:
    """What is so now."""
    view, count = facts.view, facts.headcount
    verdicts, threads = count.verdicts(), count.threads()
    yield _gauge("vmpin_sandboxes", "VM sandboxes, by verdict as in vmpin status.", ("verdict",),
                 {(verdict.value,): verdicts[verdict] for verdict in Verdict})
    yield _gauge("vmpin_threads", "Threads of VM sandboxes, by role and by how their mask, read from the kernel, "
                 "compares with what was decided.", ("role", "place"),
                 {(role.value, place.value): threads[role, place] for role in ThreadRole for place in ThreadPlace})
    yield _gauge("vmpin_collisions", "CPUs on which more work may run than their owner agreed to, as listed by vmpin "
                 "status.", (), {(): count.collisions})
    yield _gauge("vmpin_disagreements", "Containers on whose CPUs the sources have not agreed for longer than a "
                 "resync.", (), {(): len(view.disagreements)})
    yield _gauge("vmpin_cpus", "Online CPUs of the node, and how many of them are owned by one container, shared, or "
                 "for housekeeping.", ("set",),
                 {("online",): len(view.node.online), ("exclusive",): len(view.ownership.exclusive),
                  ("shared",): len(view.ownership.pool), ("housekeeping",): len(view.node.housekeeping)})
    yield _gauge("vmpin_source_up", "Whether a source of the watcher's is there and works.", ("source",),
                 {(source.name,): source.up for source in facts.sources})
    states: Counter[str] = Counter()
    for state, number in facts.guests.items():
        states[state if state in GUEST_STATES else GUEST_STATES[-1]] += number
    yield _gauge("vmpin_guest_containers", "Containers of VMs, by what became of their vCPUs in the guest.",
                 ("state",),
                 {(state,): states[state] for state in GUEST_STATES})
    yield _gauge("vmpin_state_saved", "Whether the state file could be written when it was last tried.", (),
                 {(): view.saved})
    yield _gauge("vmpin_tasks", "Tasks of the watcher's event loop.", (), {(): facts.tasks})
    yield _gauge("vmpin_last_resync_timestamp_seconds", "Unix time of the last look at everything.", (),
                 {(): facts.resynced})


def _counts(facts: ScrapeData) -> Iterator[Metric]:
    """What happened since the watcher started."""
    tally = facts.view.counters
    yield _counter("vmpin_pins_total", "Masks set, by role and by what the kernel made of it.", ("role", "outcome"),
                   {(role.value, outcome.value): tally.pins[role, outcome.value]
                    for role in ThreadRole for outcome in Outcome})
    yield _counter("vmpin_drift_total", "Threads found elsewhere and put back, by cause as far as it is view.",
                   ("cause",), {(cause.value,): tally.drift[cause.value] for cause in Cause})
    yield _counter("vmpin_fights_total", "Fights with another writer of the same masks that were noticed.", (),
                   {(): tally.contentions})
    yield _counter("vmpin_runc_repairs_total", "CPUs given back to runc containers by the runtime "
                   "(policy.runc_repair), by what became of it.", ("outcome",),
                   {(outcome,): tally.repairs[outcome] for outcome in ("done", "failed")})
    yield _histogram("vmpin_birth_latency_seconds", "From a thread's birth until it was placed.",
                     tally.placement_latency)
    yield _histogram("vmpin_allowed_outside_seconds", "How long threads were allowed to run outside of their sandbox, "
                     "of those that were.", tally.outside)
    yield _histogram("vmpin_pin_latency_seconds", "From an event's coming in until the masks that follow from it were "
                     "set.", tally.pin_latency)
    yield _counter("vmpin_proc_events_total", "Events of the kernel's proc connector, by kind.", ("kind",),
                   {(kind,): tally.proc_events[kind] for kind in ("fork", "exec", "comm", "exit")})
    yield _counter("vmpin_proc_overruns_total", "Times that the proc connector's buffer overflowed and everything was "
                   "read again.", (), {(): tally.overruns})
    yield _counter("vmpin_hook_messages_total", "Messages of the OCI hook, by what became of them.", ("result",),
                   {(result,): tally.hooks[result] for result in ("taken", "refused")})
    yield _counter("vmpin_disputed_annotations_total", "Annotations of a pod's author that contradicted the runtime "
                   "and were not believed.", (), {(): tally.disputed})
    yield _counter("vmpin_passes_total", "Passes, by what they were made for.", ("why",),
                   {(why,): number for why, number in tally.passes.items()})
    yield _histogram("vmpin_pass_duration_seconds", "How long the passes took.", tally.pass_seconds)
    yield _histogram("vmpin_loop_lag_seconds", "How much later than it was due the watcher's event loop did "
                     "something, measured twice a second.", tally.loop_lag)
    yield _counter("vmpin_source_restarts_total", "Times that a task of the watcher's failed and was started again.",
                   ("source",), {(source,): number for source, number in facts.restarts.items()})


def _ran(ledger: ResidencyLedger) -> Iterator[Metric]:
    """What samples add up to since the watcher started."""
    found = ledger.added()
    roles = {role: found.get(role, RunAccount()) for role in ThreadRole}
    yield _counter("vmpin_run_seconds_total", "What threads ran, by role and by whether that was in their place.",
                   ("role", "place"), {(role.value, place): spent for role, account in roles.items()
                                       for place, spent in _by_place(account)})
    yield _counter("vmpin_wait_seconds_total", "How long threads were ready to run while the CPU was another's.",
                   ("role",), {(role.value,): account.waited / 1e9 for role, account in roles.items()})
    yield _counter("vmpin_migrations_total", "How often threads changed CPUs.", ("role",),
                   {(role.value,): account.migrations for role, account in roles.items()})
    yield _counter("vmpin_sampled_seconds_total", "For how long samples of what ran were taken.", (),
                   {(): ledger.added_seconds()})


def _by_place(account: RunAccount) -> Iterable[tuple[str, float]]:
    """Seconds."""
    return ((ThreadPlace.PLACED.value, account.placed / 1e9), (ThreadPlace.ELSEWHERE.value, account.elsewhere / 1e9),
            (ThreadPlace.UNASKED.value, account.free / 1e9))


def _sandboxes(facts: ScrapeData) -> Iterator[Metric]:
    """With pods' names, for who asked for that."""
    count, ledger = facts.headcount, facts.view.ledger
    labels = {sandbox: _names(sandbox, one.pod) for sandbox, one in count.sandboxes.items()}
    yield _gauge("vmpin_sandbox_verdict", "The verdict on each VM sandbox, always 1.",
                 ("sandbox", "namespace", "pod", "verdict"),
                 {(*labels[sandbox], one.verdict.value): 1 for sandbox, one in count.sandboxes.items()})
    yield _gauge("vmpin_sandbox_threads", "As vmpin_threads, of each VM sandbox; what is none of it is left out.",
                 ("sandbox", "namespace", "pod", "role", "place"),
                 {(*labels[sandbox], role.value, place.value): number
                  for sandbox, one in count.sandboxes.items() for (role, place), number in one.threads.items()})
    yield _counter("vmpin_sandbox_run_seconds_total", "As vmpin_run_seconds_total, of each VM sandbox.",
                   ("sandbox", "namespace", "pod", "place"),
                   {(*labels[sandbox], place): spent for sandbox in ledger.sandboxes
                    if sandbox in labels for place, spent in _by_place(ledger.added_to(sandbox))})


def _names(sandbox: SandboxId, pod: Pod | None) -> tuple[str, str, str]:
    return (sandbox, "", "") if pod is None else (sandbox, _label(pod.namespace), _label(pod.name))


def _label(text: str) -> str:
    """What a hook told need not be Unicode."""
    return text[:MAX_LABEL].encode("utf-8", "replace").decode()


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Values) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Values) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in found.cumulative()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=found.sum)
