"""Part: what plugins cost at rest and for a container's lifecycle, at a runtime of the benchmark's own.

All plugins run at the same time, each with its connection and the same hundred shared containers, so that what else
the machine does weighs on all of them. Their processes are idle ones; no container runtime takes part."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nri_node
import psutil
from bench_node import cpu_seconds, cpus, node
from measure import CannotMeasure, environment, progress
from vms import sandbox_id

from peers import plugins
from peers.figures import Measure
from peers.plugins import OWN, Site
from vmpin.config.timeouts import TIMEOUTS
from vmpin.wire import nri_messages, ttrpc
from vmpin.wire.nri_enums import CREATED, RUNNING, STOPPED, Verb
from vmpin.wire.nri_messages import MESSAGES

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "integration")]

from enclosure import Enclosure
from nri_peer import NriRuntime

_OTHERS = 100
#: Lifecycles of a block, of which the CPU time is one sample.
_BLOCK = 5
#: Between two calls (s): a runtime works that long on each.
_PAUSE = 0.02
#: Seconds after a container's end in which vmpin's watcher may still look again at its sandbox.
_TAIL = sum(TIMEOUTS.rechecks) + 1
_PATIENCE = 120.0


class Connected(NriRuntime):
    """A runtime's side of a plugin's connection, which sends the events that the plugin asked for, as runtimes did up
    to NRI 0.11, and counts the updates of other containers that it answers with or requests."""

    events = 0
    updates = 0

    def send(self, method: str, message: Any = None, service: str = nri_messages.PLUGIN_SERVICE) -> int:
        """In frames that plugins in Go can read."""
        self._stream += 2
        payload = b"" if message is None else message.SerializeToString()
        self.socket.sendall(ttrpc.frames(ttrpc.PLUGIN, ttrpc.encode(
            ttrpc.Call(self._stream, service, method, payload, int(_PATIENCE * 1e9)))))
        return self._stream

    def begin_with(self, pods: Sequence[Any], containers: Sequence[Any]) -> None:
        self.grant(self.request("RegisterPlugin"))
        self.events = self.configure()
        self.call("Synchronize", MESSAGES["SynchronizeRequest"](pods=pods, containers=containers))

    def event(self, verb: Verb, pod: Any, container: Any = None) -> ttrpc.Reply | None:
        if not self.events >> (verb - 1) & 1:
            return None
        fields = {"pod": pod} if container is None else {"pod": pod, "container": container}
        name = {Verb.CREATE: "CreateContainer", Verb.STOP: "StopContainer"}.get(verb)
        if name is None:
            reply = self.call("StateChange", MESSAGES["StateChangeEvent"](event=verb, **fields))
        else:
            reply = self.call(name, MESSAGES["EventRequest"](**fields))
            if not reply.code:
                self.updates += len(MESSAGES.decode(f"{name}Response", reply.payload).update)
        time.sleep(_PAUSE)
        return reply

    def _receive(self) -> None:
        super()._receive()
        for call in [call for call in self.asked if call.method == "UpdateContainers"]:
            self.asked.remove(call)
            # The request's only field is StopContainerResponse's.
            self.updates += len(MESSAGES.decode("StopContainerResponse", call.payload).update)
            self.grant(call)


def _containers(pids: Sequence[int]) -> tuple[list[Any], list[Any]]:
    ids = [(sandbox_id(2000 + number), pid) for number, pid in enumerate(pids)]
    return ([nri_node.pod(sandbox, pid) for sandbox, pid in ids],
            [nri_node.container(sandbox, sandbox[::-1], pid, "") for sandbox, pid in ids])


def live(runtime: Connected, number: int, pids: tuple[int, int], own: Mapping[str, str] | None) -> tuple[int, str]:
    """A pod with one container, from its creation to its removal.
    :param own: the pod's annotations where the container is to have a CPU of its own; other containers ask for none.
    :returns: the updates in the answer to the creation, and the CPUs that it gave."""
    sandbox = sandbox_id(10_000 + number)
    pod, made = nri_node.pod(sandbox, pids[0]), nri_node.container(sandbox, sandbox[::-1], 0, "")
    for key, value in (own or {}).items():
        pod.annotations[key] = value
    cpu = made.linux.resources.cpu
    cpu.shares.value, cpu.period.value = (2 if own is None else 1024), 100_000
    if own is not None:
        cpu.quota.value = 100_000
    runtime.event(Verb.RUN_POD, pod)
    made.state, before = CREATED, runtime.updates
    reply = runtime.event(Verb.CREATE, pod, made)
    if reply is not None and reply.code:
        raise CannotMeasure(f"a container is refused: {reply.message}")
    updates = runtime.updates - before
    if reply is not None:
        answer = MESSAGES.decode("CreateContainerResponse", reply.payload)
        made.linux.resources.cpu.cpus = answer.adjust.linux.resources.cpu.cpus
    runtime.event(Verb.POST_CREATE, pod, made)
    made.pid = pids[1]
    runtime.event(Verb.START, pod, made)
    made.state = RUNNING
    runtime.event(Verb.POST_START, pod, made)
    runtime.event(Verb.STOP, pod, made)
    made.state = STOPPED
    runtime.event(Verb.REMOVE, pod, made)
    runtime.event(Verb.STOP_POD, pod)
    runtime.event(Verb.REMOVE_POD, pod)
    return updates, str(made.linux.resources.cpu.cpus)


class Plugins:
    """All plugins at once."""

    def __init__(self, site: Site, pids: Sequence[int]) -> None:
        self._site, self._pids = site, pids
        self.runtimes: dict[str, Connected] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = 0

    @contextlib.contextmanager
    def connected(self, name: str) -> Iterator[float]:
        """:returns: seconds from the plugin's spawn until it asks to be registered."""
        path = self._site.top / f"{plugins.BINARIES.index(name) if name in plugins.BINARIES else name[-4:]}.sock"
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(nri_node.listening(path))
            begin = time.perf_counter()
            process = stack.enter_context(plugins.started(self._site, name, path))
            with self._blamed(name):
                runtime = Connected(listener.accept()[0])
                stack.callback(runtime.close)
                request = runtime.request("RegisterPlugin")
            spent = time.perf_counter() - begin
            runtime.asked.insert(0, request)
            self.runtimes[name], self.processes[name] = runtime, process
            yield spent

    def synchronize(self, name: str) -> None:
        with self._blamed(name):
            self.runtimes[name].begin_with(*_containers(self._pids[2:]))

    def live(self, name: str, own: bool) -> tuple[int, str]:
        self._numbers += 1
        with self._blamed(name):
            return live(self.runtimes[name], self._numbers, (self._pids[0], self._pids[1]),
                        OWN[name] if own else None)

    @contextlib.contextmanager
    def _blamed(self, name: str) -> Iterator[None]:
        """An error of a connection names the plugin, and the end of its log."""
        try:
            yield
        except (OSError, AssertionError) as err:
            raise CannotMeasure(f"{name}: {err}: {self._site.tail(name)}") from err

    def cpu(self) -> dict[str, float]:
        return {name: cpu_seconds(process.pid) for name, process in self.processes.items()}


def events(command: Path, binaries: Mapping[str, Path], rounds: int,
           seconds: float) -> tuple[list[Measure], list[str]]:
    """:param rounds: blocks of lifecycles, and starts. :param seconds: at rest."""
    missing = plugins.left_out(binaries, plugins.BINARIES)
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(node(command))
        top = Path(tempfile.mkdtemp(prefix="vmpin-peers-", dir="/tmp"))
        stack.callback(shutil.rmtree, top, ignore_errors=True)
        enclosure = stack.enter_context(Enclosure())
        site = Site(made, top, enclosure, binaries)
        all_plugins = Plugins(site, stack.enter_context(_processes(_OTHERS + 2)))
        names = plugins.names(binaries)
        starts: dict[str, list[float]] = {name: [] for name in names}
        progress(f"starting {', '.join(names)}")
        for number in range(-1, rounds):
            for name in names:
                with all_plugins.connected(name) as spent:
                    if number >= 0:
                        starts[name].append(spent * 1000)
        for name in names:
            stack.enter_context(all_plugins.connected(name))
            all_plugins.synchronize(name)
        measures = [Measure("start until it registers", "ms", starts)]
        rest = _at_rest(all_plugins, seconds)
        measures += [Measure(f"at rest, with {_OTHERS} containers", "% of a CPU",
                             {name: [100 * share] for name, share in rest.items()}), *_memory(all_plugins)]
        measures += _lifecycles(all_plugins, names, False, rounds)
        trials = {name: _trial(all_plugins, name) for name in names if name in OWN}
        missing += [f"{name} for containers with a CPU of their own: {why}" for name, why in trials.items() if why]
        measures += _lifecycles(all_plugins, [name for name, why in trials.items() if not why], True, rounds)
    return measures, missing


def _trial(all_plugins: Plugins, name: str) -> str:
    """Why a plugin gives no CPU of its own here; "" if it does."""
    try:
        cpu_list = all_plugins.live(name, True)[1]
    except CannotMeasure as err:
        return str(err)
    return "" if cpu_list == str(cpus()[1]) else f"it gave the CPUs {cpu_list or 'of all'}"


def _at_rest(all_plugins: Plugins, seconds: float) -> dict[str, float]:
    """Of one CPU."""
    progress(f"at rest for {seconds:g} s")
    time.sleep(min(seconds, 20))
    before, began = all_plugins.cpu(), time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - began
    return {name: (now - before[name]) / spent for name, now in all_plugins.cpu().items()}


def _memory(all_plugins: Plugins) -> list[Measure]:
    memory = {name: psutil.Process(process.pid).memory_full_info() for name, process in all_plugins.processes.items()}
    return [Measure(f"{kind} memory, with {_OTHERS} containers", "MiB",
                    {name: [getattr(used, field) / 2**20] for name, used in memory.items()}, timed=False)
            for kind, field in (("resident", "rss"), ("private", "uss"))]


def _lifecycles(all_plugins: Plugins, names: Sequence[str], own: bool, blocks: int) -> list[Measure]:
    """CPU time beyond that at rest just after, and updates of other containers. The first block's time does not count.

    vmpin's watcher receives the births of all processes of a machine: a busy one shows in its time."""
    kind = "a CPU of its own" if own else "no CPU of its own"
    progress(f"lifecycles of containers with {kind}")
    costs: dict[str, list[float]] = {name: [] for name in names}
    updates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, blocks):
        before, began = all_plugins.cpu(), time.monotonic()
        for _ in range(_BLOCK):
            for name in names:
                updates[name].append(all_plugins.live(name, own)[0])
        time.sleep(_TAIL)
        passed, now = time.monotonic() - began, all_plugins.cpu()
        time.sleep(_TAIL)
        rested, later = time.monotonic() - began - passed, all_plugins.cpu()
        if number >= 0:
            for name in names:
                rest = (later[name] - now[name]) * passed / rested
                costs[name].append(max(0.0, 1000 * (now[name] - before[name] - rest) / _BLOCK))
    return [Measure(f"CPU time of a container's lifecycle, {kind}", "ms", costs),
            Measure(f"updates of others in the answer to a creation, {kind}", f"of {_OTHERS}", updates, timed=False)]


@contextlib.contextmanager
def _processes(count: int) -> Iterator[list[int]]:
    """Processes that do nothing, for containers; they end with this one, however it ends."""
    with contextlib.ExitStack() as stack:
        processes = [subprocess.Popen(["/bin/cat"], env=environment(), stdin=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL) for _ in range(count)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield [process.pid for process in processes]
