"""A node with runc pods and VM sandboxes side by side: a model of it, the hands that make it so, and the judge.

`Story` plays the kubelet: it hands out CPUs of `OWNABLE` to single containers and keeps `POOL` for all others, starts,
updates and ends containers, VMs and the watcher, in an order that a seed decides. What must hold is worked out from
the model alone and looked up in /proc and /sys, not with vmpin's own eyes. Of vmpin it takes the words that are to be
judged (status and verify) and the hook's installer.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from real_node import talk

from lab.node_tests.conftest import StartsVms
from lab.node_tests.machines import PATIENCE, RUN, Kata, Vmpin, Watcher
from lab.node_tests.mixed_model import OWNABLE, POOL, Container, Kind, Pod
from lab.node_tests.mixed_runtime import Runtime, masks_of
from vmpin.cli.main import main as vmpin_command
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.install import hook_options

RESYNC = 1.0
#: Within which everything has to be in place after a step: a resync, and what emulation and a busy build machine take.
SETTLED = RESYNC + PATIENCE
MOST_VMS = 4
MOST_RUNC_PODS = 3
MOST_CONTAINERS = 4  # in a pod


class Story:
    """Steps at random, and after each of them the judge."""

    #: How often each step comes in a deck. It is dealt from to its end and then shuffled anew, so that no kind is left
    #: out for long; one that is not possible now waits.
    DECK: Mapping[str, int] = {
        "start_vm": 4, "run": 8, "update": 6, "remove": 2, "end": 1, "hand_over": 2, "plug": 1, "stop_pod": 2,
        "kill_vmm": 1, "burst": 2, "restart": 1, "away": 1}
    #: The same for a short story: what the others need is there early.
    SHORT: Mapping[str, int] = dict.fromkeys(DECK, 1) | {"start_vm": 2, "run": 3}
    #: What several may be done of at once, and with the watcher away.
    PLAIN = ("run", "run", "update", "update", "remove", "start_vm", "stop_pod", "hand_over")

    def __init__(self, seed: int, directory: Path, start_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                 watcher: Watcher) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.start = start_vm
        self.kata = kata
        self.vmpin = vmpin
        self.watcher = watcher
        self.runtime = Runtime(directory)
        self.pods: dict[str, Pod] = {}
        self.history: list[str] = []
        self.counts = dict.fromkeys(self.DECK, 0)
        #: How long after each step it took until all was in place.
        self.settled: list[float] = []
        self._made = 0
        self._cards = self.DECK
        self._deck: list[str] = []
        #: One-to-one pairs seen last, by thread id; None when they need not be kept.
        self._pairs: dict[int, CpuSet] | None = None
        self._pairs_now: dict[int, CpuSet] = {}
        self._anchor = ""
        #: Containers that only a spooled message tells of. If such a one's process ends before the watcher reads that,
        #: nobody can say whether it was ever the container's: it counts until it is removed.
        self._unheard: set[str] = set()

    def __enter__(self) -> Story:
        try:
            self.vmpin.configure(node__shared_pool=str(POOL), watch__resync_seconds=RESYNC)
            pod = self._pod(Kind.RUNC)
            self._anchor = pod.name
            self._run(pod, Container(f"{pod.name}-daemon", "runc", POOL))
            self.watcher.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.close()

    def play(self, steps: int) -> None:
        """So many steps; 0: until each kind has come once."""
        if not steps:
            self._cards = self.SHORT
        while sum(self.counts.values()) < steps if steps else not all(self.counts.values()):
            self.step()
        self.note("the end: every pod is stopped")
        for pod in list(self.pods.values()):
            self._remove_pod(pod)
        self.judge()
        self.vmpin("verify")

    def step(self) -> None:
        name, action = self._next()
        self.counts[name] += 1
        self.note(f"step {sum(self.counts.values())}: {name}")
        keep = name in ("start_vm", "run", "update", "remove", "end", "stop_pod")
        if not keep:
            self._pairs = None
        started = time.monotonic()
        action()
        self.judge()
        self.note(f"  {time.monotonic() - started:.1f} s, settled after {self.settled[-1]:.1f} s")

    def note(self, text: str) -> None:
        self.history.append(text)
        print(text, flush=True)

    def _next(self) -> tuple[str, Callable[[], None]]:
        while True:
            for name in self._deck:
                action = self._possible(name)
                if action is not None:
                    self._deck.remove(name)
                    return name, action
            more = [name for name, count in self._cards.items() for _ in range(count)]
            self.random.shuffle(more)
            self._deck += more

    def _possible(self, name: str) -> Callable[[], None] | None:
        """How to take a step now; None when it cannot be taken."""
        found: Callable[[], Callable[[], None] | None] = getattr(self, f"_may_{name}")
        return found()

    def _pick(self, things: list[Any]) -> Any:
        return self.random.choice(things)

    # The kubelet's book

    @property
    def containers(self) -> list[tuple[Pod, Container]]:
        """All but the one that stays."""
        return [(pod, container) for pod in self.pods.values() for container in pod.containers.values()
                if pod.name != self._anchor]

    @property
    def free(self) -> CpuSet:
        owned = union(container.exclusive for pod in self.pods.values() for container in pod.containers.values())
        return OWNABLE - owned

    def _owned(self, more: CpuSet = EMPTY) -> CpuSet:
        """Some CPUs for one container alone; empty when none is free."""
        free = sorted(self.free | more)
        return CpuSet(self.random.sample(free, self.random.randint(1, min(3, len(free))))) if free else EMPTY

    def _shared(self) -> CpuSet:
        return CpuSet.parse(self._pick(["0-1", "0-1", "0", "1"]))

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _pod(self, kind: Kind) -> Pod:
        pod = Pod(f"p{self._number()}", kind, f"{self.random.getrandbits(256):064x}")
        self.pods[pod.name] = pod
        return pod

    # Steps: each says whether it is possible and gives the deed

    def _may_start_vm(self) -> Callable[[], None] | None:
        # One that is killed and not yet reaped counts, too.
        if sum(pod.vm is not None for pod in self.pods.values()) >= MOST_VMS:
            return None
        return self._start_vm

    def _start_vm(self) -> None:
        pod = self._pod(self._pick([Kind.HOOK, Kind.KATA]))
        vcpus, paused = self.random.randint(1, 4), self.random.random() < 0.25
        options: dict[str, Any] = {
            "vcpus": vcpus, "maxcpus": vcpus + 2, "paused": paused,
            # Without names its vCPUs are told by what they do, and those of a paused one do nothing.
            "debug_threads": paused or self.random.random() < 0.7,
            "iothreads": ["io1"] if self.random.random() < 0.3 else [],
            "vhost_net": int(self.random.random() < 0.4)}
        self.note(f"  {pod.name}: {pod.kind} {pod.sandbox[:12]} {options}")
        pod.vm = self.start(pod.sandbox, **options)
        pod.vcpus = frozenset(pod.vm.vcpus())
        if pod.kind is Kind.KATA:
            self._write_kata(pod)

    def _write_kata(self, pod: Pod) -> None:
        assert pod.vm is not None
        self.kata.write(pod.vm, {container.name: str(container.cpus) for container in pod.containers.values()},
                        stopped=[container.name for container in pod.containers.values() if container.ended])

    def _may_run(self) -> Callable[[], None] | None:
        pods: list[Pod | None] = [pod for pod in self.pods.values() if pod.name != self._anchor
                                  and not pod.dead and len(pod.containers) < MOST_CONTAINERS]
        if sum(pod.kind is Kind.RUNC for pod in self.pods.values()) <= MOST_RUNC_PODS:
            pods.append(None)
        if not pods:
            return None
        pods += [pod for pod in pods if pod is not None and pod.kind is not Kind.RUNC]  # VMs are what it is about

        def run() -> None:
            pod = self._pick(pods) or self._pod(Kind.RUNC)
            dice = self.random.random()
            cpus = EMPTY if dice < 0.1 else self._shared() if dice < 0.4 else self._owned() or self._shared()
            self._run(pod, Container(f"{pod.name}-c{self._number()}", self._pick(["runc", "runc", "crun"]), cpus))

        return run

    def _run(self, pod: Pod, container: Container) -> None:
        if pod.kind is Kind.RUNC:
            container.runtime = "runc"
        self.note(f"  run {container} in {pod}")
        pod.containers[container.name] = container
        if pod.kind is Kind.KATA:
            self._write_kata(pod)
            return
        self._unheard.add(container.name)
        stages = self._pick([hook_options.DEFAULT_STAGES, ("createRuntime", "poststop"), ("poststart", "poststop")])
        self.runtime.run(container.runtime, container.name, pod.sandbox, container.cpus, stages)

    def _may_update(self) -> Callable[[], None] | None:
        found = [(pod, container) for pod, container in self.containers if not pod.dead and not container.ended]
        if not found:
            return None

        def update() -> None:
            pod, container = self._pick(found)
            owned = self._owned(container.exclusive) if self.random.random() < 0.6 else EMPTY
            self._update(pod, container, owned or self._shared())

        return update

    def _update(self, pod: Pod, container: Container, cpus: CpuSet) -> None:
        self.note(f"  update {container} to {cpus} in {pod}")
        container.cpus = cpus
        if pod.kind is Kind.KATA:
            self._write_kata(pod)
        else:
            self.runtime.update(container.name, cpus)

    def _may_hand_over(self) -> Callable[[], None] | None:
        """One container's own CPUs become another's, without a moment to settle in between."""
        live = [(pod, container) for pod, container in self.containers if not pod.dead and not container.ended]
        giving = [(pod, container) for pod, container in live if container.exclusive]
        taking = [(pod, container) for pod, container in live if not container.exclusive]
        if not giving or not taking:
            return None

        def hand_over() -> None:
            (giver, gives), (taker, takes) = self._pick(giving), self._pick(taking)
            cpus = gives.exclusive
            self._update(giver, gives, self._shared())
            self._update(taker, takes, cpus)

        return hand_over

    def _may_remove(self) -> Callable[[], None] | None:
        found = [(pod, container) for pod, container in self.containers if not pod.dead]
        return (lambda: self._remove(*self._pick(found))) if found else None

    def _remove(self, pod: Pod, container: Container) -> None:
        self.note(f"  remove {container} of {pod}")
        del pod.containers[container.name]
        if pod.kind is not Kind.KATA:
            self.runtime.remove(container.name)
        elif not pod.dead:
            self._write_kata(pod)
        if pod.kind is Kind.RUNC and not pod.containers:
            del self.pods[pod.name]

    def _may_end(self) -> Callable[[], None] | None:
        """A container's process ends by itself: no hook tells of that, nor does the kubelet know yet."""
        found = [(pod, container) for pod, container in self.containers
                 if not pod.dead and not container.ended and container.name not in self._unheard]
        if not found:
            return None

        def end() -> None:
            pod, container = self._pick(found)
            self.note(f"  {container} of {pod} ends by itself")
            container.ended = True
            if pod.kind is Kind.KATA:
                self._write_kata(pod)
            else:
                self.runtime.end(container.name)

        return end

    def _may_plug(self) -> Callable[[], None] | None:
        found = [pod for pod in self.pods.values() if pod.runs_vm and len(pod.vcpus) < 4]
        if not found:
            return None

        def plug() -> None:
            pod = self._pick(found)
            self.note(f"  plug a vCPU into {pod}")
            pod.vm.add_vcpu()
            pod.vcpus = frozenset(pod.vm.vcpus())

        return plug

    def _may_stop_pod(self) -> Callable[[], None] | None:
        found = [pod for pod in self.pods.values() if pod.name != self._anchor]
        return (lambda: self._remove_pod(self._pick(found))) if len(found) > 2 else None

    def _remove_pod(self, pod: Pod) -> None:
        self.note(f"  stop {pod}")
        first = self.random.random() < 0.5
        if first and pod.vm is not None:
            self._end_vm(pod)
        for container in list(pod.containers.values()):
            self._remove(pod, container)
        if pod.vm is not None:
            self._end_vm(pod)
            if pod.kind is Kind.KATA:
                self.kata.remove(pod.vm)
        self.pods.pop(pod.name, None)

    def _end_vm(self, pod: Pod) -> None:
        assert pod.vm is not None
        pod.dead = True
        pod.vm.stop()

    def _may_kill_vmm(self) -> Callable[[], None] | None:
        found = [pod for pod in self.pods.values() if pod.runs_vm]
        if not found:
            return None

        def kill_vmm() -> None:
            pod = self._pick(found)
            self.note(f"  kill -9 the VMM of {pod}")
            pod.vm.kill()
            pod.dead = True
            # Nobody reaps it yet, and its containers are not yet removed: what they own is still theirs.
            self.judge()
            self._remove_pod(pod)

        return kill_vmm

    def _plain(self, names: tuple[str, ...] = PLAIN) -> None:
        while True:
            action = self._possible(self._pick(list(names)))
            if action is not None:
                action()
                return

    def _may_burst(self) -> Callable[[], None] | None:
        def burst() -> None:
            for _ in range(self.random.randint(2, 3)):
                self._plain()

        return burst

    def _may_restart(self) -> Callable[[], None] | None:
        """kill -9 of the watcher in the middle of something."""
        def restart() -> None:
            delay = self.random.random() * 1.5
            self.note(f"  kill -9 the watcher after {delay:.2f} s of")
            timer = threading.Timer(delay, self.watcher.kill)
            timer.start()
            try:
                self._plain()
            finally:
                timer.join()
            self.watcher.start()

        return restart

    def _may_away(self) -> Callable[[], None] | None:
        """What happens while there is no watcher is found in the spool, and on the node."""
        def away() -> None:
            self.note("  kill -9 the watcher before")
            self.watcher.kill()
            before = _spooled()
            pod = self._pod(Kind.RUNC)
            self._run(pod, Container(f"{pod.name}-c{self._number()}", "runc", self._owned() or self._shared()))
            assert _spooled() - before, "the hook has left nothing in the spool"
            for _ in range(self.random.randint(0, 2)):
                self._plain()
            if self.random.random() < 0.5 and (end := self._possible("end")) is not None:
                end()
            self.watcher.start()

        return away

    # The judge

    def judge(self) -> None:
        """Wait until everything that must hold does."""
        started = time.monotonic()
        complaints = [""]
        status: Any = None
        masks: dict[int, dict[int, tuple[str, CpuSet]]] = {}
        while True:
            status = json.loads(talk(RUN / "vmpin.sock", b'{"op":"status"}\n'))
            masks = masks_of([pod.vm.pid for pod in self.pods.values() if pod.vm is not None and pod.runs_vm])
            complaints = [*self._complaints(status, masks)]
            if not complaints:
                complaints = [*self._verify()]
            if not complaints:
                break
            if time.monotonic() - started > SETTLED:
                raise AssertionError(self._account(complaints, status, masks))
            time.sleep(0.1)
        self.settled.append(time.monotonic() - started)
        self._unheard.clear()

    def _complaints(self, status: Any, masks: Mapping[int, Mapping[int, tuple[str, CpuSet]]]) -> Iterator[str]:
        pairs: dict[int, CpuSet] = {}
        shown = {entry["id"]: entry for entry in status["sandboxes"]}
        for pod in self.pods.values():
            if pod.vm is not None and pod.runs_vm:
                yield from self._vm_complaints(pod, masks[pod.vm.pid], shown.get(pod.sandbox))
                if pod.one_to_one():
                    pairs |= {tid: masks[pod.vm.pid][tid][1] for tid in pod.vcpus & masks[pod.vm.pid].keys()
                              if masks[pod.vm.pid][tid][1] <= pod.exclusive()}
            for container in pod.live():
                if pod.kind is not Kind.KATA:
                    yield from self.runtime.touched(container.name, container.cpus)
        running = {pod.sandbox for pod in self.pods.values() if pod.runs_vm}
        for sandbox in {entry["id"] for entry in shown.values() if entry["vmm"] is not None} - running:
            yield f"status has a VM of {sandbox[:12]}, which has none"
        owners = sorted((entry["sandbox"], entry["cpus"]) for entry in status["node"]["owners"])
        wanted = sorted((pod.sandbox, str(container.exclusive)) for pod in self.pods.values()
                        for container in pod.live() if container.exclusive)
        if owners != wanted:
            yield f"status has the owners {owners}, not {wanted}"
        if status["node"]["collisions"]:
            yield f"collisions: {status['node']['collisions']}"
        for pod in self.pods.values():
            for tid in pod.vcpus & (self._pairs or {}).keys() if pod.runs_vm and pod.one_to_one() else ():
                before = (self._pairs or {})[tid]
                if before <= pod.exclusive() and pairs.get(tid) != before:
                    yield f"{pod.name}: vCPU thread {tid} had {before} to itself and lost it without need"
        self._pairs_now = pairs

    def _vm_complaints(self, pod: Pod, threads: Mapping[int, tuple[str, CpuSet]], shown: Any) -> Iterator[str]:
        assert pod.vm is not None
        others = union(container.exclusive for other in self.pods.values() if other is not pod
                       for container in other.live())
        mask = pod.mask()
        apart = (mask - pod.exclusive()) or mask
        for tid, (name, cpus) in threads.items():
            if not cpus.isdisjoint(others):
                yield f"{pod.name}: thread {tid} {name} may run on {cpus & others}, which another container owns"
            if tid not in pod.vcpus and cpus != apart:
                yield f"{pod.name}: thread {tid} {name} may run on {cpus}, not on {apart}"
        have = sorted(str(cpus) for tid, (_, cpus) in threads.items() if tid in pod.vcpus)
        want = [sorted(map(str, choice)) for choice in pod.vcpu_masks()]
        if have not in want:
            yield f"{pod.name}: the vCPUs are on {have}, not on {want}"
        if shown is None or shown["vmm"] is None or shown["vmm"]["pid"] != pod.vm.pid:
            yield f"{pod.name}: status does not have its VM"
            return
        if shown["mask"] != str(mask):
            yield f"{pod.name}: status has the mask {shown['mask']}, not {mask}"
        told = {thread["tid"]: thread["role"] == "vcpu" for thread in shown["threads"]}
        if told != {tid: tid in pod.vcpus for tid in threads}:
            yield f"{pod.name}: status has the threads {told}, its vCPUs are {sorted(pod.vcpus)} of {sorted(threads)}"

    def _verify(self) -> Iterator[str]:
        """`vmpin verify`, without the two seconds that a new interpreter takes to start here; `play` ends with the
        real one."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = vmpin_command(self.vmpin.argv("verify")[1:])
        if code != 0 or "COLLISION" in said.getvalue():
            yield f"vmpin verify ends with {code}: {said.getvalue()}"
        else:
            self._pairs = self._pairs_now

    def _account(self, complaints: list[str], status: Any,
                 masks: Mapping[int, Mapping[int, tuple[str, CpuSet]]]) -> str:
        """All that there is to know about a failure."""
        lines = [f"VMPIN_MIXED_SEED={self.seed}: not within {SETTLED:.0f} s of a step:", *complaints, "", "the model:",
                 *map(str, self.pods.values()), "", "the masks:"]
        for pod in self.pods.values():
            if pod.vm is not None and pod.runs_vm:
                lines += [f"{pod.name} {tid} {name}{' (vCPU)' if tid in pod.vcpus else ''}: {cpus}"
                          for tid, (name, cpus) in masks[pod.vm.pid].items()]
        return "\n".join([*lines, "", "the history:", *self.history, "", "the status:", json.dumps(status)])


def _spooled() -> set[str]:
    return {path.name for path in (RUN / "spool").glob("*.hook")}
