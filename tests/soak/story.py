"""A story: a seed decides what happens next. After some steps everything bad ends, and all has to come right."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from soak.checks import Checks
from soak.trouble import TroubledWorld
from soak.world import Guest

#: VMs at a time, and how many of them are real QEMUs.
MOST, MOST_REAL = 10, 2
#: Steps between two rests.
STEPS = (8, 30)
#: What must have happened so often at least: else a story shows little.
LEAST = {"rests": 3, "steps": 10, "faults": 10, "kinds of faults": 8, "repairs": 1, "watchers seen at two rests": 1}


class Step(NamedTuple):
    name: str
    #: How often, in proportion to the others.
    weight: float
    #: Something goes wrong, as opposed to a node's daily work.
    fault: bool
    do: Callable[[Story], bool | None]


@dataclass
class Story:
    """One seed's. `log` gets a line for each step."""

    world: TroubledWorld
    rng: random.Random
    log: Callable[[str], None]
    steps: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rests: int = 0
    #: No room is left for the state file: what is done now and lost with a killed watcher nobody could know.
    full: bool = False
    checks: Checks = field(init=False)

    def __post_init__(self) -> None:
        self.checks = Checks(self.world)

    def lacking(self) -> list[str]:
        """What happened less often than LEAST."""
        counts = {"rests": self.rests, "steps": self.steps.total(), "faults": self.faults.total(),
                  "kinds of faults": len(self.faults), "repairs": self.checks.total("vmpin_drift_total"),
                  "watchers seen at two rests": self.checks.done["leaks"]}
        return [f"{name}: {counts[name]} of {least}" for name, least in LEAST.items() if counts[name] < least]

    def tell(self, until: float, longest: float) -> None:
        """Until then (time.monotonic()), and to the rest after it; where too little has happened by then, as on a slow
        machine, until `longest`."""
        weights = [step.weight for step in STEPS_THERE_ARE]
        while True:
            for _ in range(self.rng.randint(*STEPS)):
                (step,) = self.rng.choices(STEPS_THERE_ARE, weights)
                if step.do(self) is False:
                    continue  # there is nothing it could be done to
                (self.faults if step.fault else self.steps)[step.name] += 1
                self.log(step.name)
                self.world.runtime.check()
                time.sleep(self.rng.choice((0, 0, 0.005, 0.03, 0.2)))
            self.come_to_rest()
            if self.checks.found or time.monotonic() >= (longest if self.lacking() else until):
                return

    def come_to_rest(self) -> None:
        self.log("calm")
        self.world.calm()
        self.full = False
        self.rests += 1
        if not self.checks.rest():
            self.log("\n".join(["WRONG", *self.checks.found]))

    def end(self) -> None:
        """Give everything back; what then is left of vmpin are a few files, and after `unpin --all` none."""
        self.log("unpin")
        assert self.world.cli("unpin", "--every").returncode == 0
        for guest in self.world.guests.values():
            guest.told.held = True
        self.checks.given_back()
        self.world.end_watcher()
        self.checks.left()
        assert self.world.cli("unpin", "--all").returncode == 0
        self.checks.given_back()
        self.checks.gone()
        for line in self.checks.found:
            self.log(line)

    # What the steps need

    def guest(self) -> Guest | None:
        return self.world.pick()


def _begin(story: Story) -> bool | None:
    running = story.world.running()
    if len(running) >= MOST:
        return False
    real = sum(not hasattr(guest.machine, "_processes") for guest in running)
    story.world.begin(real=real < MOST_REAL and story.rng.random() < 0.15)
    return None


def _of_a_guest(do: Callable[[TroubledWorld, Guest], bool | None]) -> Callable[[Story], bool | None]:
    def step(story: Story) -> bool | None:
        guest = story.guest()
        if guest is None:
            return False
        return do(story.world, guest)
    return step


def _telling(commands: Iterable[str]) -> Callable[[Story], bool | None]:
    choice = list(commands)

    def step(story: Story) -> bool | None:
        guest = story.guest()
        if guest is None:
            return False
        return story.world.tell(guest, story.rng.choice(choice))
    return step


def _kill_watcher(story: Story) -> bool | None:
    if story.full or story.world.ended():
        return False
    story.world.kill_watcher()
    return None


def _end_watcher(story: Story) -> bool | None:
    if story.full or story.world.frozen or story.world.ended():
        return False
    story.world.end_watcher()
    return None


def _start_watcher(story: Story) -> bool | None:
    if story.world.watcher is not None:
        return False
    story.world.start_watcher()
    return None


def _freeze(story: Story) -> bool | None:
    if story.world.ended():
        return False
    story.world.freeze(not story.world.frozen)
    return None


def _reload(story: Story) -> bool | None:
    if story.world.ended():
        return False
    story.world.reload()
    return None


def _fill(story: Story) -> bool | None:
    if story.full or story.world.ended():
        return False
    story.world.fill()
    story.full = True
    return None


def _free(story: Story) -> bool | None:
    if not story.full:
        return False
    story.world.free_disk()
    story.full = False
    return None


def _hold(story: Story) -> bool | None:
    guest = story.guest()
    if guest is None or story.full or story.world.frozen or not guest.settled:
        return False
    return story.world.hold(guest)


def _runtime(story: Story) -> None:
    if story.world.runtime.up:
        story.world.runtime.kill()
    else:
        story.world.runtime.start()


def _plug(story: Story) -> bool | None:
    world = story.world
    if not world.rest:
        return False
    off = frozenset(world.rng.sample(sorted(world.rest), world.rng.randint(1, len(world.rest))))
    return world.plug(world.everything - off) or world.plug(world.everything)


STEPS_THERE_ARE = (
    Step("sandbox", 6, False, _begin),
    Step("container", 10, False, _of_a_guest(lambda world, guest: world.create(guest))),
    Step("update", 12, False, _of_a_guest(lambda world, guest: world.update(guest))),
    Step("container ends", 6, False, _of_a_guest(lambda world, guest: world.delete(guest))),
    Step("sandbox ends", 2, False, _of_a_guest(lambda world, guest: world.remove(guest))),
    Step("VM works", 10, False, _telling("wxfb")),
    Step("vCPU hotplug", 2, False, _telling("v")),
    Step("unpin or take back", 1, False, _hold),
    Step("reload", 1, False, _reload),
    Step("start watcher", 6, False, _start_watcher),
    Step("container ends unheard", 1, True, _of_a_guest(lambda world, guest: world.delete(guest, heard=False))),
    Step("VMM killed", 1.5, True, _of_a_guest(lambda world, guest: world.kill_vmm(guest))),
    Step("watcher killed", 1, True, _kill_watcher),
    Step("watcher ended", 0.5, True, _end_watcher),
    Step("watcher stopped or continued", 1, True, _freeze),
    Step("runtime killed or started", 2, True, _runtime),
    Step("agent killed or started", 3, True, lambda story: story.world.turn_agent() or False),
    Step("foreign writer", 6, True, _of_a_guest(lambda world, guest: world.write_masks(guest))),
    Step("VM writes its masks", 2, True, _telling("m")),
    Step("thread storm", 3, True, _telling("s")),
    Step("fork storm", 0.5, True, lambda story: story.world.storm()),
    Step("disk full", 0.7, True, _fill),
    Step("disk freed", 2, True, _free),
    Step("CPUs off or on", 1.5, True, _plug),
    Step("nonsense", 1.5, True, lambda story: story.world.talk_nonsense()),
)
