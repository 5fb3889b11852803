"""What must hold whenever a story has come to rest, read from the kernel and not with vmpin's code where that can be.

A check gives what is wrong, in words; nothing when all is well.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real_node import talk
from waiting import wait

from soak import oracle, usage
from soak.containers import ContainerWorld
from soak.trouble import TroubledWorld
from soak.world import Kind
from vmpin.domain.model import SandboxId
from vmpin.reconcile import state_file

#: Seconds for everything to come right. A resync is a second at most; a loaded machine takes longer, and the lab's
#: emulated node much longer.
PATIENCE = 180.0
#: Seconds after which a sandbox with neither VM nor containers is forgotten (sources/disk.py), and some for a resync.
FORGOTTEN = 90.0
#: What a watcher logs of what is done to it in a story.
_EXPECTED = re.compile(r"(state|books of [a-z ]+) cannot be saved|cannot be noted|contention |refused|nri|spool|"
                       r"the sources disagree|NRI")
_BROKEN = re.compile(r"Traceback|sessions with guest failed|never awaited|was never retrieved")
#: Of a life of the watcher's: descriptors, threads and tasks more than are accounted for, and bytes.
_MORE, _MORE_BYTES = 6, 16 << 20
#: What there is of each sandbox's VM, and besides of each whose guest has an agent: its guest's task; the connection
#: to the agent in it, with one task that reads and one that writes.
_OF_EACH = {"descriptors": (0, 1), "threads": (0, 0), "tasks": (1, 2)}
#: What is in a run directory.
_FILES = {"hook.sock", "vmpin.sock", "metrics.sock", "isolation", "isolation-wal", "lock", "state.json",
          "originals.json", "spool", "status", "proof", "proof-wal"}


@dataclass
class Checks:
    """Of one world. `done` counts the checks by name, `found` what was wrong."""

    world: TroubledWorld
    done: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)
    life: usage.Life | None = None
    #: At the end of which rest's wait a pod was gone first, by time.monotonic().
    found_gone: dict[str, float] = field(default_factory=dict)
    #: The watcher's counters at its last rest, whose they are, and the sums of the watchers before it.
    counted: dict[str, float] = field(default_factory=dict)
    counted_of: int = 0
    before: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    #: Up to where its logs were read.
    read: int = 0
    #: When it was scraped last, by time.monotonic(), and the tasks there were.
    scraped: float = 0.0
    tasks: int = 0
    #: The CPU of each vCPU that had one to itself at the last rest, by thread id; None when it need not be kept, as in
    #: between more has happened than one plain step.
    pairs: dict[int, oracle.Cpus] | None = None

    def rest(self) -> bool:
        """Wait until all is in its place, then check everything. :returns: whether all is well."""
        before = len(self.found)
        self._wait()
        for name in self.world.removed:
            self.found_gone.setdefault(name, time.monotonic())
        for check in (self._places, self._pairs, self._guests, self._containers, self._status, self._verify,
                      self._plan, self._state_file, self._metrics, self._leaks, self._log, self._files):
            self.done[check.__name__[1:]] += 1
            self.found += [f"{check.__name__[1:]}: {wrong}" for wrong in check()]
        for guest in self.world.guests.values():
            guest.settled = True
            for container in guest.expected.containers.values():
                container.settled = True
        return len(self.found) == before

    def _wait(self) -> None:
        """Well, and well again a little later; what is not well by then the checks say."""
        deadline = time.monotonic() + PATIENCE
        calm = 0
        while calm < 2 and time.monotonic() < deadline:
            self.world.runtime.check()
            self.world.start_watcher()
            well = ((self.world.runtime.connected or not self.world.nri) and not any(self._places())
                    and not any(self._guests()) and not any(self._plan()) and not any(self._status()))
            calm = calm + 1 if well else 0
            time.sleep(0.3 if well else 0.05)

    # Where threads are

    def _places(self) -> Iterator[str]:
        world = self.world
        for guest in world.running():
            assert guest.machine is not None
            seen = guest.machine.threads()
            if len(seen.vcpus) != guest.machine.vcpus:
                yield f"{guest.id}: {len(seen.vcpus)} vCPU threads of {guest.machine.vcpus}"
            if guest.expected.held and guest.tainted:
                continue
            for wrong in oracle.wrong(guest.expected, seen.vcpus, seen.others, world.pool, world.everything):
                yield f"{guest.id} ({_text(guest.expected)}): {wrong}"

    def _pairs(self) -> Iterator[str]:
        """A vCPU keeps the CPU that it has to itself, as long as its sandbox owns that."""
        world, now = self.world, dict[int, oracle.Cpus]()
        for guest in world.running():
            if guest.machine is None or not oracle.one_to_one(guest.expected, guest.machine.vcpus, world.pool):
                continue
            own = oracle.exclusive(guest.expected, world.pool)
            seen = guest.machine.threads()
            times = Counter(seen.vcpus.values())  # without shared CPUs, spare vCPUs are on an exclusive one, too
            masks = {seen.tids[vcpu]: has for vcpu, has in seen.vcpus.items()}
            pairs = {tid: has for tid, has in masks.items() if has <= own and times[has] == 1}
            for tid in masks.keys() & set(self.pairs or {}):
                before = (self.pairs or {})[tid]
                if before <= own and masks[tid] != before:
                    yield f"{guest.id}: vCPU thread {tid} had CPU {sorted(before)} to itself and lost it without need"
            now |= pairs
        self.pairs = now

    def _containers(self) -> Iterator[str]:
        """Real containers are as their runtime made them."""
        if isinstance(self.world, ContainerWorld):
            yield from self.world.touched()

    def _verify(self) -> Iterator[str]:
        done = self.world.cli("verify")
        # 3: no thread could be compared, as when every VMM was killed.
        if done.returncode not in ((0,) if self.world.running() else (0, 3)) and not self._held():
            yield f"ends with {done.returncode}: {done.stdout}{done.stderr}"

    def _guests(self) -> Iterator[str]:
        """What the agents were sent: each container has the vCPUs that back its CPUs."""
        world = self.world
        for guest in world.running():
            if guest.inside is None or guest.machine is None or guest.expected.held:
                continue
            sent = guest.inside.sent_map()
            wanted = {world.id(container.name): container for container in guest.expected.live()}
            pause = {guest.id} if guest.kind is Kind.KATA else set()  # Kata's files have the pause container, too
            if sent is None or set(sent.containers) - pause != set(wanted):
                yield f"{guest.id}: its agent was sent {None if sent is None else sorted(sent.containers)}"
                continue
            vcpus = guest.machine.threads().vcpus
            short = len(vcpus) < len(oracle.exclusive(guest.expected, world.pool))
            for name, container in wanted.items():
                cpus = frozenset[int]().union(*(vcpus[number] for number in sent.containers[name].hw))
                if container.cpus and not container.cpus & world.pool and not short and cpus != container.cpus:
                    yield f"{guest.id}: {name} has vCPUs on {sorted(cpus)} and not on {sorted(container.cpus)}"
                if not cpus:
                    yield f"{guest.id}: {name} has no vCPU"

    def _fading(self) -> set[str]:
        """Pods that were removed and may be remembered still: one whose end no source reported, for a minute from when
        it was found, which may take until the runtime is connected again."""
        now = time.monotonic()
        return {name for name in self.world.removed if now - self.found_gone.get(name, now) < FORGOTTEN}

    def _held(self) -> set[str]:
        return {guest.id for guest in self.world.running() if guest.expected.held}

    def _ask(self, **request: object) -> Any:
        return json.loads(talk(self.world.run / "vmpin.sock", json.dumps(request).encode() + b"\n"))

    def _status(self) -> Iterator[str]:
        world = self.world
        document = self._ask(op="status")
        shown = {entry["id"]: entry for entry in document["sandboxes"]}
        vms = {guest.id for guest in world.running()}
        if vms - set(shown) or set(shown) - vms - self._fading():
            yield f"shows {sorted(shown)} of {sorted(vms)}"
        for name in set(shown) - vms:
            entry = shown[name]
            if entry["verdict"] != "off" or entry["threads"]:
                yield f"{name} has ended and is shown as {entry}"
        for guest in world.running():
            entry = shown.get(guest.id)
            if entry is None or guest.machine is None:
                continue
            if (entry["vmm"] or {}).get("pid") != guest.machine.pids[0]:
                yield f"{guest.id} has the VMM {entry['vmm']} and not {guest.machine.pids[0]}"
            wanted = oracle.verdict(guest.expected, guest.machine.vcpus, world.pool)
            if entry["verdict"] != wanted:
                yield f"{guest.id} is {entry['verdict']} and not {wanted}: {entry['reasons']}"
            live = {container["name"] for container in entry["containers"] if container["state"] != "stopped"}
            live.discard("")  # Kata's files have the pause container, too
            expected = {container.name for container in guest.expected.live()}
            if live != expected:
                yield f"{guest.id} has containers {sorted(live)} and not {sorted(expected)}"
            for thread in entry["threads"]:
                if not thread["ok"]:
                    yield f"{guest.id} thread {thread['tid']} is not ok: {thread}"
        for collision in document["node"]["collisions"]:
            if not set(collision["sandboxes"]) & self._held():  # an unpinned VM runs on all CPUs
                yield f"a collision: {collision}"
        owners = sorted((entry["sandbox"], entry["cpus"]) for entry in document["node"]["owners"]
                        if entry["sandbox"] in world.guests)
        expected_owners = sorted((guest.id, ranges(cpus)) for guest in world.guests.values()
                                 for cpus in oracle.owners(guest.expected, world.pool))
        if owners != expected_owners:
            yield f"has the owners {owners} and not {expected_owners}"

    def _plan(self) -> Iterator[str]:
        """A converged node gives the empty plan."""
        try:
            for operation in self._ask(op="plan")["operations"]:
                yield f"{operation['what']} of {operation['sandbox']} is still to be done"
        except (OSError, ValueError, KeyError) as err:
            yield f"the watcher cannot be asked: {err!r}"

    # What the watcher keeps

    def _state_file(self) -> Iterator[str]:
        world = self.world
        deadline = time.monotonic() + PATIENCE
        while True:  # it is written a fifth of a second after the last change
            wrong = list(self._state_file_now())
            if not wrong or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        yield from wrong
        waiting = sorted(path.name for path in (world.run / "spool").iterdir() if not path.name.startswith("."))
        if waiting:
            yield f"{len(waiting)} messages are still spooled: {waiting[:3]}"

    def _state_file_now(self) -> Iterator[str]:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        kept, trouble = state_file.load(self.world.run / "state.json", boot, set_aside=False)
        if trouble:
            yield trouble
        for guest in self.world.running():
            state = kept.state.sandboxes.get(SandboxId(guest.id))
            if state is None:
                yield f"{guest.id} is not in it"
            elif state.suspended != guest.expected.held:
                yield f"{guest.id} is held there: {state.suspended}"
            elif guest.id not in kept.originals and not guest.expected.held:
                yield f"{guest.id}: its original masks are not in it"
        for sandbox in kept.state.sandboxes:
            if sandbox not in self.world.guests and sandbox not in self._fading():
                yield f"{sandbox} is in it, and long gone"

    def _metrics(self) -> Iterator[str]:
        deadline = time.monotonic() + PATIENCE
        while True:  # a real VMM begins and ends threads at any time
            time.sleep(max(0.0, self.scraped + 1.05 - time.monotonic()))  # it answers anew once a second
            found = wait(self._scraped, "the watcher serves no metrics", PATIENCE)
            self.scraped = time.monotonic()
            wrong = list(self._metrics_now(found))
            if not wrong or time.monotonic() > deadline:
                break
        yield from wrong
        self.tasks = int(found["vmpin_tasks"])
        assert self.world.watcher is not None
        if self.world.watcher.pid != self.counted_of:
            for name, value in self.counted.items():
                self.before[name] += value
            self.counted_of = self.world.watcher.pid
        self.counted = {name: value for name, value in found.items() if re.search(r"_(total|count)\b", name)}

    def _metrics_now(self, found: defaultdict[str, float]) -> Iterator[str]:
        world = self.world
        counts = [(len(seen.vcpus) + len(seen.others), guest.expected.held) for guest in world.running()
                  if guest.machine is not None for seen in [guest.machine.threads()]]
        counted = sum(count for count, _ in counts)
        held = sum(count for count, is_held in counts if is_held)
        wanted = {"vmpin_threads": counted, "vmpin_threads{unasked}": held, "vmpin_threads{placed}": counted - held,
                  "vmpin_guest_containers{applied}": sum(
                      len(guest.expected.live()) + (guest.kind is Kind.KATA) for guest in world.running()
                      if guest.inside is not None and not guest.expected.held),
                  "vmpin_state_saved": 1}
        if world.nri:
            wanted["vmpin_source_up{nri}"] = 1
        if not self._held():
            wanted["vmpin_collisions"] = 0
        yield from (f"{name} is {found[name]:g} and not {value}" for name, value in wanted.items()
                    if found[name] != value)

    def _scraped(self) -> defaultdict[str, float] | None:
        """None while the watcher does not serve them yet: some time after it is ready."""
        try:
            return usage.scrape(self.world.run / "metrics.sock")
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    def total(self, name: str) -> int:
        """A counter of all watchers there were."""
        return int(self.before[name] + self.counted.get(name, 0))

    # What it uses

    def _leaks(self) -> Iterator[str]:
        assert self.world.watcher is not None
        pid = self.world.watcher.pid
        running = self.world.running()
        now = usage.life(pid, self.tasks, len(running), sum(guest.inside is not None for guest in running))
        if self.life is None or self.life.pid != pid:
            self.life = now
            self.done["leaks"] -= 1  # there is nothing yet to compare it with
            self.done["lives begun"] += 1
            return
        first = self.life
        for name, (of_vm, of_agent) in _OF_EACH.items():
            wanted = (getattr(first, name) + of_vm * (now.guests - first.guests)
                      + of_agent * (now.agents - first.agents))
            if getattr(now, name) > wanted + _MORE:
                yield f"{getattr(now, name)} {name} where {wanted} are enough: {now}, at first {first}"
        if now.memory - first.memory > _MORE_BYTES:
            yield f"{(now.memory - first.memory) >> 20} MB more than the {first.memory >> 20} at first"

    def _log(self) -> Iterator[str]:
        text = self.world.log()
        new, self.read = text[self.read:], len(text)
        for line in new.splitlines():
            if _BROKEN.search(line) or (" ERROR " in line and not _EXPECTED.search(line)):
                yield line

    def given_back(self) -> None:
        """After `vmpin unpin`."""
        self.done["given back"] += 1
        self.found += [f"given back: {wrong}" for wrong in self._places()]

    def left(self) -> None:
        """After the watcher's end."""
        self.done["left"] += 1
        sockets = [path.name for path in self.world.run.rglob("*") if path.is_socket()]
        self.found += [f"left: {name} in the run directory" for name in sockets]

    def gone(self) -> None:
        """After `vmpin unpin --all`. The directory itself is a mount."""
        self.done["gone"] += 1
        self.found += [f"gone: {path.name} in the run directory" for path in self.world.run.iterdir()]

    def _files(self) -> Iterator[str]:
        deadline = time.monotonic() + PATIENCE
        while more := {path.name for path in self.world.run.iterdir()} - _FILES:
            if time.monotonic() > deadline:
                yield f"{sorted(more)} in the run directory"
                break
            time.sleep(0.1)  # a file is being written, and then renamed


def _text(expected: oracle.Sandbox) -> str:
    return ", ".join(f"{container.name}={sorted(container.cpus or ())}{' ended' * container.ended}"
                     for container in expected.containers.values())


def ranges(cpus: oracle.Cpus) -> str:
    """As Linux writes a list of CPUs."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
