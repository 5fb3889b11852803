"""A model of a container runtime beside a `CpuAllocator`: it does what the answers say, and checks that no CPU of one
container's own is another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.vm_size import VmSize
from vmpin.sources.nri.nri_events import ContainerEvent, CpuAnswer, NriContainer, NriPod, PodEvent
from vmpin.wire.nri_enums import RUNNING, Verb

ONLINE = CpuSet(range(8))
RESERVED = CpuSet((0,))
MACHINE = Topology.build(ONLINE, cores=[CpuSet((cpu, cpu + 1)) for cpu in range(0, 8, 2)], caches=[ONLINE],
                         nodes={0: ONLINE})
POLICY = "cpu-policy.vmpin.io"


def options(mode: AllocationMode = AllocationMode.ON, delay: float = 0.0, headroom: int = 0) -> AllocationOptions:
    return AllocationOptions(mode, RESERVED, grow_delay_seconds=delay, pool_headroom=headroom)


class Box(NamedTuple):
    """A container as the runtime has it."""

    asked: RequestedContainer
    exclusive: bool
    cpus: CpuSet | None = None
    exists: bool = False


class Runtime:
    """Pods and containers, and what a runtime does with answers."""

    def __init__(self, directory: Path, headroom: int = 0) -> None:
        self.path, self.headroom = directory / "ledger.json", headroom
        self.boxes: dict[ContainerId, Box] = {}
        self.sandboxes: set[SandboxId] = set()
        self.allocator = self.made()

    def made(self, mode: AllocationMode = AllocationMode.ON, boot_id: str = "boot") -> CpuAllocator:
        chosen = options(mode, headroom=self.headroom)
        return CpuAllocator(MACHINE, chosen, LedgerFile(self.path, boot_id), lambda pod: VmSize())

    def box(self, name: str, size: int = 0) -> RequestedContainer:
        """A container of a pod of its own; `size`: CPUs for it alone."""
        self.sandboxes.add(SandboxId(f"pod-{name}"))
        found = RequestedContainer(
            ContainerId(name), SandboxId(f"pod-{name}"), "main", "default", name, f"uid-{name}",
            pod_annotations={POLICY: "exclusive"} if size else {}, shares=1024 * (size or 1),
            quota=100_000 * size or None, period=100_000 if size else None)
        self.boxes[found.id] = Box(found, bool(size))
        return found

    def list(self) -> None:
        """A new connection."""
        listed = Listed(frozenset(self.sandboxes), tuple(
            box.asked._replace(cpuset=box.cpus) for box in self.boxes.values() if box.exists))
        for _ in self.applied(self.allocator.synchronize(listed)):
            pass

    def applied(self, answer: CpuAnswer) -> Iterator[str]:
        """Its updates, one after the other."""
        for container, cpus in answer.updates:
            if container in self.boxes and self.boxes[container].exists:
                self.boxes[container] = self.boxes[container]._replace(cpus=cpus)
                self.check()
            yield f"{container} updated"

    def create(self, name: str, size: int = 0) -> Iterator[str]:
        """From the request to the report that it runs, step by step."""
        asked = self.box(name, size)
        yield "asked"
        answer = self.allocator.decide(Verb.CREATE, asked)
        assert not answer.refusal
        yield "answered"
        yield from self.applied(answer)
        adjusted = answer.adjustment
        if adjusted is not None:
            asked = asked._replace(annotations={**asked.annotations, **adjusted.annotations})
        self.boxes[asked.id] = Box(asked, bool(size), None if adjusted is None else adjusted.cpus, exists=True)
        yield "created"
        self.boxes[asked.id] = self.boxes[asked.id]._replace(asked=asked._replace(state=ContainerState.RUNNING))
        self.event(Verb.POST_START, asked)
        yield "started"

    def remove(self, name: str) -> Iterator[str]:
        box = self.boxes[ContainerId(name)]
        asked = box.asked._replace(state=ContainerState.STOPPED)
        answer = self.allocator.decide(Verb.STOP, asked)
        del self.boxes[ContainerId(name)]
        yield "stopped"
        yield from self.applied(answer)
        self.event(Verb.REMOVE, asked)
        yield "removed"
        self.sandboxes.discard(asked.sandbox)
        self.allocator.record(PodEvent(Verb.REMOVE_POD, pod(asked.sandbox), 1))
        yield "ended"
        yield from self.by_cri()

    def by_cri(self) -> Iterator[str]:
        """What the loop's task gives by CRI calls, each of which comes back as an update."""
        while (update := self.allocator.next_update(())) is not None:
            container, cpus = update
            yield f"{container} begun"
            box = self.boxes[container]
            answer = self.allocator.decide(Verb.UPDATE, box.asked._replace(cpuset=cpus, shares=None))
            self.boxes[container] = box._replace(cpus=dict(answer.updates).get(container, cpus))
            yield from self.applied(answer)
            self.check()
            yield f"{container} given"
            self.allocator.given(update)

    def event(self, verb: Verb, asked: RequestedContainer) -> None:
        self.allocator.record(ContainerEvent(verb, pod(asked.sandbox), NriContainer(
            asked.id, asked.sandbox, asked.name, RUNNING, None, {}, 0), 1))

    # What has to be so at any moment

    def check(self) -> None:
        """No CPU of one container's own is another's."""
        for box in self.boxes.values():
            if box.exists and box.exclusive and box.cpus:
                assert RESERVED.isdisjoint(box.cpus)
                for other in self.boxes.values():
                    if other.exists and other is not box and other.cpus is not None:
                        assert box.cpus.isdisjoint(other.cpus), (box, other)

    def settled(self) -> None:
        """After a list, and what is due after it: everything that runs has its CPUs, and every CPU has an owner."""
        for _ in self.by_cri():
            pass
        self.check()
        ledger, granted = self.allocator.ledger(), self.allocator.assignments()
        assert ledger is not None
        assert granted is not None
        # A pod keeps the CPUs of its stopped containers.
        assert {grant.sandbox for grant in ledger.grants.values()} <= self.sandboxes
        held = ledger.out_of_pool()
        own = union(box.cpus or EMPTY for box in self.boxes.values() if box.exists and box.exclusive)
        assert own <= held
        for box in self.boxes.values():
            if box.exists and box.exclusive:
                assert len(box.cpus or EMPTY) == (box.asked.quota or 0) // 100_000
            elif box.exists:
                assert box.cpus == ledger.shared
        assert union(granted.exclusive.values()) == own
        assert granted.pool == ledger.shared
        assert len(ONLINE - held - ledger.shared) == min(self.headroom, len(ONLINE - held - RESERVED))


def pod(sandbox: SandboxId) -> NriPod:
    return NriPod(sandbox, sandbox, "default", f"uid-{sandbox}", "", 0, {}, "")
