"""The isolation report end to end: threads that burn an exclusive CPU of a VM or of a container, under a real watcher.

The machine's other work runs on these CPUs, too: so foreign time has a lower bound here, and what the owner ran an
upper one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from need import lacking
from real_node import Node
from runtime_bundle import cgroups, remove_cgroup
from test_watch_proof import Busy
from waiting import wait

from vmpin.features.common.cpu_times import Schedstat

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


class Burner:
    """A process of one thread that never sleeps, on one CPU: foreign, or from its start in a container's cgroups.
    `ran` is its CPU time, in seconds; no process of another test, which may have the same CPU, has its `name`."""

    def __init__(self, cpu: str, directory: Path, cgroups: Sequence[Path] = ()) -> None:
        self.name = f"b{secrets.token_hex(6)}"
        program = shutil.copy("/bin/sh", directory / self.name)

        def place() -> None:
            for cgroup in cgroups:
                (cgroup / "cgroup.procs").write_text("0")  # itself
            os.sched_setaffinity(0, {int(cpu)})

        self._process = subprocess.Popen([program, "-c", "while :; do :; done"], stdin=subprocess.DEVNULL,
                                         preexec_fn=place)
        self.pid = self._process.pid
        os.setpriority(os.PRIO_PROCESS, self.pid, -10)  # other tests' processes have less of the CPU

    def __enter__(self) -> Burner:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def ran(self) -> float:
        return time.clock_gettime(~self.pid << 3 | 2)

    def run_for(self, seconds: float) -> None:
        end = self.ran + seconds
        wait(lambda: self.ran >= end, "it does not run")


@pytest.fixture
def sampled(node: Node, cpus: tuple[str, str]) -> Node:
    if not Schedstat().precise:
        lacking("needs a kernel with schedstat")
    node.configure(node={"shared_pool": cpus[0]}, proof={"sample_seconds": 0.1})
    return node


def pods(node: Node, *args: str, code: int = 0) -> Any:
    return node.data("isolation", "--all", *args, code=code)["pods"]


def of(node: Node, sandbox: str) -> Any:
    return next((pod for pod in pods(node) if pod["sandbox"] == sandbox), None)


def foreign(pod: Any) -> float:
    return float(sum(pod["parts"][name]["seconds"] for name in ("kernel", "others", "unidentified")))


def test_what_burns_an_exclusive_cpu_is_measured_named_and_advised_about(sampled: Node,
                                                                         cpus: tuple[str, str]) -> None:
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.container(vm.sandbox, "web", cpus[1])
        wait(lambda: of(sampled, vm.sandbox), "its CPUs are not read")
        alone, before = of(sampled, vm.sandbox), vm.ran
        with Burner(cpus[1], sampled.top) as burner:
            vm.run_for(0.1)
            burner.run_for(1.0)
            # All foreign programs of the last minute are listed: another test's process may have more of it.
            named = wait(lambda: next((each for each in of(sampled, vm.sandbox)["foreign_by_program"]
                                       if each["name"] == burner.name and each["seconds"] > 0.3), None),
                         lambda: str(of(sampled, vm.sandbox)))
            burnt, own = burner.ran, vm.ran - before
            found = of(sampled, vm.sandbox)
            assert named["seconds"] <= burnt
        assert (found["kind"], found["cpus"], found["ended"]) == ("vm", cpus[1], False)
        # All that the burner ran, but for what readings are imprecise by, was foreign; and what the VM ran was not.
        assert foreign(found) - foreign(alone) > burnt - 0.1
        cpu_time = found["cpu_seconds"] - alone["cpu_seconds"]
        assert foreign(found) - foreign(alone) < cpu_time - own + 0.1
        assert found["bounds"]["least"] <= found["parts"]["had"]["seconds"] <= found["bounds"]["most"] + 0.001
        assert sum(part["share"] for part in found["parts"].values()) == pytest.approx(1, abs=1e-5)
        assert found["worst"]["cpu"] == int(cpus[1])
        assert found["foreign_by_cpu"][0]["cpu"] == int(cpus[1])
        assert named["kind"] in ("host", "container")  # this test may run in a container itself
        text = sampled.cli("isolation", vm.sandbox, "--since", "1h").stdout
        assert text.startswith("tests/pod had ")
        assert "worst minute: " in text
        assert "what to do: " in text
        assert max(map(len, text.splitlines())) <= 80
        assert sampled.cli("isolation", "--all", "--slo", "99.99").returncode == 1
        assert sampled.cli("isolation", vm.sandbox, "--slo", "0.001").returncode == 0
        metrics = sampled.data("status")  # the watcher goes on
        assert metrics["watcher"]


def test_a_restart_is_a_gap_and_a_damaged_file_begins_anew(sampled: Node, cpus: tuple[str, str]) -> None:
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.container(vm.sandbox, "web", cpus[1])
        wait(lambda: of(sampled, vm.sandbox), "its CPUs are not read")
        vm.run_for(0.3)
        before = of(sampled, vm.sandbox)
        assert sampled.stop() == 0
        file = sampled.run / "isolation"
        assert file.stat().st_mode & 0o777 == 0o600
        time.sleep(1.5)
        sampled.start()
        wait(lambda: of(sampled, vm.sandbox), "its CPUs are not read")
        after = of(sampled, vm.sandbox)
        assert after["since"] == before["since"]
        assert after["parts"]["unseen"]["seconds"] - before["parts"]["unseen"]["seconds"] > 1.4
        assert after["share"]["least"] < after["share"]["had"]
        assert any("had no samples" in text for text in after["limits"])
        # Half of the time was not seen, so no objective between the bounds is kept or missed.
        between = 100 * (after["share"]["least"] + after["share"]["most"]) / 2
        assert sampled.cli("isolation", vm.sandbox, "--slo", f"{between:.2f}").returncode == 3
        # Killed at any moment, then damaged.
        sampled.stop(signal.SIGKILL)
        file.write_bytes(file.read_bytes()[:100] + b"abc" * 10_000)
        file.with_name("isolation-wal").unlink(missing_ok=True)
        sampled.start()
        wait(lambda: of(sampled, vm.sandbox), "its CPUs are not read")
        assert (sampled.run / "isolation.bad").exists()
        assert "isolation.bad, the books of isolation begin anew" in sampled.log()
        anew = of(sampled, vm.sandbox)
        assert anew["parts"]["unseen"]["seconds"] > 1.4  # the VM was there: not seen, and not clean


def test_containers_without_a_vm_are_read_by_their_cgroup(sampled: Node, cpus: tuple[str, str]) -> None:
    sampled.start()
    made = sampled.real("crun", sampled.id("pod"), "busy", cpus[1])
    made.run()
    found = wait(lambda: of(sampled, sampled.id("pod")), sampled.log)
    assert (found["kind"], found["cpus"]) == ("runc", cpus[1])
    with Burner(cpus[1], sampled.top) as burner:
        burner.run_for(0.5)
        burnt = burner.ran
    now = of(sampled, sampled.id("pod"))
    assert foreign(now) - foreign(found) > burnt - 0.1


def test_what_a_container_runs_in_cgroups_of_its_own_is_its_own(sampled: Node, cpus: tuple[str, str]) -> None:
    """As with systemd in a container: its first process is in a cgroup below the container's, and its work in another
    one."""
    sampled.start()
    made = sampled.real("crun", sampled.id("pod"), "busy", cpus[1])
    made.run()
    work = [each / "work" for each in cgroups(made.cgroup) if counts_cpu_time(each)]
    assert work, "no cgroup of it counts CPU time"
    for each in work:
        for directory in (each, each.parent / "init.scope"):
            directory.mkdir()
        (each.parent / "init.scope/cgroup.procs").write_text(str(made.pid))
    wait(lambda: of(sampled, sampled.id("pod")), sampled.log)
    with Burner(cpus[1], sampled.top, work) as burner:  # none of its time was foreign
        found, before = of(sampled, sampled.id("pod")), burner.ran
        burner.run_for(1.0)
        own, now = burner.ran - before, of(sampled, sampled.id("pod"))
    for each in work:
        (each.parent / "cgroup.procs").write_text(str(made.pid))
        for directory in (each, each.parent / "init.scope"):
            remove_cgroup(directory)
    # It had at most what the burner left of the time, the imprecision aside.
    assert foreign(now) - foreign(found) < now["cpu_seconds"] - found["cpu_seconds"] - own + 0.1
    assert burner.name not in {program["name"] for program in now["foreign_by_program"]}


def counts_cpu_time(cgroup: Path) -> bool:
    """Whether the kernel's count of it is the one that is read: version 1's where it is there."""
    return (cgroup / "cpuacct.usage").exists() or (
        not Path("/sys/fs/cgroup/cpuacct").exists() and (cgroup / "cpu.stat").exists())


@pytest.mark.parametrize(("args", "said"), [
    (["--all", "--since", "yesterday"], "--since yesterday: is not a duration"),
    (["--all", "--since", "2d"], "--since 2d: the books of isolation go back 24 hours"),
    (["--all", "--slo", "x"], "--slo x: is no percentage"), ([], "give a pod, or --all"),
    (["shop", "--all"], "give a pod, or --all"), (["shop"], "no pod with exclusive CPUs in that time 'shop'")])
def test_arguments_that_are_none_are_refused(node: Node, args: list[str], said: str) -> None:
    node.start()
    done = node.cli("isolation", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_without_a_watcher_the_past_is_unknown(node: Node) -> None:
    done = node.cli("isolation", "--all")
    assert done.returncode == 3
    assert "only a watcher records what runs on exclusive CPUs" in done.stderr
