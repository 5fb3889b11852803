"""What must hold whenever a story has come to rest, looked at with other eyes than the watcher's where that can be.

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

from soak import oracle, usage
from soak.machines import threads
from soak.trouble import TroubledWorld
from vmpin.domain.model import SandboxId
from vmpin.reconcile import state_file

#: Seconds for everything to come right. A resync is half a second; a loaded machine takes longer.
PATIENCE = 120.0
#: Seconds after which a sandbox that is known to have neither VM nor containers is forgotten (source/disk.py), and
#: some for a resync.
FORGOTTEN = 65.0
#: What a watcher says of what is done to it in a story.
_EXPECTED = re.compile(r"state cannot be saved|cannot be noted|fight |refused|nri|spool|the sources disagree|NRI")
_BROKEN = re.compile(r"Traceback|sessions with guest failed|never awaited|was never retrieved")
#: Of a life of the watcher's: descriptors, threads and tasks more than are accounted for, and bytes.
_MORE, _MORE_BYTES = 6, 16 << 20
#: What there is of each sandbox that is looked after, and besides of each whose guest is spoken with: its guest's
#: task; the connection to the agent in it, with one task that hears and one that says.
_OF_EACH = {"descriptors": (0, 1), "threads": (0, 0), "tasks": (1, 2)}
#: What is in a run directory.
_FILES = {"hook.sock", "vmpin.sock", "metrics.sock", "lock", "state.json", "spool", "proof", "notes", "before"}


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

    def rest(self) -> bool:
        """Wait until all is in its place, then check everything. :returns: whether all is well."""
        known = len(self.found)
        self._wait()
        for name in self.world.removed:
            self.found_gone.setdefault(name, time.monotonic())
        for check in (self._places, self._guests, self._status, self._plan, self._state_file, self._metrics,
                      self._leaks, self._log, self._files):
            self.done[check.__name__[1:]] += 1
            self.found += [f"{check.__name__[1:]}: {wrong}" for wrong in check()]
        for guest in self.world.running():
            guest.settled = True
        return len(self.found) == known

    def _wait(self) -> None:
        """Well, and well again a little later; what is not well by then the checks say."""
        deadline = time.monotonic() + PATIENCE
        calm = 0
        while calm < 2 and time.monotonic() < deadline:
            self.world.runtime.check()
            self.world.start_watcher()
            well = (self.world.runtime.connected and not any(self._places()) and not any(self._guests())
                    and not any(self._plan()))
            calm = calm + 1 if well else 0
            time.sleep(0.3 if well else 0.05)

    # Where threads are

    def _places(self) -> Iterator[str]:
        world = self.world
        for guest in world.running():
            assert guest.machine is not None
            seen = threads(guest.machine)
            if len(seen.vcpus) != guest.machine.vcpus:
                yield f"{guest.id}: {len(seen.vcpus)} vCPU threads of {guest.machine.vcpus}"
            if guest.told.held and guest.tainted:
                continue
            for wrong in oracle.wrong(guest.told, seen.vcpus, seen.others, world.pool, world.everything):
                yield f"{guest.id} ({_told(guest.told)}): {wrong}"

    def _guests(self) -> Iterator[str]:
        """What was told inside: each container has the vCPUs that back its CPUs."""
        world = self.world
        for guest in world.running():
            if guest.inside is None or guest.machine is None or guest.told.held:
                continue
            told = guest.inside.told()
            wanted = {world.id(name): container for name, container in guest.told.containers.items()}
            if told is None or set(told.containers) != set(wanted):
                yield f"{guest.id}: its agent was told of {None if told is None else sorted(told.containers)}"
                continue
            vcpus = threads(guest.machine).vcpus
            short = len(vcpus) < len(oracle.exclusive(guest.told, world.pool))
            for name, container in wanted.items():
                cpus = frozenset[int]().union(*(vcpus[number] for number in told.containers[name].hw))
                if container.cpus and not container.cpus & world.pool and not short and cpus != container.cpus:
                    yield f"{guest.id}: {name} has vCPUs on {sorted(cpus)} and not on {sorted(container.cpus)}"
                if not cpus:
                    yield f"{guest.id}: {name} has no vCPU"

    def _fading(self) -> set[str]:
        """Pods that were removed and may be known still: one whose end was told by nobody who was heard is remembered
        for a minute from when it was found, which may take until the runtime is heard again."""
        return {name for name in self.world.removed if time.monotonic() - self.found_gone[name] < FORGOTTEN}

    def _held(self) -> set[str]:
        return {guest.id for guest in self.world.running() if guest.told.held}

    def _ask(self, **request: object) -> Any:
        return json.loads(talk(self.world.run / "vmpin.sock", json.dumps(request).encode() + b"\n"))

    def _status(self) -> Iterator[str]:
        world = self.world
        document = self._ask(op="status")
        shown = {entry["id"]: entry for entry in document["sandboxes"]}
        if set(world.guests) - set(shown) or set(shown) - set(world.guests) - self._fading():
            yield f"shows {sorted(shown)} of {sorted(world.guests)}"
        for name in set(shown) - set(world.guests):
            entry = shown[name]
            if entry["verdict"] != "off" or entry["threads"]:
                yield f"{name} has ended and is shown as {entry}"
        for guest in world.running():
            entry = shown.get(guest.id)
            if entry is None or guest.machine is None:
                continue
            wanted = oracle.verdict(guest.told, guest.machine.vcpus, world.pool)
            if entry["verdict"] != wanted:
                yield f"{guest.id} is {entry['verdict']} and not {wanted}: {entry['reasons']}"
            live = {container["name"] for container in entry["containers"] if container["state"] != "stopped"}
            if live != set(guest.told.containers):
                yield f"{guest.id} has containers {sorted(live)} and not {sorted(guest.told.containers)}"
            for thread in entry["threads"]:
                if not thread["ok"]:
                    yield f"{guest.id} thread {thread['tid']} is not ok: {thread}"
        for collision in document["node"]["collisions"]:
            if not set(collision["sandboxes"]) & self._held():  # who is unpinned runs on everybody's CPUs
                yield f"a collision: {collision}"

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
            elif state.suspended != guest.told.held:
                yield f"{guest.id} is held there: {state.suspended}"
            elif guest.id not in kept.originals and not guest.told.held:
                yield f"{guest.id}: its masks from before are not in it"
        for sandbox in kept.state.sandboxes:
            if sandbox not in self.world.guests and sandbox not in self._fading():
                yield f"{sandbox} is in it, and long gone"

    def _metrics(self) -> Iterator[str]:
        time.sleep(max(0.0, self.scraped + 1.05 - time.monotonic()))  # within a second the same is told again
        found = usage.scrape(self.world.run / "metrics.sock")
        self.scraped = time.monotonic()
        self.tasks = int(found["vmpin_tasks"])
        world = self.world
        counted = sum(len(seen.vcpus) + len(seen.others) for guest in world.running() if guest.machine is not None
                      for seen in [threads(guest.machine)])
        held = sum(len(seen.vcpus) + len(seen.others) for guest in world.running()
                   if guest.machine is not None and guest.told.held for seen in [threads(guest.machine)])
        wanted = {"vmpin_threads": counted, "vmpin_threads{unasked}": held, "vmpin_threads{placed}": counted - held,
                  "vmpin_guest_containers{applied}": sum(
                      len(guest.told.containers) for guest in world.running()
                      if guest.inside is not None and not guest.told.held),
                  "vmpin_state_saved": 1, "vmpin_source_up{nri}": 1}
        if not self._held():
            wanted["vmpin_collisions"] = 0
        yield from (f"{name} is {found[name]:g} and not {value}" for name, value in wanted.items()
                    if found[name] != value)
        assert world.watcher is not None
        if world.watcher.pid != self.counted_of:
            for name, value in self.counted.items():
                self.before[name] += value
            self.counted_of = world.watcher.pid
        self.counted = {name: value for name, value in found.items() if re.search(r"_(total|count)\b", name)}

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
        for name, (looked_after, spoken_with) in _OF_EACH.items():
            wanted = (getattr(first, name) + looked_after * (now.guests - first.guests)
                      + spoken_with * (now.spoken_with - first.spoken_with))
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
        sockets = [path.name for path in self.world.run.iterdir() if path.is_socket()]
        self.found += [f"left: {name} in the run directory" for name in sockets]

    def gone(self) -> None:
        """After `vmpin unpin --all`. The directory itself is a mount."""
        self.done["gone"] += 1
        self.found += [f"gone: {path.name} in the run directory" for path in self.world.run.iterdir()]

    def _files(self) -> Iterator[str]:
        here = {path.name for path in self.world.run.iterdir()}
        if here - _FILES:
            yield f"{sorted(here - _FILES)} in the run directory"


def _told(told: oracle.Sandbox) -> str:
    return ", ".join(f"{container.name}={sorted(container.cpus or ())}" for container in told.containers.values())
