"""`vmpin demo`: a real VM, the watcher and two containers, told as a story that checks itself.

What is claimed is read from /proc by the demo's own eyes (vmpin/demo/vm.py). Whatever happens, it leaves nothing
behind: no process, container, cgroup or file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from vmpin.cli.common import Verbs, output_flag, print_data, shown, verb
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.errors import VmpinError

if TYPE_CHECKING:
    from vmpin.demo.needs import Tools
    from vmpin.demo.vm import DemoMasks

_ABOUT = """\
Shows on this machine what vmpin does: a real QEMU as a sandbox's VM, the real watcher, and two containers made by a
real crun that calls the hook. Takes about 10 seconds, touches nothing but what it made itself, and takes all of it
away again. Exit code 1 when a thread ends up elsewhere than it should. Needs root, two CPUs and what --needs prints.
"""

#: Seconds for something to come true. It takes a resync, which is one second here, and a loaded machine more.
PATIENCE = 60.0


def add_parser(verbs: Verbs) -> None:
    parser = verb(verbs, "demo", "show what vmpin does, on a real VM made for it", about=_ABOUT)
    parser.add_argument("--needs", action="store_true", help="print the Debian packages that are missing, one a line")
    output_flag(parser, ("text", "json"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from vmpin.demo import needs

    if args.needs:
        for package in needs.missing():
            print(package)
        return 0
    found = needs.tools()
    as_json = args.output == "json"
    # The story is for people; with -o json it goes to standard error, and what it said comes as data at the end.
    with (contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), _ending_orderly(),
          _Stage(found) as stage):
        _play(stage)
    if as_json:
        print_data({"ok": True, "steps": stage.story}, "json")
    return 0


def _play(stage: _Stage) -> None:
    cpus = stage.tools.cpus
    pool, last = CpuSet((cpus.first,)), CpuSet((list(cpus)[-1],))
    vm, containers = stage.vm, stage.containers

    stage.step("a QEMU starts: the VM of a Kata pod, with 3 vCPUs and an iothread")
    vm.start()
    stage.say(f"process {vm.pid}, by KVM" if vm.kvm else f"process {vm.pid}, by TCG: {vm.why}")
    before = vm.masks()
    stage.say(f"/proc says: {before}")
    stage.say("no one confines it: its threads run on CPUs that belong to other pods")
    stage.vmpin("status", "-o", "wide")

    stage.step(f"the watcher starts; the node's shared pool is CPU {pool}")
    stage.start_watcher(pool)
    stage.expect("the pod has no container yet, so its VM is kept on the pool", EMPTY, pool)

    stage.step(f"crun makes two containers, the hook tells of them: web owns CPU {last}, logs shares CPU {pool}")
    containers.run("web", last)
    containers.run("logs", pool)
    stage.expect(f"one vCPU alone on CPU {last}, the others on CPU {pool}", last, pool)
    stage.vmpin("status", "-o", "wide")
    stage.explain(last)

    if len(cpus) > 2:
        more, now = CpuSet(list(cpus)[-2:]), "web gets a second CPU"
        owned = more
    else:
        more, now = pool, "web has to give its CPU back, and shares the pool"
        owned = EMPTY
    stage.step(f"{now}: crun update --cpuset-cpus {more} (no hook tells of that)")
    containers.update("web", more)
    stage.expect("the watcher has read it from the container's cgroup", owned, pool)
    stage.vmpin("status", "-o", "wide")

    stage.step("is every thread where it should be?")
    stage.vmpin("verify")
    stage.expect("and /proc agrees", owned, pool)

    stage.step("the containers end")
    containers.stop("web")
    containers.stop("logs")
    stage.expect("the VM is back on the pool", EMPTY, pool)

    stage.step("vmpin goes, and leaves no pins")
    stage.vmpin("unpin", "--every", shown_output=False)
    _await(lambda: _same(vm.masks(), before, cpus), lambda: f"not the masks from before: {vm.masks()}")
    stage.say(f"/proc says: {vm.masks()}, as before")
    stage.stop_watcher()
    print("\nEvery thread was where it should be, at every step.")


class _Stage:
    """The demo's own corner of the machine. Leaving it puts everything back."""

    STEPS = 7

    def __init__(self, tools: Tools) -> None:
        from vmpin.demo.containers import Containers
        from vmpin.demo.vm import DemoVm
        from vmpin.install.hook_options import HookOptions

        self.tools = tools
        self.sandbox = f"demo-{secrets.token_hex(4)}"
        self.directory = Path(tempfile.mkdtemp(prefix=f"vmpin-{self.sandbox}-"))
        #: What was told, step by step.
        self.story: list[dict[str, object]] = []
        self._said: list[str] = []
        self._watcher: subprocess.Popen[bytes] | None = None
        self._config = self.directory / "vmpin.yaml"
        self._log = self.directory / "watcher.log"
        try:
            self.vm = DemoVm(tools.qemu, self.sandbox, self.directory)
            self._configure(None)
            self.containers = Containers(tools.crun, tools.busybox, self.sandbox, self.directory, HookOptions(
                socket=self.directory / "run" / "hook.sock", spool=self.directory / "run" / "spool"))
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it will not take long
        if kind is not None and issubclass(kind, VmpinError) and self._log.exists():
            for line in self._log.read_text("utf-8", "replace").splitlines()[-20:]:
                print(f"watcher: {shown(line)}", file=sys.stderr)
        self.containers.close()
        self.vm.stop()
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
        self._sweep()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _sweep(self) -> None:
        """Whoever names the demo's own directory is of its making: a signal may come between a start and its note."""
        for process in Path("/proc").glob("[1-9]*"):
            with contextlib.suppress(OSError):
                if int(process.name) != os.getpid() and os.fsencode(self.directory) in (
                        process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)

    def _configure(self, pool: CpuSet | None) -> None:
        """A file of our own, so that neither /etc nor the machine's Kata pods are part of the story."""
        at = self.directory
        self._config.write_text(
            f"paths: {{run: {at}/run, kata_go: {at}/no-kata, kata_rs: {at}/no-kata}}\n"
            f"node: {{shared_pool: '{'' if pool is None else pool}'}}\n"
            f"watch: {{only: '{self.sandbox}', resync_seconds: 1, nri: 'off', kubelet: false}}\n")

    # The story

    def step(self, text: str) -> None:
        self._said = []
        self.story.append({"step": text, "said": self._said})
        print(f"\n{len(self.story)}/{self.STEPS} {text}")

    def say(self, text: str) -> None:
        self._said.append(text)
        print(f"    {shown(text)}")

    def expect(self, text: str, exclusive: CpuSet, pool: CpuSet) -> None:
        """Wait until /proc shows it: one vCPU alone on each exclusive CPU, the others on the rest of the sandbox's
        CPUs, as is every other thread.

        :raises VmpinError: when it does not come true.
        """
        _await(lambda: _as_wanted(self.vm.masks(), exclusive, pool),
               lambda: f"a thread is elsewhere than wanted: {self.vm.masks()}")
        self.say(text)
        self.say(f"/proc says: {self.vm.masks()}")

    def explain(self, cpu: CpuSet) -> None:
        done = subprocess.run(self._command("explain", self.sandbox), env=_environment(), capture_output=True,
                              text=True, timeout=30)
        lines = [line for line in done.stdout.splitlines() if f"belongs on {cpu}:" in line]
        if done.returncode or not lines:
            raise VmpinError(f"`vmpin explain` does not tell of CPU {cpu}: {done.stdout}{done.stderr}")
        print(f"    $ vmpin explain {self.sandbox}")
        self.say(lines[0])

    # Its parts

    def vmpin(self, *args: str, shown_output: bool = True) -> None:
        """A real command, as one would type it. :raises VmpinError: when it fails."""
        print(f"    $ vmpin {' '.join(args)}")
        sys.stdout.flush()
        done = subprocess.run(self._command(*args), env=_environment(), timeout=30,
                              stdout=sys.stdout if shown_output else subprocess.DEVNULL)
        if done.returncode:
            raise VmpinError(f"`vmpin {' '.join(args)}` ended with exit code {done.returncode}")

    def _command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "vmpin.cli.main", "--config", str(self._config), *args]

    def start_watcher(self, pool: CpuSet) -> None:
        self._configure(pool)
        with self._log.open("wb") as log:
            self._watcher = subprocess.Popen(self._command("watch"), env=_environment(), stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log, process_group=0)
        _await((self.directory / "run" / "vmpin.sock").exists, lambda: "the watcher does not start",
               alive=lambda: self._watcher is not None and self._watcher.poll() is None)

    def stop_watcher(self) -> None:
        assert self._watcher is not None
        self._watcher.terminate()
        try:
            code = self._watcher.wait(10)
        except subprocess.TimeoutExpired:
            raise VmpinError("the watcher does not end within 10 s of SIGTERM") from None
        if code:
            raise VmpinError(f"the watcher ended with exit code {code}")
        self._watcher = None


def _as_wanted(masks: DemoMasks, exclusive: CpuSet, pool: CpuSet) -> bool:
    alone = [cpus for cpus in masks.vcpus.values() if cpus <= exclusive]
    floating = [cpus for cpus in masks.vcpus.values() if not cpus <= exclusive]
    return (len(masks.vcpus) == 3 and all(len(cpus) == 1 for cpus in alone)
            and sorted(cpus.first for cpus in alone) == list(exclusive)
            and all(cpus == pool for cpus in floating)
            and bool(masks.others) and all(cpus == pool for cpus in masks.others.values()))


def _same(masks: DemoMasks, before: DemoMasks, cpus: CpuSet) -> bool:
    """On the CPUs that can be used: a mask may also name some that are offline."""
    main = next(iter(before.others.values()))
    return (all(mask & cpus == before.vcpus[number] & cpus for number, mask in masks.vcpus.items())
            and all(mask & cpus == before.others.get(tid, main) & cpus for tid, mask in masks.others.items()))


def _await(true: Callable[[], bool], otherwise: Callable[[], str], alive: Callable[[], bool] = lambda: True) -> None:
    """:raises VmpinError: when it is not true in time."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline or not alive():
            raise VmpinError(otherwise(), f"waited {PATIENCE:.0f} s; the watcher's last lines are above")
        time.sleep(0.05)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}


@contextlib.contextmanager
def _ending_orderly() -> Iterator[None]:
    """SIGTERM and a closed terminal unwind the stack like Ctrl-C does."""
    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    yield
