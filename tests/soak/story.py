"""A story: a seed decides what happens next. After some steps everything bad ends, and all has to come right."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from soak.checks import Checks
from soak.containers import ContainerWorld
from soak.machines import RealQemu
from soak.trouble import TroubledWorld
from soak.world import Guest

if TYPE_CHECKING:  # it needs more of the machine than other worlds do
    from soak.cluster_world import ClusterWorld

#: VMs at a time, and how many of them are real QEMUs.
MOST, MOST_REAL = 10, 2
#: What must have happened so often at least: else a story shows little.
LEAST = {"rests": 3, "steps": 10, "faults": 10, "kinds of faults": 8, "repairs": 1, "watchers seen at two rests": 1}


#: How often a step is tried that cannot be taken, as the pod that it is to be done to is picked at random.
TRIES = 5
#: In which order kinds of steps come in a short story, at random within each: what most others need, all others (),
#: what takes that away, and what it may end before, as a watcher begins anew after other steps, too.
ORDER = (("sandbox",), ("container", "runc pod"), ("update", "vCPU hotplug"), (),
         ("container's process ends", "container ends", "VMM killed", "sandbox ends"),
         ("watcher ended", "start watcher", "reload"))


def _rank(name: str) -> int:
    return next((rank for rank, names in enumerate(ORDER) if name in names), ORDER.index(()))


class Step(NamedTuple):
    name: str
    #: How often, in proportion to the others.
    weight: float
    #: Something goes wrong, as opposed to a node's daily work.
    fault: bool
    #: :returns: False when it cannot be taken now.
    do: Callable[[Story], bool | None]
    #: By itself it moves no vCPU whose CPU its sandbox keeps.
    plain: bool = False


@dataclass
class Story:
    """One seed's. `log` gets a line for each step; `between` is how many steps there are between two rests."""

    world: TroubledWorld
    rng: random.Random
    log: Callable[[str], None]
    between: tuple[int, int] = (8, 30)
    steps: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rests: int = 0
    #: No room is left for the state file: what is done now and lost with a killed watcher stands nowhere.
    full: bool = False
    checks: Checks = field(init=False)
    _deck: list[Step] = field(default_factory=list)
    _dealt: bool = False

    def __post_init__(self) -> None:
        self.checks = Checks(self.world)
        self._possible = [*STEPS, *(CONTAINER_STEPS if isinstance(self.world, ContainerWorld) else NRI_STEPS),
                          *(CLUSTER_STEPS if self.world.cluster else ())]

    def lacking(self) -> list[str]:
        """What happened less often than LEAST."""
        counts = {"rests": self.rests, "steps": self.steps.total(), "faults": self.faults.total(),
                  "kinds of faults": len(self.faults), "repairs": self.checks.total("vmpin_drift_total"),
                  "watchers seen at two rests": self.checks.done["leaks"]}
        return [f"{name}: {counts[name]} of {least}" for name, least in LEAST.items() if counts[name] < least]

    def never(self) -> list[str]:
        """The kinds of steps that did not come."""
        return [step.name for step in self._possible if not self.steps[step.name] + self.faults[step.name]]

    def play(self, until: float, longest: float) -> None:
        """Until then (time.monotonic()), and to the rest after it; where too little has happened by then, as on a slow
        machine, until `longest`. After each rest one plain step is taken by itself: pairs must outlast it."""
        weights = [step.weight for step in self._possible]
        while True:
            series = [step for _ in range(self.rng.randint(*self.between))
                      for step in self.rng.choices(self._possible, weights) if self._take(step)]
            self._rest_after(series)
            step = self.rng.choice([step for step in self._possible if step.plain])
            if not self.checks.found and self._take(step):
                self._rest_after([step])
            if self.checks.found or time.monotonic() >= (longest if self.lacking() else until):
                return

    def play_steps(self, steps: int) -> None:
        """So many. Each kind comes once before they are dealt by weight, so that none is left out of a short story."""
        taken = 0
        while taken < steps and not self.checks.found:
            series = [self._deal() for _ in range(min(self.rng.randint(*self.between), steps - taken))]
            taken += len(series)
            self._rest_after(series)

    def _rest_after(self, series: Sequence[Step]) -> None:
        if len(series) != 1 or not series[0].plain:
            self.checks.pairs = None
        self.come_to_rest()

    def _deal(self) -> Step:
        """Take the first step of the deck that can be taken now; those before it wait."""
        while True:
            for step in self._deck:
                if any(self._take(step) for _ in range(TRIES)):
                    self._deck.remove(step)
                    return step
            more = [step for step in self._possible for _ in range(max(1, round(step.weight)) if self._dealt else 1)]
            self.rng.shuffle(more)
            if not self._dealt:
                more.sort(key=lambda step: _rank(step.name))
            self._dealt = True
            self._deck += more

    def _take(self, step: Step) -> bool:
        if step.do(self) is False:
            return False
        (self.faults if step.fault else self.steps)[step.name] += 1
        self.log(step.name)
        self.world.runtime.check()
        time.sleep(self.rng.choice((0, 0, 0.005, 0.03, 0.2)))
        return True

    def change(self) -> None:
        """One step of a node's daily work, at random."""
        plain = [step for step in self._possible if step.plain]
        while self.rng.choice(plain).do(self) is False:
            pass

    def come_to_rest(self) -> None:
        self.log("calm")
        self.world.calm()
        self.full = False
        self.rests += 1
        if not self.checks.rest():
            self.log("\n".join(["WRONG", *self.checks.found]))

    def end(self) -> None:
        """Give everything back; what then is left of vmpin are a few files, and after `unpin --all` none."""
        if self.world.cluster:
            self.log("API server and reporter")
            self.checks.found += [f"unreported: {wrong}" for wrong in cast("ClusterWorld", self.world).unreported()]
        self.log("unpin")
        assert self.world.cli("unpin", "--every").returncode == 0
        for guest in self.world.guests.values():
            guest.expected.held = True
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
        return self.world.pick(vm=True)


def _begin(story: Story) -> bool | None:
    running = story.world.running()
    if len(running) >= MOST:
        return False
    real = sum(isinstance(guest.machine, RealQemu) for guest in running)
    story.world.begin(real=real < MOST_REAL and story.rng.random() < 0.15)
    return None


def _of_a_guest(do: Callable[[TroubledWorld, Guest], bool | None]) -> Callable[[Story], bool | None]:
    def step(story: Story) -> bool | None:
        guest = story.guest()
        if guest is None:
            return False
        return do(story.world, guest)
    return step


def _of_a_pod(do: Callable[[TroubledWorld, Guest], bool | None]) -> Callable[[Story], bool | None]:
    """Of a VM's or a runc pod."""
    def step(story: Story) -> bool | None:
        pod = story.world.pick()
        if pod is None:
            return False
        return do(story.world, pod)
    return step


def _of_containers(do: Callable[[ContainerWorld, Story], bool | None]) -> Callable[[Story], bool | None]:
    def step(story: Story) -> bool | None:
        assert isinstance(story.world, ContainerWorld)
        return do(story.world, story)
    return step


def _commanding(commands: Iterable[str]) -> Callable[[Story], bool | None]:
    choice = list(commands)

    def step(story: Story) -> bool | None:
        guest = story.guest()
        if guest is None:
            return False
        return story.world.work(guest, story.rng.choice(choice))
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


def _end_process(world: ContainerWorld, story: Story) -> bool | None:
    pod = world.pick()
    return False if pod is None else world.end_process(pod)


def _of_a_cluster(do: Callable[[ClusterWorld], None]) -> Callable[[Story], bool | None]:
    def step(story: Story) -> None:
        do(cast("ClusterWorld", story.world))
    return step


def _killed_amid(world: ContainerWorld, story: Story) -> bool | None:
    return False if story.full else world.amid(story.change)


#: In any world.
STEPS = (
    Step("sandbox", 6, False, _begin, plain=True),
    Step("container", 10, False, _of_a_pod(lambda world, pod: world.create(pod)), plain=True),
    Step("update", 12, False, _of_a_pod(lambda world, pod: world.update(pod)), plain=True),
    Step("container ends", 6, False, _of_a_pod(lambda world, pod: world.delete(pod)), plain=True),
    Step("sandbox ends", 2, False, _of_a_pod(lambda world, pod: world.remove(pod)), plain=True),
    Step("CPUs handed over", 3, False, lambda story: story.world.hand_over()),
    Step("VM works", 10, False, _commanding("wxfb")),
    Step("vCPU hotplug", 2, False, _commanding("v")),
    Step("unpin or take back", 1, False, _hold),
    Step("reload", 1, False, _reload),
    Step("start watcher", 6, False, _start_watcher),
    Step("VMM killed", 1.5, True, _of_a_guest(lambda world, guest: world.kill_vmm(guest))),
    Step("watcher killed", 1, True, _kill_watcher),
    Step("watcher ended", 0.5, True, _end_watcher),
    Step("watcher stopped or continued", 1, True, _freeze),
    Step("agent killed or started", 3, True, lambda story: story.world.turn_agent() or False),
    Step("foreign writer", 6, True, _of_a_guest(lambda world, guest: world.write_masks(guest))),
    Step("VM writes its masks", 2, True, _commanding("m")),
    Step("thread storm", 3, True, _commanding("s")),
    Step("fork storm", 0.5, True, lambda story: story.world.storm()),
    Step("disk full", 0.7, True, _fill),
    Step("disk freed", 2, True, _free),
    Step("CPUs off or on", 1.5, True, _plug),
    Step("nonsense", 1.5, True, lambda story: story.world.talk_nonsense()),
)
#: Where the runtime reports over NRI.
NRI_STEPS = (
    Step("container ends without its hook", 1, True, _of_a_pod(lambda world, pod: world.delete(pod, with_hook=False))),
    Step("runtime killed or started", 2, True, _runtime),
)
#: Where containers are real.
CONTAINER_STEPS = (
    Step("runc pod", 3, False, _of_containers(lambda world, _: world.begin_runc()), plain=True),
    Step("container's process ends", 2, False, _of_containers(_end_process), plain=True),
    Step("watcher killed amid a change", 1, True, _of_containers(_killed_amid)),
)
#: Where there is an API server. They often change, so that each is there at about half of the rests.
CLUSTER_STEPS = (
    Step("API server killed or started", 6, True, _of_a_cluster(lambda world: world.turn_server())),
    Step("reporter killed or started", 6, True, _of_a_cluster(lambda world: world.turn_reporter())),
)
