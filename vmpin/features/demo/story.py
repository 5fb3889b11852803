"""The story of `vmpin demo`, step by step; each claim is checked against /proc before it is printed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.terminal import printable
from vmpin.errors import VmpinError
from vmpin.features.demo import children
from vmpin.features.demo.containers import Containers
from vmpin.features.demo.needs import Tools
from vmpin.features.demo.vm import VCPUS, DemoMasks, DemoVm

#: Seconds to wait for a condition or a command. It takes a resync, one second here, and a loaded machine more.
PATIENCE = 120.0


class Stage:
    """The demo's own directory, sandbox and processes. Leaving it removes them."""

    STEPS = 7
    #: The class of its VM.
    VM: type[DemoVm] = DemoVm

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.sandbox = f"demo-{secrets.token_hex(4)}"
        self.directory = Path(tempfile.mkdtemp(prefix=f"vmpin-{self.sandbox}-"))
        #: The printed texts, by step.
        self.story: list[dict[str, object]] = []
        self._texts: list[str] = []
        self._watcher: subprocess.Popen[bytes] | None = None
        self._config = self.directory / "vmpin.yaml"
        self._log = self.directory / "watcher.log"
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}
        try:
            self.vm = self.VM(tools.qemu, self.sandbox, self.directory)
            self._configure(None)
            self.containers = self._containers(self.sandbox, self.directory)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _containers(self, sandbox: str, directory: Path, pod: str = "shop") -> Containers:
        return Containers(self.tools.crun, self.tools.busybox, sandbox, directory, self._hooks(directory), pod)

    def _hooks(self, directory: Path) -> Path:
        """Register the hook in a directory of these containers. :raises VmpinError: if that fails."""
        hooks, run = directory / "hooks.d", self.directory / "run"
        # The default deadline is short for the watcher of a loaded machine.
        if children.run(self._command("install", "hook", f"--hooks-dir={hooks}", f"--socket={run / 'hook.sock'}",
                                      f"--spool={run / 'spool'}", "--deadline=10000"), PATIENCE,
                        env=self._environment, stdout=subprocess.DEVNULL):
            raise VmpinError(f"the hook cannot be registered in {hooks}")
        return hooks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # removal is short
        if kind is not None and issubclass(kind, VmpinError) and self._log.exists():
            for line in self._log.read_text("utf-8", "replace").splitlines()[-20:]:
                print(f"watcher: {printable(line)}", file=sys.stderr)
        self._end_pods()
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
        self._sweep()
        self.containers.remove_cgroups()  # a crun that nothing waited for may have created them meanwhile
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end_pods(self) -> None:
        self.containers.close()
        self.vm.stop()

    def _sweep(self) -> None:
        """Kill processes that name the demo's directory, and wait until they are gone: a signal may arrive between a
        start and its record."""
        needle = os.fsencode(self.directory)
        for _ in range(500):
            killed = []
            for process in Path("/proc").glob("[1-9]*"):
                with contextlib.suppress(OSError):
                    if int(process.name) != os.getpid() and needle in (process / "cmdline").read_bytes():
                        os.kill(int(process.name), signal.SIGKILL)
                        killed.append(process)
            if not killed:
                return
            time.sleep(0.01)

    def _configure(self, pool: CpuSet | None) -> None:
        """A separate configuration, so that neither /etc nor the machine's Kata pods affect the demo."""
        at = self.directory
        self._config.write_text(
            f"paths: {{run: {at}/run, kata_go: {at}/no-kata, kata_rs: {at}/no-kata}}\n"
            f"node: {{shared_pool: '{'' if pool is None else pool}'}}\n"
            f"watch: {{only: '{self.sandbox}*', resync_seconds: 1, nri: 'off', kubelet: false}}\n")

    def step(self, text: str) -> None:
        self._texts = []
        self.story.append({"step": text, "said": self._texts})
        print(f"\n{len(self.story)}/{self.STEPS} {text}")

    def print(self, text: str) -> None:
        self._texts.append(text)
        print(f"    {printable(text)}")

    def expect(self, text: str, exclusive: CpuSet, pool: CpuSet) -> None:
        """Wait until /proc shows one vCPU on each exclusive CPU, and all other threads on the pool.
        :raises VmpinError: if it does not in time."""
        wait_until(lambda: as_wanted(self.vm.masks(), exclusive, pool),
                   lambda: f"a thread is elsewhere than wanted: {self.vm.masks()}")
        self.print(text)
        self.print(f"/proc shows: {self.vm.masks()}")

    def explain(self, cpu: CpuSet) -> None:
        """Print what `vmpin status --explain` has of a CPU. :raises VmpinError: if that is nothing."""
        with (self.directory / "explain.txt").open("w+", encoding="utf-8", errors="replace") as file:
            code = children.run(self._command("status", "--explain", self.sandbox), PATIENCE, env=self._environment,
                                stdout=file, stderr=file)
            file.seek(0)
            output = file.read()
        lines = [line for line in output.splitlines() if f"belongs on {cpu}:" in line]
        if code or not lines:
            raise VmpinError(f"`vmpin status POD --explain` does not mention CPU {cpu}: {output}")
        print(f"    $ vmpin status {self.sandbox} --explain")
        self.print(lines[0])

    def vmpin(self, *args: str, shown_output: bool = True) -> None:
        """Run a real command as typed. :raises VmpinError: if it fails."""
        print(f"    $ vmpin {' '.join(args)}")
        sys.stdout.flush()
        code = children.run(self._command(*args), PATIENCE, env=self._environment,
                            stdout=sys.stdout if shown_output else subprocess.DEVNULL)
        if code:
            raise VmpinError(f"`vmpin {' '.join(args)}` ended with exit code {code}")

    def _command(self, *args: str) -> list[str]:
        return [sys.executable, "-P", "-m", "vmpin.cli.main", "--config", str(self._config), *args]

    def start_watcher(self, pool: CpuSet) -> None:
        self._configure(pool)
        with self._log.open("wb") as log:
            self._watcher = subprocess.Popen(self._command("watch"), env=self._environment, stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log, process_group=0)
        wait_until((self.directory / "run" / "vmpin.sock").exists, lambda: "the watcher does not start",
                   alive=lambda: self._watcher is not None and not children.ended(self._watcher))

    @property
    def watcher_pid(self) -> int:
        assert self._watcher is not None
        return self._watcher.pid

    def stop_watcher(self) -> None:
        """End the watcher with SIGTERM. :raises VmpinError: if it does not end, or with an exit code."""
        assert self._watcher is not None
        if not children.ended(self._watcher):
            os.kill(self._watcher.pid, signal.SIGTERM)
        if not children.ended(self._watcher, PATIENCE):
            raise VmpinError(f"the watcher does not end within {PATIENCE:.0f} s of SIGTERM")
        code = self._watcher.wait()
        if code:
            raise VmpinError(f"the watcher ended with exit code {code}")
        self._watcher = None


def as_wanted(masks: DemoMasks, exclusive: CpuSet, pool: CpuSet) -> bool:
    alone = [cpus for cpus in masks.vcpus.values() if cpus <= exclusive]
    floating = [cpus for cpus in masks.vcpus.values() if not cpus <= exclusive]
    return (len(masks.vcpus) == VCPUS and bool(masks.others) and all(len(cpus) == 1 for cpus in alone)
            and sorted(cpus.first for cpus in alone) == list(exclusive)
            and all(cpus == pool for cpus in (*floating, *masks.others.values())))


def same(masks: DemoMasks, before: DemoMasks, cpus: CpuSet) -> bool:
    """True if the masks are the original ones on the usable CPUs: a mask may contain offline CPUs."""
    main = next(iter(before.others.values()))
    return (all(mask & cpus == before.vcpus[number] & cpus for number, mask in masks.vcpus.items())
            and all(mask & cpus == before.others.get(tid, main) & cpus for tid, mask in masks.others.items()))


def wait_until(holds: Callable[[], bool], otherwise: Callable[[], str],
               alive: Callable[[], bool] = lambda: True) -> None:
    """Wait until a condition is true. :raises VmpinError: if it is not in time."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline or not alive():
            raise VmpinError(otherwise(), f"waited {PATIENCE:.0f} s; the watcher's last lines are above")
        time.sleep(0.05)


def play(stage: Stage) -> None:
    """Run the whole story. :raises VmpinError: at the first claim that does not hold."""
    cpus = stage.tools.cpus
    pool, last = CpuSet((cpus.first,)), CpuSet((list(cpus)[-1],))
    vm, containers = stage.vm, stage.containers

    stage.step("a QEMU starts: the VM of a Kata pod, with 3 vCPUs and an iothread")
    vm.start()
    stage.print(f"process {vm.pid}, by KVM" if vm.kvm else f"process {vm.pid}, by TCG: {vm.why}")
    before = vm.masks()
    stage.print(f"/proc shows: {before}")
    stage.print("nothing confines it: its threads run on CPUs that belong to other pods")
    stage.vmpin("status", "-o", "wide")

    stage.step(f"the watcher starts; the node's shared pool is CPU {pool}")
    stage.start_watcher(pool)
    stage.expect("the pod has no container yet, so its VM is kept on the pool", EMPTY, pool)

    stage.step(f"crun creates two containers, the hook reports them: web owns CPU {last}, logs shares CPU {pool}")
    containers.run("web", last)
    containers.run("logs", pool)
    stage.expect(f"one vCPU alone on CPU {last}, the others on CPU {pool}", last, pool)
    stage.vmpin("status", "-o", "wide")
    stage.explain(last)

    if len(cpus) > 2:
        more, now = CpuSet(list(cpus)[-2:]), "web gets a second CPU"
        owned = more
    else:
        more, now = pool, "web has to return its CPU, and shares the pool"
        owned = EMPTY
    stage.step(f"{now}: crun update --cpuset-cpus {more} (no hook reports that)")
    containers.update("web", more)
    stage.expect("the watcher has read it from the container's cgroup", owned, pool)
    stage.vmpin("status", "-o", "wide")

    stage.step("is every thread on its CPUs?")
    stage.vmpin("verify")
    stage.expect("and /proc agrees", owned, pool)

    stage.step("the containers end")
    containers.stop("web")
    containers.stop("logs")
    stage.expect("the VM is back on the pool", EMPTY, pool)

    stage.step("vmpin leaves, and restores the masks")
    stage.vmpin("unpin", "--every", shown_output=False)
    wait_until(lambda: same(vm.masks(), before, cpus), lambda: f"not the original masks: {vm.masks()}")
    stage.print(f"/proc shows: {vm.masks()}, as before")
    stage.stop_watcher()
    print("\nEvery thread was where it should be, at every step.")
