"""An operator's work in the node of `installation`, as a program of its own: /lab/operate.py, standard library only.

With the .deb or with the wheel (`operate.py Deb` or `Wheel`): install, start the service, register the hook, a VM and
a container, upgrade, downgrade, upgrade, uninstall, remove. It ends with an AssertionError when a step fails, when a
mask changes that none should have changed, or when anything is left that was not there before."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from kata_files import KataFiles

LAB = Path("/lab")
HOOKS = Path("/usr/share/containers/oci/hooks.d")
CONFIG = Path("/etc/vmpin/vmpin.yaml")
#: Seconds until a state is there: every instruction is emulated.
PATIENCE = 300.0
#: As the example of a newer version has a section that the older one lacks.
NEWER_SECTION = "\nlater:\n  # What it is for.\n  #key: 1\n"
#: What is compared before and after. Left out: what other programs write at any time, each with its writer.
TREES = ("/etc", "/run", "/usr", "/opt", "/var/lib", "/root", "/home", "/srv", "/lib/systemd")
VOLATILE = (
    "/run/systemd/journal", "/run/log", "/var/lib/systemd",  # journald, timers, random seed
    # systemd: of every unit that is loaded or logs, and written at each daemon-reload
    "/run/systemd/units", "/run/systemd/systemd-units-load", "/run/credentials",
    "/var/lib/apt", "/var/lib/dpkg",  # apt and dpkg; `packages` has what is installed
    "/var/lib/containers", "/run/containers", "/run/crun", "/run/libpod", "/run/lock",  # podman
    "/etc/ld.so.cache", "/var/lib/pam",
)


Result = TypeVar("Result")


def main(way: Deb | Wheel) -> None:
    older, newer = (sorted(LAB.glob(f"{name}/*.whl"))[0] for name in ("older", "newer"))
    with Vm() as vm:
        vm.container()
        before = step("snapshot", snapshot, vm)
        operate(way, vm, older.parent, newer.parent)
        after = step("snapshot", snapshot, vm)
    different = sorted(set(before.items()) ^ set(after.items()))
    assert not different, "left over, or gone:\n" + "\n".join(map(str, different))


def operate(way: Deb | Wheel, vm: Vm, older: Path, newer: Path) -> None:
    originals, interrupts = vm.masks(), of_interrupts()
    step("install", way.install, older)
    assert active() == "inactive", "a package starts nothing"
    CONFIG.parent.mkdir()
    CONFIG.write_text(command("config", "--example").replace(
        '  #shared_pool: ""', '  shared_pool: "0-1"').replace("  #policy: off", "  policy: away"))
    step("start", way.start)
    vm.kata.write(vm, {"main": "2-3", "side": "0-1"})
    wait(vm.placed, lambda: f"vCPUs on 2 and 3: {vm.masks()}")
    wait(lambda: of_interrupts()["default_smp_affinity"] == "f3\n", lambda: f"interrupts away: {of_interrupts()}")
    step("hook", command, "install", "hook", "--hooks-dir", str(HOOKS))
    step("container", vm.container)
    check(older)
    step("scheduling class", set_class, vm)
    placed = vm.masks()
    with CONFIG.open("a") as file:
        file.write(NEWER_SECTION)
    for name, build in ("upgrade", newer), ("downgrade", older), ("upgrade again", newer):
        with vm.unchanged(placed):
            before = main_pid()
            step(name, way.install, build)
            way.restart()
            assert main_pid() not in (before, "MainPID=0"), name
            # While it is away the hook writes into the spool.
            systemctl("stop", "vmpin")
            vm.container()
            assert list(Path("/run/vmpin/spool").glob("*.hook")), "no hook wrote into the spool"
            systemctl("start", "vmpin")
            wait(lambda: not list(Path("/run/vmpin/spool").glob("*.hook")), "the spool is read")
            command("install", "hook", "--hooks-dir", str(HOOKS))
            check(build, warned=True)
    planned = command("uninstall", "--dry-run")
    assert vm.masks() == placed, "a dry run changes nothing"
    assert "\nmove default_smp_affinity to CPUs 0-7, was 0-1,4-7\n" in planned, planned
    done = command("uninstall")
    lines = [line.removeprefix("would ") for line in planned.splitlines() if line.startswith("would ")]
    assert lines == done.splitlines()[:len(lines)], f"{planned}\n----\n{done}"
    assert (vm.masks(), of_interrupts()) == (originals, interrupts)
    again = command("uninstall")
    assert "nothing to restore" in again, again
    shutil.rmtree("/run/vc")
    step("remove", way.remove)
    subprocess.run(["rm", "-r", CONFIG.parent], check=True)


class Deb:
    """The package of Debian."""

    def install(self, build: Path) -> None:
        (package,) = build.glob("*.deb")
        run("apt-get", "install", "--yes", "--allow-downgrades", str(package))

    def start(self) -> None:
        systemctl("enable", "--now", "vmpin")

    def restart(self) -> None:
        """The package does it."""

    def remove(self) -> None:
        run("apt-get", "purge", "--yes", "vmpin")


class Wheel:
    """The wheel in a virtual environment, with the packages of the lock file."""

    def install(self, build: Path) -> None:
        (wheel,), (lock,) = build.glob("*.whl"), build.glob("*-requirements.txt")
        pip = ["/opt/vmpin/bin/pip", "--disable-pip-version-check", "--no-cache-dir", "install", "--no-index",
               "--find-links", str(LAB / "wheels")]
        if not Path(pip[0]).exists():
            run("python3", "-m", "venv", "/opt/vmpin")
            run("ln", "-s", "/opt/vmpin/bin/vmpin", "/usr/local/bin/vmpin")
            run(*pip, "--require-hashes", "-r", str(lock))
        run(*pip, "--no-deps", "--upgrade", str(wheel))

    def start(self) -> None:
        command("install", "service", "--now")

    def restart(self) -> None:
        systemctl("restart", "vmpin")

    def remove(self) -> None:
        run("rm", "-r", "/opt/vmpin", "/usr/local/bin/vmpin")


class Vm:
    """A VM of a Kata sandbox under KVM, with the files of Kata's runtime; and a container of podman beside it."""

    sandbox = "0123456789abcdef" * 4

    def __init__(self) -> None:
        self.kata = KataFiles(Path("/run/vc"))
        self._rootfs = Path("/srv/rootfs")

    def __enter__(self) -> Vm:
        self._process = subprocess.Popen([
            "qemu-system-x86_64", "-name", f"sandbox-{self.sandbox},debug-threads=on", "-machine", "q35", "-accel",
            "kvm", "-cpu", "qemu64", "-m", "64M", "-smp", "2", "-nodefaults", "-no-user-config", "-display", "none",
            "-object", "iothread,id=io1"], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        wait(lambda: {"CPU 0/KVM", "CPU 1/KVM", "IO io1"} <= {*self.names().values()},
             lambda: f"the VM's threads: {self.names()}")
        time.sleep(5)  # no condition shows that its last helper has started
        (self._rootfs / "bin").mkdir(parents=True)
        (self._rootfs / "bin/busybox").write_bytes(Path("/usr/bin/busybox" if Path("/usr/bin/busybox").exists()
                                                        else "/bin/busybox").read_bytes())
        (self._rootfs / "bin/busybox").chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def names(self) -> dict[int, str]:
        """The names of its threads."""
        found = {}
        for path in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found[int(path.name)] = (path / "comm").read_text().strip()
        return found

    def masks(self) -> dict[str, str]:
        """The CPUs of each of its threads, and of the kernel's threads for it."""
        found = {}
        for path in (*Path(f"/proc/{self.pid}/task").iterdir(), *Path("/proc").glob("[1-9]*")):
            with contextlib.suppress(OSError):
                comm = (path / "comm").read_text().strip()
                if path.parent.name == "task" or comm.endswith((f"-{self.pid}", f"/{self.pid}")):
                    found[f"{path.name} {comm}"] = ",".join(map(str, sorted(os.sched_getaffinity(int(path.name)))))
        return found

    def placed(self) -> bool:
        vcpus = {name.split(" ", 1)[1]: cpus for name, cpus in self.masks().items() if "/KVM" in name}
        return vcpus == {"CPU 0/KVM": "2", "CPU 1/KVM": "3"}

    def classes(self) -> dict[str, int]:
        """The scheduling class of each of its threads that has another one than SCHED_OTHER."""
        found = {name: os.sched_getscheduler(tid) for tid, name in self.names().items()}
        return {name: policy for name, policy in found.items() if policy != os.SCHED_OTHER}

    @contextlib.contextmanager
    def unchanged(self, masks: dict[str, str]) -> Iterator[None]:
        """Its masks are read again and again meanwhile. :raises AssertionError: when they were others."""
        seen: list[dict[str, str]] = []
        end = threading.Event()

        def look() -> None:
            while not end.wait(0.2):
                seen.append(self.masks())

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        others = [each for each in seen if each != masks]
        assert seen
        assert not others, f"the masks were {others[0]} and not {masks}"

    def container(self) -> None:
        """One of podman, from its start to its end."""
        places = (f"--{name}=/tmp/podman/{name}" for name in ("root", "runroot", "tmpdir"))
        run("podman", *places, "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none",
            "--runtime=crun", "run", "--rm", "--network=none", "--cgroups=disabled", "--log-driver=none",
            "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--rootfs", str(self._rootfs), "/bin/busybox",
            "true")


def set_class(vm: Vm) -> None:
    """The unit forbids real-time classes until a drop-in permits them. Afterwards all is as before."""
    text, drop_in = CONFIG.read_text(), Path("/etc/systemd/system/vmpin.service.d/realtime.conf")
    CONFIG.write_text(text.replace("#vcpu_class: other", "vcpu_class: fifo"))
    systemctl("restart", "vmpin")
    wait(lambda: "RestrictRealtime=yes" in command("status", Vm.sandbox, "-o", "json"), "a refusal")
    assert not vm.classes()
    assert "forbids real-time classes" in command("doctor", "vcpu-class", code=None)
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nRestrictRealtime=no\n")
    systemctl("daemon-reload")
    systemctl("restart", "vmpin")
    wait(lambda: vm.classes() == dict.fromkeys(("CPU 0/KVM", "CPU 1/KVM"), os.SCHED_FIFO | os.SCHED_RESET_ON_FORK),
         lambda: f"classes of vCPUs: {vm.classes()}")
    assert command("doctor", "vcpu-class").startswith("ok ")
    CONFIG.write_text(text)
    shutil.rmtree(drop_in.parent)
    systemctl("daemon-reload")
    systemctl("restart", "vmpin")
    wait(lambda: not vm.classes(), lambda: f"classes of vCPUs: {vm.classes()}")


def check(build: Path, warned: bool = False) -> None:
    """What an operator looks at: status, verify, doctor, version."""
    (wheel,) = build.glob("*.whl")
    version = wheel.name.split("-")[1]
    assert command("--version").strip() == f"vmpin {version}"
    (sandbox,) = json.loads(command("status", "-o", "json"))["sandboxes"]
    assert sandbox["id"] == Vm.sandbox
    command("verify")
    findings = {each["check"]: each for each in json.loads(command("doctor", "-o", "json", code=None))["findings"]}
    bad = [each for each in findings.values() if each["level"] == "bad"]
    assert not bad, bad
    assert findings["watcher"]["level"] == findings["hooks"]["level"] == "ok", findings
    assert findings["config"]["level"] == ("warn" if warned else "ok"), findings["config"]


def command(*words: str, code: int | None = 0) -> str:
    """Run vmpin. :param code: its exit code; None for any."""
    done = subprocess.run(["vmpin", *words], capture_output=True, text=True, check=False)
    assert code is None or done.returncode == code, f"vmpin {' '.join(words)}: {done.returncode}\n{done.stdout}" \
        f"{done.stderr}"
    return done.stdout


def run(*argv: str) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout}"
    return done.stdout


def systemctl(*words: str) -> None:
    run("systemctl", *words)


def active() -> str:
    return subprocess.run(["systemctl", "is-active", "vmpin"], capture_output=True, text=True,
                          check=False).stdout.strip()


def main_pid() -> str:
    return run("systemctl", "show", "-p", "MainPID", "vmpin").strip()


def step(name: str, action: Callable[..., Result], *arguments: object) -> Result:
    started = time.monotonic()
    result = action(*arguments)
    print(f"operate: {name}: {time.monotonic() - started:.0f} s", flush=True)
    return result


def wait(condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what() if callable(what) else what}"
        time.sleep(0.1)


def of_interrupts() -> dict[str, str]:
    """The masks of interrupts, and of those to come, by their files."""
    files = Path("/proc/irq/default_smp_affinity"), *Path("/proc/irq").glob("*/smp_affinity_list")
    return {str(path.relative_to("/proc/irq")): path.read_text() for path in files}


def snapshot(vm: Vm) -> dict[str, str]:
    """What an operator could find of a program: files, cgroups, units, packages, masks; each by a name of its kind."""
    found = {f"file {path}": text for path, text in files()}
    found |= {f"cgroup {path}": "" for path, _, _ in os.walk("/sys/fs/cgroup")}
    found |= {f"unit {line}": "" for line in run("systemctl", "list-unit-files", "--no-legend").splitlines()}
    found |= {f"loaded {line.split()[0]}": "" for line in run(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "--type=service,socket,timer").splitlines()}
    found |= {f"package {line}": "" for line in run("dpkg-query", "--show").splitlines()}
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    # systemd has one there for a service that runs just now.
    found |= {f"mount {path}": "" for path in mounts if not path.startswith("/run/credentials/")}
    found |= {f"mask {name}": cpus for name, cpus in vm.masks().items()}
    for path in Path("/proc").glob("[1-9]*/task/[1-9]*"):
        with contextlib.suppress(OSError):
            if (path / "comm").read_text().startswith("vmpin"):
                found[f"process {path}"] = (path / "comm").read_text()
    return found


def files() -> Iterator[tuple[str, str]]:
    """Each path with its kind, mode and owner, and a file's size and time or a link's target. By find: Python would
    take minutes for it here."""
    pruned = [word for path in VOLATILE for word in ("-path", path, "-prune", "-o")]
    there = [path for path in TREES if os.path.isdir(path)]
    done = subprocess.run(["find", *there, "-xdev", *pruned, "-type", "f", "-printf", "%p\\t%y %m %U:%G %s %T@\\0",
                           "-o", "-printf", "%p\\t%y %m %U:%G %l\\0"], stdout=subprocess.PIPE, text=True, check=False)
    for line in done.stdout.split("\0")[:-1]:
        path, _, text = line.partition("\t")
        yield path, text


if __name__ == "__main__":
    sys.path.insert(0, str(LAB))
    main(Wheel() if sys.argv[1] == "Wheel" else Deb())
