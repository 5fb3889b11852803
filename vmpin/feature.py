"""The seam between the core and its features.

A feature is a folder, `vmpin/features/NAME`, with everything that is its own. Its `__init__.py` has the value
FEATURE: a `Feature` of optional parts, each a plain value or a function. The core calls the parts and names no
feature; a feature imports the core and no other feature. `vmpin/features/__init__.py` lists the names.

Every command imports these packages, so `__init__.py` imports nothing but this module at its top, and each function
imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from vmpin.named_tuple import NamedTuple

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Collection, Coroutine
    from pathlib import Path
    from typing import Protocol

    from prometheus_client.core import Metric

    from vmpin.authorities.authority import Authority
    from vmpin.config.settings import Config
    from vmpin.daemon.watcher import Watcher
    from vmpin.domain.desired_state import SandboxState
    from vmpin.domain.model import SandboxId
    from vmpin.domain.topology import Topology
    from vmpin.errors import ConfigError
    from vmpin.features.common.cpu_owner import CpuOwner
    from vmpin.features.common.held_cpus import HeldCpus
    from vmpin.features.common.samples import RunListener, SampleSource
    from vmpin.features.common.scenario_values import ScenarioPart, ScenarioValues
    from vmpin.host.sockets import Stream
    from vmpin.host.sysfs import Sysfs
    from vmpin.reconcile.view import NodeView
    from vmpin.sources.nri.nri_events import CpuDecider, NriEvent
    from vmpin.status.health import SourceHealth
    from vmpin.status.pod_arguments import NamedSandbox
    from vmpin.vmm.virtual_machine import Vm

    class NicFinder(Protocol):
        """Finds the NICs of VMs."""

        def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
            """Read what is due, into `Vm.nic`. :param turn: counts passes. :param wanted: whether the policy is near;
            else all is forgotten. :returns: the sandboxes whose NIC is on another NUMA node than before, or found
            elsewhere."""
            ...

#: An entry of `sandboxes` in the status document, or a part of it.
Document = Mapping[str, Any]
NONE: Mapping[str, Any] = MappingProxyType({})
T = TypeVar("T")


class SocketRequest(NamedTuple):
    """A request of the control socket."""

    #: (the request, its sandbox or None) → the JSON object, or a coroutine or stream of it.
    answer: Callable[[dict[str, Any], SandboxId | None], dict[str, Any] | Awaitable[dict[str, Any]] | Stream]
    reading: bool = False  #: It changes nothing: the status socket, too, answers it, to members of watch.status_group.
    handed: bool = False  #: The status socket alone answers it.
    #: Called before `answer`. Raises WatcherError to refuse the request.
    admit: Callable[[], None] | None = None


class ScenarioKeys(NamedTuple):
    """Keys of scenarios."""

    names: Sequence[str]
    #: (the reader of values, the scenario's keys, its topology) → what they describe; called for any of `names`.
    read: Callable[[ScenarioValues, Mapping[str, object], Topology], ScenarioPart]
    #: Reads this machine, with all that the keys need, for a scenario without a topology.
    topology: Callable[[Sysfs], Topology]
    help: str  #: A scenario with them, for the help of `vmpin plan`.


class Comparison(NamedTuple):
    """What a feature compared for `vmpin verify`: whether all is in place, members of the document, lines of the
    text."""

    good: bool
    members: Document
    lines: Sequence[str] = ()
    #: Prints the rest of its text, at the end.
    show: Callable[[], None] | None = None
    #: It is a result where no thread's mask could be compared.
    alone: bool = False


class ExplainedPods(NamedTuple):
    """Pods and their containers, and sentences about one of them, by its id."""

    pods: Sequence[NamedSandbox]
    sentences: Callable[[str], Sequence[str]]


class WatcherPart(NamedTuple):
    """What a feature does in a running watcher, in its event loop. A feature that is switched off makes none."""

    #: Tasks by name, as metrics and logs have it; one that fails is started again.
    tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = NONE
    #: Tasks that listen on sockets of their own; also started again when the run directory is made again.
    listening: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = NONE
    requests: Mapping[str, SocketRequest] = NONE
    #: Decides on the runtime's NRI calls, in the thread of NRI.
    decider: CpuDecider | None = None
    #: Called once, before any source reports.
    begin: Callable[[], None] | None = None
    #: Called before, and after, the state takes in events of NRI.
    before_events: Callable[[], None] | None = None
    after_events: Callable[[Sequence[NriEvent]], None] | None = None
    #: Called after each pass, and after each resync.
    after_pass: Callable[[], None] | None = None
    after_resync: Callable[[], None] | None = None
    #: Called when sandboxes are unpinned: gives back what the feature has changed of them. False where not all of that
    #: was possible.
    settle: Callable[[Collection[SandboxId]], bool] | None = None
    #: Called before the pass of `vmpin repin`: what was left to another program is changed again.
    retry: Callable[[], None] | None = None
    #: Called with the annotations of pods, by pod uid and key, that `Feature.watched_annotations` chose, whenever the
    #: reporter has handed over those of all pods.
    take_annotations: Callable[[Mapping[str, Mapping[str, str]]], None] | None = None
    #: Makes the receiver of samples of where threads ran. Called whenever the feature that takes samples begins, which
    #: waits for it.
    listen: Callable[[SampleSource], Awaitable[RunListener]] | None = None
    #: Of the feature that takes samples: waits until it has begun, if it is configured to.
    settled: Callable[[], Awaitable[object]] | None = None
    #: Called once, when the watcher ends and still owns the run directory.
    end: Callable[[], None] | None = None
    #: The feature's member of `features` in the status document, and in what clients that follow the node are sent
    #: (None: nothing).
    status: Callable[[], Document] | None = None
    brief: Callable[[], Document | None] | None = None
    #: Further members of a sandbox's entry in the status document, and in a wide one.
    members: Callable[[SandboxState], Document] | None = None
    wide_members: Callable[[SandboxState], Document] | None = None
    #: Sentences on what it would change besides masks of threads, for `vmpin plan`.
    planned: Callable[[], Sequence[str]] | None = None
    health: Callable[[], Iterable[SourceHealth]] | None = None
    #: Metrics. (the view, whether there are those of each sandbox)
    metrics: Callable[[NodeView, bool], Iterable[Metric]] | None = None


class Feature(NamedTuple):
    """The parts of a feature. A part that it does not have is None, or empty."""

    name: str
    #: The sections of the configuration that are its own: name → the place of a class as in `vmpin.config.settings`.
    sections: Mapping[str, str] = NONE
    #: What is wrong with a configuration of which each value by itself is right; None for nothing.
    check_config: Callable[[Config], ConfigError | None] | None = None
    #: Those of these sections, and of their keys, of which a change takes a restart of the watcher.
    fixed: Sequence[str] = ()
    #: An authority on the CPUs of containers, by what is kept in the run directory: it rules from the first pass on.
    #: (the configuration, the boot id) → None where it does not rule.
    authority: Callable[[Config, str], Authority | None] | None = None
    #: The names of its files in the run directory.
    files: Sequence[str] = ()
    #: Its sockets, which watch.status_group may use.
    sockets: Callable[[Config], Iterable[Path]] | None = None
    #: Gives back what it has changed on the node when vmpin leaves it. Called with the run directory's lock held;
    #: False where not all of that was possible, so that its files stay.
    give_back: Callable[[Config], bool] | None = None
    #: Gives back what it has changed of sandboxes that a command without a watcher has unpinned, or placed anew, and
    #: when vmpin leaves the node, before guests are asked to drop their maps.
    #: Called with the run directory's lock held; False where not all of that was possible.
    settle: Callable[[NodeView, Collection[SandboxId]], bool] | None = None
    #: Sentences on what `give_back` would change, for dry runs; the lock may be another process's.
    giving_back: Callable[[Config], Sequence[str]] | None = None
    #: Sentences on what it would change besides masks of threads, for `vmpin plan` without a watcher.
    planned: Callable[[NodeView], Sequence[str]] | None = None
    #: Called before the command line is read; does not return where a shell started the process for a completion.
    take_over: Callable[[], None] | None = None
    #: The modules of its verbs in its folder, with `add_parser` and `run`.
    verbs: Mapping[str, str] = NONE
    #: Those that services and builds run: help lists them apart.
    service_verbs: Sequence[str] = ()
    #: Whether help lists its verbs, which work either way; None: always.
    lists_verbs: Callable[[Config], bool] | None = None
    #: In the examples of the program's help: a text, and the one that takes its place.
    examples: Mapping[str, str] = NONE
    #: Adds options and examples to the parser of a verb, by the verb's name, or of the program (""). May add to
    #: the default `run_instead`, a tuple: (the parsed command line) → what carries the verb out in place of the core,
    #: or None.
    options: Callable[[str, ArgumentParser], None] | None = None
    watch: Callable[[Watcher], WatcherPart | None] | None = None
    #: Keys of scenarios.
    scenario: ScenarioKeys | None = None
    #: Which CPUs the pool and containers have where it gives them out, for `vmpin map`; None where it does not. This
    #: and the next three ask the watcher.
    held_cpus: Callable[[Config], HeldCpus | None] | None = None
    #: Owners of CPUs beside the containers that have exclusive ones, for `vmpin verify --others`.
    cpu_owners: Callable[[Config], Iterable[CpuOwner]] | None = None
    #: What it compares for `vmpin verify`; None for nothing. (the configuration, the parsed command line, a sandbox or
    #: None for all, of which namespace: "" for all)
    verify: Callable[[Config, Namespace, str | None, str], Comparison | None] | None = None
    #: Pods that `vmpin status --explain` takes beside those in VMs; None where there can be none.
    explained_pods: Callable[[Config], ExplainedPods | None] | None = None
    #: The node's name where a configuration has another one than the host's; "" for none.
    node_name: Callable[[Config], str] | None = None
    #: Which annotations of pods the reporter hands to the watcher, by their keys; None for none.
    watched_annotations: Callable[[Config], Callable[[str], bool] | None] | None = None
    #: Finds the NUMA nodes of VMs' NICs, for policy.vhost: near. (/proc, the path of /sys) → the finder.
    nic_finder: Callable[[Any, str], NicFinder] | None = None
    #: Further members of a sandbox's entry in the status document, from the state and the kernel alone.
    members: Callable[[NodeView, Vm | None], Document] | None = None
    #: Adds what a command that root runs finds out about VMs to their entries of a status document.
    inspect: Callable[[Config, Sequence[dict[str, Any]]], None] | None = None
    #: Tables (titles, rows) and lines about a sandbox's entry, for `vmpin status`. (the entry, whether all is shown)
    tables: Callable[[Document, bool], Iterable[tuple[Sequence[str], Sequence[Sequence[object]]]]] | None = None
    lines: Callable[[Document], Iterable[str]] | None = None
    #: Sentences about a sandbox's entry, for `vmpin status --explain`.
    sentences: Callable[[Document], Iterable[str]] | None = None
    #: Sentences about exclusive CPUs, by CPU, of a status document: what had them besides threads. For `vmpin top`,
    #: `vmpin isolation` and `vmpin verify --others`.
    cpu_notes: Callable[[Document], Mapping[int, Sequence[str]]] | None = None
    #: A few words about a sandbox's entry, for the legend of `vmpin map`; "" for nothing.
    legend: Callable[[Document], str] | None = None
    #: Prints the map of a node. (a status document, the topology, which CPUs are given out, the node's name, text
    #: or json)
    show_map: Callable[[Document, Topology, HeldCpus | None, str, str], None] | None = None
    #: Facts for its checks beside those of every node (`NodeFacts.of_features`), as JSON can hold them. (the
    #: configuration, the mount of the node's file system)
    facts: Callable[[Config, Path], Document] | None = None
    #: The place of its checks of the doctor: a sequence of `Check`; "" for none.
    checks: str = ""

    def loaded(self, place: str, kind: type[T]) -> T:
        """Load what is at a place in its folder: MODULE.NAME. :param kind: its type, for the type checker."""
        module, _, name = place.rpartition(".")
        value: T = getattr(import_module(f"vmpin.features.{self.name}.{module}"), name)
        return value


@cache
def features() -> tuple[Feature, ...]:
    """Every feature of this installation, in the order of `vmpin.features.NAMES`."""
    from vmpin.features import NAMES

    return tuple(import_module(f"vmpin.features.{name}").FEATURE for name in NAMES)


def present(parts: Iterable[T | None]) -> Iterator[T]:
    """Pick the optional parts that there are: `for begin in present(part.begin for part in parts)`."""
    return (part for part in parts if part is not None)


def inspect_vms(config: Config, sandboxes: Sequence[dict[str, Any]]) -> None:
    """Have each feature add what it finds out about VMs to their entries of a status document."""
    for inspect in present(feature.inspect for feature in features()):
        inspect(config, sandboxes)


def notes_on_cpus(document: Document) -> dict[int, list[str]]:
    """Collect what features note on exclusive CPUs, by CPU, of a status document."""
    notes: dict[int, list[str]] = {}
    for notes_of in present(feature.cpu_notes for feature in features()):
        for cpu, sentences in notes_of(document).items():
            notes.setdefault(cpu, []).extend(sentences)
    return notes


def status_of(parts: Mapping[str, WatcherPart]) -> dict[str, Document]:
    """The member `features` of the status document."""
    return {name: part.status() for name, part in parts.items() if part.status is not None}


def briefs_of(parts: Mapping[str, WatcherPart]) -> dict[str, Document]:
    """The briefs of features that clients which follow the node are sent, by the feature's name."""
    return {name: brief for name, part in parts.items()
            if part.brief is not None and (brief := part.brief()) is not None}


def explained_pods(config: Config) -> list[ExplainedPods]:
    """The pods that features have sentences about, for a command that asks the watcher."""
    return [*present(pods(config) for pods in present(feature.explained_pods for feature in features()))]


def settlements(view: NodeView, sandboxes: Collection[SandboxId]) -> list[tuple[str, Callable[[], bool]]]:
    """Return what gives back what features changed of sandboxes, with the feature's name; it returns whether all of
    that was possible."""
    return [(feature.name, partial(feature.settle, view, sandboxes)) for feature in features()
            if feature.settle is not None]
