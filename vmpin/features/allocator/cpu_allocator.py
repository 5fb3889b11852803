"""The owner of the ledger: answers the runtime's calls with CPUs, and keeps the ledger in its file.

The plugin's thread calls it for answers, the event loop for everything else; a lock serialises both, and under it
nothing waits but for the ledger's file. Updates that no answer has carried (`decisions.due_updates`: CPUs that came
back, updates that failed) are made by CRI calls from the loop (features.allocator.cri_calls): a call from within an
answer would wait for itself. Such a call comes back as an UpdateContainer, which is decided on as any other: where
its CPUs are still the container's it changes nothing, else it is corrected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Assignments
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer, SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants import decisions, live_change
from vmpin.features.allocator.grants.admission import pod_of_note
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.grants.ledger import Answer, Ledger
from vmpin.features.allocator.grants.live_change import follow_annotations
from vmpin.features.allocator.grants.pool_cpus import with_written
from vmpin.features.allocator.grants.synchronizing import on_online_changed, on_synchronize
from vmpin.features.allocator.ledger_file import LedgerFile, assignments_by
from vmpin.features.allocator.vm_size import VmSize
from vmpin.sources.nri.nri_events import ContainerEvent, CpuAnswer, NriPod, PodEvent
from vmpin.wire.nri_enums import Verb

logger = logging.getLogger(__name__)

_NOTHING = CpuAnswer()
_NEAR = "cpu-near.vmpin.io"


class CpuAllocator:
    """With `allocate.mode` observe it decides, and answers nothing. `machine` is the node's topology; `suspended` is
    the reason why nothing is given out for now, "" for none.
    :param vm_size_of: whether a pod is a VM, and of which size, from NRI's pod.
    :param device_nodes: the NUMA nodes of devices, by name."""

    def __init__(self, machine: Topology, options: AllocationOptions, file: LedgerFile,
                 vm_size_of: Callable[[NriPod], VmSize],
                 device_nodes: Callable[[Collection[str]], Mapping[str, int]] = lambda names: {}) -> None:
        self._lock = threading.Lock()
        self.machine, self.options, self._file = machine, options, file
        self.suspended = ""
        self._acts = options.mode is AllocationMode.ON
        #: Since the watcher started: refusals by kind, and changes of the CPUs that shared containers are on.
        self.refusals: Counter[str] = Counter()
        self.pool_changes = 0
        self._vm_size_of, self._device_nodes = vm_size_of, device_nodes
        #: None until the runtime's first list, where there is no file.
        self._ledger: Ledger | None = file.load() if self._acts else None
        #: The last ledger of which the assignments were worked out, and these; only the event loop uses it.
        self._assigned: tuple[Ledger | None, Assignments] = None, Assignments()
        self._listed = False  #: Whether the runtime has listed its containers.
        #: The updates to make by CRI calls, and from when on (CLOCK_MONOTONIC in seconds).
        self._due: tuple[SideUpdate, ...] = ()
        self._due_at = 0.0

    # The runtime's calls, in the plugin's thread

    records: AbstractSet[Verb] = frozenset((Verb.STOP_POD, Verb.REMOVE_POD, Verb.POST_START, Verb.REMOVE))

    def decide(self, verb: Verb, container: RequestedContainer, pod: NriPod | None = None) -> CpuAnswer:
        """Decide on CREATE, UPDATE or STOP. The grant is in the file before this returns."""
        if verb is not Verb.STOP and pod is not None:
            container = _sized(container, self._vm_size_of(pod))
        with self._lock:
            ledger = self._current()
            if ledger is None:
                return _NOTHING
            match verb:
                case Verb.CREATE:
                    machine = self._with_devices([container])
                    answer = decisions.on_create(machine, ledger, container, self.options)
                case Verb.UPDATE:
                    answer = decisions.on_update(self.machine, ledger, container, self.options)
                case _:
                    answer = decisions.on_stop(self.machine, ledger, container.id, self.options)
            self._keep(answer)
            return CpuAnswer(answer.adjustment, answer.updates, answer.refusal)

    def synchronize(self, listed: Listed, pods: Sequence[NriPod] = ()) -> CpuAnswer:
        """Take in the runtime's list, which begins the ledger, or corrects it."""
        sizes = {pod.id: self._vm_size_of(pod) for pod in pods}
        listed = listed._replace(containers=tuple(_sized(container, sizes.get(container.sandbox, VmSize()))
                                                  for container in listed.containers))
        with self._lock:
            if self.suspended:
                return _NOTHING
            answer = on_synchronize(self._with_devices(listed.containers), listed, self._ledger, self.options)
            self._listed = True
            self._keep(answer)
            return CpuAnswer(updates=answer.updates)

    def record(self, event: PodEvent | ContainerEvent) -> None:
        """Take in an event whose answer can carry nothing."""
        with self._lock:
            ledger = self._current()
            if ledger is None:
                return
            if isinstance(event, PodEvent):
                if event.verb is not Verb.RUN_POD:
                    self._keep(decisions.on_pod_end(self.machine, ledger, event.pod.id, self.options))
                return
            container = event.container
            if event.verb is Verb.POST_START:
                self._keep(decisions.on_start(self.machine, ledger, RequestedContainer(
                    container.id, container.pod, container.name), self.options))
            elif event.verb is Verb.REMOVE:
                self._keep(decisions.on_remove(self.machine, ledger, container.id, self.options))

    def _current(self) -> Ledger | None:
        """The ledger; None while nothing is given out."""
        return self._ledger if self._listed and not self.suspended else None

    def _with_devices(self, containers: Iterable[RequestedContainer]) -> Topology:
        """The machine with the NUMA nodes of the devices that containers have, or that their annotations name."""
        names: set[str] = set()
        for container in containers:
            names.update(container.devices, (value.strip() for key, value in container.pod_annotations.items()
                                             if key.partition("/")[0] == _NEAR))
        return self.machine._replace(devices=self._device_nodes(names)) if names else self.machine

    def change(self, container: ContainerId, changes: Mapping[str, str], dry_run: bool) -> Answer:
        """Change what a running container asks for, its updates due at once. :param dry_run: only plan it."""
        with self._lock:
            ledger = self._current()
            if ledger is None:
                why = self.suspended or "the container runtime has not listed its containers yet"
                return Answer(Ledger(), refusal=f"vmpin: nothing is given out: {why}")
            machine = self.machine._replace(devices=self._device_nodes(changes.values()))
            answer = live_change.set_policy(machine, ledger, container, changes, self.options)
            if not answer.refusal and not dry_run:
                self._keep(answer)
                self._due_at = time.monotonic()
            return answer

    def follow(self, container: ContainerId, handed: Mapping[str, Mapping[str, str]]) -> Answer | None:
        """Decide on a container's changed annotations, its updates due at once. :param handed: those of pods, by uid.
        :returns: None while nothing is given out, and where the container is gone."""
        with self._lock:
            ledger = self._current()
            grant = None if ledger is None else ledger.grants.get(container)
            if ledger is None or grant is None or grant.pod_uid not in handed:
                return None
            annotations = handed[grant.pod_uid]
            machine = self._with_devices([RequestedContainer(container, grant.sandbox, pod_annotations=annotations)])
            answer = follow_annotations(machine, ledger, container, annotations, self.options, time.time_ns())
            self._keep(answer)
            if answer.updates:
                self._due_at = time.monotonic()
            return answer

    def _keep(self, answer: Answer) -> None:
        for note in answer.notes:
            logger.info("allocate: %s%s", "" if self._acts else "would be: ", note, extra={"pod": pod_of_note(note)})
        before = () if self._ledger is None else self._ledger.refused
        self.refusals.update(request.kind for request in answer.ledger.refused if request not in before)
        self._replace(answer.ledger)

    def _replace(self, ledger: Ledger) -> None:
        """Replace the ledger, first in the file."""
        if ledger == self._ledger:
            return
        if self._acts:
            self._file.save(ledger)
        self.pool_changes += self._ledger is not None and ledger.shared != self._ledger.shared
        self._ledger = ledger
        self._find_due(ledger)

    def _find_due(self, ledger: Ledger) -> None:
        due = decisions.due_updates(self.machine, ledger, self.options)
        if not set(due) <= set(self._due):
            soon = time.monotonic() + self.options.grow_delay_seconds
            self._due_at = min(soon, self._due_at) if self._due else soon
        self._due = due

    # The ledger's reading, and the updates that no answer has carried: in the event loop

    def idle_pods(self) -> frozenset[SandboxId]:
        """Return the pods that hold CPUs, and all of whose containers have stopped."""
        with self._lock:
            ledger = self._current() or Ledger()
        return (frozenset(grant.sandbox for grant in ledger.grants.values())
                - {grant.sandbox for grant in ledger.grants.values() if grant.live})

    def end_idle(self, sandbox: SandboxId) -> bool:
        """End a pod whose end the runtime has not reported. :returns: whether it was still idle."""
        with self._lock:
            ledger = self._current()
            grants = [] if ledger is None else ledger.of_sandbox(sandbox)
            if ledger is None or not grants or any(grant.live for grant in grants):
                return False
            self._keep(decisions.on_pod_end(self.machine, ledger, sandbox, self.options))
            return True

    def suspend(self, why: str) -> None:
        """Give nothing out from now on; with "" start again, at the runtime's next list."""
        with self._lock:
            self.suspended, self._listed, self._due = why, False, ()

    def renew(self, machine: Topology) -> None:
        """Take over a topology with other online or isolated CPUs. Grants stay; the updates of others are due at
        once."""
        with self._lock:
            self.machine, ledger = machine, self._current()
            if ledger is None:
                return
            answer = on_online_changed(machine, ledger, self.options)
            after = answer.ledger
            for container, _ in answer.updates:  # they are yet to be made
                grant = ledger.grants.get(container)
                after = with_written(after, container, None if grant is None else grant.written)
            self._keep(answer._replace(ledger=after))
            self._find_due(after)  # an own CPU that went or came back changes nothing in the ledger
            self._due_at = time.monotonic()

    def assignments(self) -> Assignments | None:
        """Return the given CPUs, which placement follows, the same object while they do not change; None while nothing
        is given out."""
        with self._lock:
            ledger = self._ledger
            if ledger is None or not self._acts or self.suspended:
                return None
        if ledger is not self._assigned[0]:
            before, now = self._assigned[1], assignments_by(ledger)
            self._assigned = ledger, before if now == before else now
        return self._assigned[1]

    def expected(self) -> dict[ContainerId, CpuSet]:
        """Return the cpuset that each container's cgroup should have by now; {} while nothing is given out."""
        with self._lock:
            ledger = self._current()
            return {} if ledger is None or not self._acts else {
                grant.container: grant.written for grant in ledger.grants.values()
                if grant.live and grant.written and not grant.left_alone}

    def read_back(self, container: ContainerId, cpus: CpuSet) -> None:
        """Record the CPUs of a container's cgroup: where they are not its own, an update is due at once."""
        with self._lock:
            ledger = self._current()
            if ledger is not None:
                self._replace(with_written(ledger, container, cpus))
                self._due_at = time.monotonic()

    def pause(self) -> float | None:
        """Return the seconds until CRI calls are to be made; None: none is due."""
        with self._lock:
            return max(0.0, self._due_at - time.monotonic()) if self._due else None

    def next_update(self, but: Container[ContainerId]) -> SideUpdate | None:
        """Return the update to make by a CRI call now; None where none is due. `given` follows.
        :param but: containers for which a call has just failed."""
        with self._lock:
            if self._due_at > time.monotonic():
                return None
            return next((update for update in self._due if update.container not in but), None)

    def given(self, update: SideUpdate) -> None:
        """Record that the CRI call has been made."""
        with self._lock:
            if self._ledger is not None and update in self._due:
                self._replace(with_written(self._ledger, update.container, update.cpus))

    def postpone(self, seconds: float) -> None:
        """Have the next CRI calls made later, as calls have failed."""
        with self._lock:
            self._due_at = time.monotonic() + seconds

    def ledger(self) -> Ledger | None:
        """Return the present ledger; None before the runtime's first list."""
        with self._lock:
            return self._ledger


def _sized(container: RequestedContainer, vm: VmSize) -> RequestedContainer:
    """The request, of a container in a VM of this size."""
    return container._replace(vm=True, vm_vcpus=vm.vcpus, vm_most=vm.most, vm_part=vm.part) if vm.vm else container
