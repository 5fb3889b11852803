"""An OCI runtime whose pods are virtual machines, run by containerd's shim in runc's place: a stand-in for Kata.

    vmruntime.py --runc PATH --qemu PATH --accel tcg|kvm [--bios FILE] [--vm FILE] -- [global options] create|start|…

What is as with Kata: a pod is a QEMU named `sandbox-ID`, with as many vCPUs as the annotation says (or else as --vm
has it, a file with a command line as JSON), in a cgroup of its own (`PARENT/kata_ID`, on cgroup v1 cpuset's alone);
the pod's pid is the VMM's; a container's cgroup path exists nowhere, and its cpuset is applied to nothing on the host;
an update with CPUs that are not online fails.

What is not: a container is a process of runc's on the host, in a cgroup without a cpuset, so its pid is not the VMM's;
a vCPU is never hotplugged (Kata adds one when the containers' limits ask for it); nothing is written below /run/vc.

It is given no environment and every call is a process of its own, so only the standard library is used, and little
of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

_KIND = "io.kubernetes.cri.container-type"
_VCPUS = "io.katacontainers.config.hypervisor.default_vcpus"
_CGROUP = Path("/sys/fs/cgroup")
#: Options of runc that take a value as a word of its own.
_VALUED = {"--root", "--log", "--log-format", "--criu", "--rootless", "--bundle", "-b", "--pid-file",
           "--console-socket", "--preserve-fds", "--resources", "-r", "--process", "-p", "--format", "-f"}


class Call:
    """A command line of runc's: `verb`, and the id and options around it."""

    def __init__(self, options: dict[str, str], argv: list[str]) -> None:
        self.argv = argv
        self.runc = options["--runc"]
        self.own = options
        self.options: dict[str, str] = {}
        words: list[str] = []
        rest = iter(argv)
        for word in rest:
            name, equals, value = word.partition("=")
            if name in _VALUED:
                self.options[name] = value if equals else next(rest, "")
            elif word.startswith("-") and word != "-":
                self.options[word] = ""
            else:
                words.append(word)
        self.verb, self.id, *self.words = [*words, "", ""]
        #: What stands before the verb.
        self.globals = argv[:argv.index(self.verb)] if self.verb else argv

    @property
    def state(self) -> Path:
        """What is remembered of a pod."""
        return Path(self.options.get("--root", "/run/vmruntime")) / f"vm-{self.id}.json"


def main(arguments: list[str]) -> int:
    """What is no VM's matter becomes runc."""
    split = arguments.index("--")
    call = Call(dict(zip(arguments[:split:2], arguments[1:split:2], strict=True)), arguments[split + 1:])
    if call.verb == "create":
        bundle = Path(call.options.get("--bundle") or call.options.get("-b") or ".")
        spec = json.loads((bundle / "config.json").read_text())
        if spec.get("annotations", {}).get(_KIND) == "sandbox":
            return _create_vm(call, bundle, spec)
        return _create_hidden(call, bundle, spec)
    if call.verb == "update":
        return _update(call)
    if call.state.exists():
        return _of_vm(call, json.loads(call.state.read_text()))
    return os.execv(call.runc, [call.runc, *call.argv])


def _fail(call: Call, text: str) -> NoReturn:
    """As runc does: containerd reads the log."""
    if log := call.options.get("--log"):
        with open(log, "a") as file:
            file.write(json.dumps({"level": "error", "msg": text}) + "\n")
    sys.exit(text)


# The pod


def _create_vm(call: Call, bundle: Path, spec: dict[str, Any]) -> int:
    pid_file = bundle / "vmm.pid"
    machine = Path(call.own.get("--vm", ""))
    qemu = json.loads(machine.read_text()) if machine.is_file() else _machine(call.own, spec)
    # -daemonize ends when the machine is made; its child's parent is then the shim, which reaps it and by its end
    # knows the end of the pod. In namespaces of its own, which runc lets the pod's containers join.
    argv = ["unshare", "--ipc", "--uts", "--", *qemu, "-name", f"sandbox-{call.id},debug-threads=on", "-daemonize",
            "-pidfile", str(pid_file)]
    made = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode:
        _fail(call, f"QEMU: {made.stdout}")
    pid = int(pid_file.read_text())
    path = str(spec["linux"].get("cgroupsPath", "")).strip("/")
    cgroup = _hierarchy() / Path(path).parent / f"kata_{call.id}"
    _enter(cgroup, pid)
    call.state.parent.mkdir(parents=True, exist_ok=True)
    call.state.write_text(json.dumps({"pid": pid, "bundle": str(bundle.resolve()), "status": "created",
                                      "cgroup": str(cgroup), "annotations": spec["annotations"]}))
    Path(call.options["--pid-file"]).write_text(str(pid))
    return 0


def _machine(own: dict[str, str], spec: dict[str, Any]) -> list[str]:
    """A VM without a guest's kernel."""
    accel = own["--accel"]
    argv = [own["--qemu"], "-machine", "q35", "-accel", "tcg,thread=multi" if accel == "tcg" else accel,
            "-cpu", "max" if accel == "tcg" else "qemu64,+x2apic", "-m", "64M",
            "-smp", spec["annotations"].get(_VCPUS, "1"), "-nodefaults", "-no-user-config", "-display", "none"]
    # Without a guest TCG would emulate firmware; KVM learns a vCPU's thread only when it runs.
    return argv + (["-bios", bios] if (bios := own.get("--bios")) else ["-S"])


def _of_vm(call: Call, vm: dict[str, Any]) -> int:
    if call.verb == "start":
        call.state.write_text(json.dumps(vm | {"status": "running"}))
    elif call.verb == "kill":
        number = call.words[0] or "TERM"
        with contextlib.suppress(ProcessLookupError):
            os.kill(vm["pid"], int(number) if number.isdigit() else
                    signal.Signals[f"SIG{number.removeprefix('SIG')}"])
    elif call.verb == "delete":
        with contextlib.suppress(ProcessLookupError):
            os.kill(vm["pid"], signal.SIGKILL)
        _remove(Path(vm["cgroup"]))
        call.state.unlink()
    elif call.verb == "state":
        status = vm["status"] if os.path.exists(f"/proc/{vm['pid']}") else "stopped"
        print(json.dumps({"ociVersion": "1.0.2", "id": call.id, "pid": vm["pid"], "status": status,
                          "bundle": vm["bundle"], "annotations": vm["annotations"]}))
    elif call.verb == "ps":
        print(json.dumps([vm["pid"]]))
    else:
        _fail(call, f"{call.verb} is not done to a VM")
    return 0


# Its containers


def _create_hidden(call: Call, bundle: Path, spec: dict[str, Any]) -> int:
    """As runc does it, but where no cpuset is the container's."""
    linux = spec["linux"]
    for key in ("cpus", "mems"):
        linux.get("resources", {}).get("cpu", {}).pop(key, None)
    parent, _, name = str(linux.get("cgroupsPath", "")).rpartition("/")
    linux["cgroupsPath"] = f"{parent}/in-vm-{name}"
    (bundle / "config.json").write_text(json.dumps(spec))
    code = subprocess.run([call.runc, *call.argv]).returncode
    if code == 0 and _hierarchy() != _CGROUP:  # v1, where a cgroup has CPUs even if none are given
        (_hierarchy() / "cgroup.procs").write_text(Path(call.options["--pid-file"]).read_text())
    return code


def _update(call: Call) -> int:
    source = call.options.get("--resources") or call.options.get("-r") or "-"
    resources = json.loads(sys.stdin.read() if source == "-" else Path(source).read_text())
    cpu = resources.get("cpu") or {}
    cpus, _ = cpu.pop("cpus", ""), cpu.pop("mems", "")
    if cpus and not _numbers(cpus) <= _numbers(Path("/sys/devices/system/cpu/online").read_text()):
        _fail(call, f"CPUs {cpus} are not online")
    return subprocess.run([call.runc, *call.globals, "update", "--resources", "-", call.id],
                          input=json.dumps(resources), text=True).returncode


def _numbers(cpus: str) -> set[int]:
    found: set[int] = set()
    for part in cpus.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


# Cgroups


def _hierarchy() -> Path:
    return _CGROUP / "cpuset" if (_CGROUP / "cpuset").is_dir() else _CGROUP


def _enter(cgroup: Path, pid: int) -> None:
    """Put a process into a new cgroup with the CPUs of the one above."""
    missing = [path for path in (cgroup, *cgroup.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        if (path.parent / "cgroup.subtree_control").exists():
            (path.parent / "cgroup.subtree_control").write_text("+cpuset")
        else:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (path / name).write_text((path.parent / name).read_text())
    (cgroup / "cgroup.procs").write_text(str(pid))


def _remove(cgroup: Path) -> None:
    for _ in range(6000):
        with contextlib.suppress(OSError):
            cgroup.rmdir()
        if not cgroup.exists():
            return
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
