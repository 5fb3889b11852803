"""A real containerd for a test, with runc pods and pods that are VMs::

    with Containerd("trixie") as containerd:
        web = containerd.pod("web").container("main", cpus="1")
        vm = containerd.pod("vm", handler=VM, vcpus=2)
        main = vm.container("main", cpus="0")
        main.update(cpus="1")
        vm.pid, vm.id, main.id, main.cgroup_cpus()
        containerd.restart()                                # kill -9: its pods live on
        containerd.nri_socket

containerd 1.7 comes from Debian's trixie, 2.x from sid: fetched once and only unpacked (lab.containerd_layer). In the
lab's node trixie's is the one installed there, and sid's is laid beside it. Everything runs in an `Enclosure`, of
which nothing is left; pids are those out here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import busybox_image
import pytest
from cri import Cri, CriError
from enclosure import Enclosure
from lab.containerd_layer import MOVING, containerd_layer, programs
from lab.errors import LabError
from lab.rootfs import machine_mirror
from need import lacking, need_root, need_tool

#: The runtime handler of pods that are VMs.
VM = "kata-test"
VCPUS = "io.katacontainers.config.hypervisor.default_vcpus"
_START = 300.0  # seconds; about 0.2 are needed, in the lab's emulated node many more
_RUNTIME = Path(__file__).with_name("vmruntime.py")

#: In the syntax of 1.7, which 2.x takes as well. What stays out makes directories elsewhere, or asks the network.
_CONFIG = """\
version = 2
root = "{top}/root"
state = "{top}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
                    "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{top}/cri.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{top}/cni"
    conf_dir = "{top}/cni"
{handlers}[plugins."io.containerd.nri.v1.nri"]
  disable = {nri_off}
  disable_connections = {refuse}
  socket_path = "{top}/nri.sock"
  plugin_path = "{top}/nri-plugins"
  plugin_config_path = "{top}/nri-conf"
{patience}"""
#: A plugin has five seconds to register and two for an answer by default; one that the runtime started has no second
#: chance. A shim that does not answer a new containerd within five seconds is taken for dead, and its containers are
#: killed.
_PATIENCE = """\
  plugin_registration_timeout = "300s"
  plugin_request_timeout = "120s"
[timeouts]
  "io.containerd.timeout.shim.load" = "300s"
  "io.containerd.timeout.shim.cleanup" = "300s"
  "io.containerd.timeout.task.state" = "300s"
"""
_HANDLER = """\
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
    runtime_type = "io.containerd.runc.v2"
    pod_annotations = ["io.katacontainers.*", "vmpin*"]
    container_annotations = ["vmpin*"]
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
      BinaryName = "{binary}"
"""


def suites() -> tuple[str, ...]:
    """The releases whose containerd a test may ask for. In the lab's node both, where the build machine could fetch
    sid's; elsewhere whether that can be had is seen when it is fetched."""
    here = not os.environ.get("VMPIN_LAB_NODE") or programs(MOVING).is_dir()
    return ("trixie", MOVING) if here else ("trixie",)


def one_in_ci() -> list[Any]:
    """`suites`, as parameters: the first alone in CI, for what does not depend on the version by what is known."""
    return [pytest.param(suite, marks=[pytest.mark.release] * (suite != suites()[0])) for suite in suites()]


@contextlib.contextmanager
def binaries(suite: str) -> Iterator[Path]:
    """The directory of containerd, its shim and ctr, from a release of Debian's. sid moves: where it cannot be had the
    test is skipped, in CI too."""
    if os.environ.get("VMPIN_LAB_NODE"):
        yield Path("/usr/bin") if suite == "trixie" else programs(suite)
        return
    need_root()
    mirror = machine_mirror()
    if not mirror:
        lacking("needs a Debian mirror in the machine's apt configuration")
    with contextlib.ExitStack() as stack:
        try:
            layer = stack.enter_context(containerd_layer(suite, mirror))
            path = layer / programs(suite).relative_to("/")
            subprocess.run([path / "containerd", "--version"], check=True, capture_output=True)
        except (LabError, OSError, subprocess.CalledProcessError) as err:
            if suite == MOVING:
                pytest.skip(f"sid's containerd is not to be had, or does not run here: {err}")
            lacking(f"needs the containerd of Debian {suite}: {err}")
        yield path


class Container:
    """One container; its life is the test's to lead."""

    def __init__(self, pod: Pod, name: str, identity: str) -> None:
        self.pod = pod
        self.name = name
        self.id = identity
        self._cri = pod.containerd.cri

    def start(self) -> Container:
        self._cri.start(self.id)
        return self

    def update(self, cpus: str = "", **resources: Any) -> None:
        """As the kubelet's CPU manager does. :raises CriError: when the runtime refuses."""
        self._cri.update(self.id, cpuset_cpus=cpus, **resources)

    def remove(self) -> None:
        self._cri.stop(self.id)
        self._cri.remove(self.id)

    @property
    def pid(self) -> int:
        return self.pod.containerd.outer(self._cri.pid(self.id))

    @property
    def cgroup(self) -> Path:
        """Its cpuset cgroup (of runc's; a VM's containers have none)."""
        root = Path("/sys/fs/cgroup")
        return (root / "cpuset" if (root / "cpuset").is_dir() else root) / self.pod.containerd.cgroup / self.id

    def cgroup_cpus(self) -> str:
        """The CPUs that its cgroup has."""
        return (self.cgroup / "cpuset.cpus").read_text().strip()


class Pod:
    """One pod, running. It is the VM itself for the handler VM."""

    def __init__(self, containerd: Containerd, name: str, handler: str, config: Any) -> None:
        self.containerd = containerd
        self.name = name
        self._config = config
        self.id = containerd.cri.run_pod(config, handler)

    @cached_property
    def pid(self) -> int:
        """Of the VMM; of the pause process for runc."""
        return self.containerd.outer(self.containerd.cri.pod_pid(self.id))

    def create(self, name: str, cpus: str = "", annotations: Mapping[str, str] | None = None,
               command: Sequence[str] = ("/bin/busybox", "sleep", "86400"), devices: Sequence[str] = (),
               env: Mapping[str, str] | None = None, attempt: int = 0, **resources: Any) -> Container:
        """A container that is not started yet. Not with the kubelet's least CPU shares, 2: beside busy programs runc's
        first process has a 500th of their time, and took more than two minutes to start."""
        identity = self.containerd.cri.create(
            self.id, self._config, name, busybox_image.NAME,
            {"cpu_shares": 1024, "cpuset_cpus": cpus, **resources}, annotations or {}, command, devices, env,
            attempt)
        return Container(self, name, identity)

    def container(self, name: str, cpus: str = "", **more: Any) -> Container:
        """A container that runs."""
        return self.create(name, cpus, **more).start()

    def remove(self) -> None:
        """With its containers."""
        self.containerd.cri.stop_pod(self.id)
        self.containerd.cri.remove_pod(self.id)


class Containerd:
    """See the module.

    :param suite: trixie (1.7) or sid (2.x).
    :param nri: whether NRI is on.
    :param refuse_plugins: NRI is on, but plugins cannot connect.
    :param patient: with NRI plugins, as on a busy machine they need it.
    :param accel: of the VMs: "tcg", without a guest, or "kvm", with `bios` as theirs.
    :param runtime: of the other pods: runc, or crun, which takes a fraction of its time.
    """

    def __init__(self, suite: str = "trixie", *, nri: bool = True, refuse_plugins: bool = False,
                 patient: bool = True, accel: str = "tcg", bios: bytes = b"", runtime: str = "runc") -> None:
        self.suite = suite
        self._nri = nri
        self._refuse = refuse_plugins
        self._patient = patient
        self._accel = accel
        self._bios = bios
        self._runtime = runtime
        #: Of all its pods, below the root of each cgroup hierarchy.
        self.cgroup = f"vmpin-test-{secrets.token_hex(5)}"
        self.enclosure = Enclosure()
        self.cri: Cri
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Containerd:
        with contextlib.ExitStack() as stack:
            self._bin = stack.enter_context(binaries(self.suite))
            # Short, whatever TMPDIR is: a socket's path may have 107 bytes.
            self.top = Path(tempfile.mkdtemp(prefix="vmpin-cd-", dir="/tmp"))
            stack.callback(shutil.rmtree, self.top, ignore_errors=True)
            stack.callback(remove_cgroups, self.cgroup)
            stack.enter_context(self.enclosure)
            stack.callback(self.kill)
            self.cri = Cri(self.top / "cri.sock")
            stack.callback(self.cri.close)
            self._write()
            self.start()
            self.version = self.cri.version()
            busybox_image.write(self.top / "image.tar", Path(need_tool("busybox")))
            self.ctr("image", "import", str(self.top / "image.tar"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is not None:
            print("".join(f"containerd: {line}\n" for line in self.log().splitlines()[-60:]))
        self._stack.close()

    # The daemon

    def start(self, *, wait: bool = True) -> None:
        assert self._process is None
        with (self.top / "log").open("ab") as log:
            self._process = self.popen([str(self._bin / "containerd"), "-c", str(self.top / "config.toml")], log)
        deadline = time.monotonic() + _START
        while wait:
            with contextlib.suppress(CriError):
                self.cri.version()
                return
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9. Its pods and their shims live on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """As systemd does."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_START)
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """It hangs: it is there and says nothing, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        log = self.top / "log"
        return log.read_text("utf-8", "replace") if log.exists() else ""

    @property
    def nri_socket(self) -> Path:
        return self.top / "nri.sock"

    @property
    def vm(self) -> Path:
        """Where the command line of the next VM may be put, as JSON: QEMU's, without a name."""
        return self.top / "vm.json"

    @property
    def plugins(self) -> Path:
        """The directory of the pre-installed NRI plugins."""
        return self.top / "nri-plugins"

    def outer(self, pid: int) -> int:
        """The pid out here of a process in the enclosure."""
        return self.enclosure.outer(pid)

    # Processes beside it

    def popen(self, argv: Sequence[str], log: Any) -> subprocess.Popen[bytes]:
        """Start a process in the enclosure; it ends with this."""
        return self.enclosure.popen(argv, env=self._environment(), stdout=log, stderr=log, cwd="/")

    def ctr(self, *args: str) -> str:
        with self.enclosure.inside():
            done = subprocess.run([*self.enclosure.enter, str(self._bin / "ctr"), "-a", str(self.top / "cri.sock"),
                                   "-n", "k8s.io", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=_START)
        assert done.returncode == 0, f"ctr {args[0]}: {done.stderr}"
        return done.stdout

    # Pods

    def pod(self, name: str, handler: str = "", vcpus: int = 1, annotations: Mapping[str, str] | None = None,
            uid: str = "") -> Pod:
        """A running pod.

        :param vcpus: of a VM.
        :param uid: as the kubelet's checkpoint names it; made up if none is given.
        """
        known = {VCPUS: str(vcpus)} if handler == VM else {}
        config = self.cri.pod_config(name, uid or f"uid-{secrets.token_hex(4)}", "tests", f"/{self.cgroup}",
                                     known | dict(annotations or {}))
        return Pod(self, name, handler, config)

    # Its set-up

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self._bin), os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        return {**{key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}, "PATH": path}

    def _write(self) -> None:
        """The configuration file, and the runtime of VMs."""
        bios: list[str] = []
        if self._bios:
            (self.top / "bios").write_bytes(self._bios)
            bios = ["--bios", str(self.top / "bios")]
        runc = need_tool("runc")
        script = self.top / "vm-runtime"
        words = ["/usr/bin/python3", "-IS", _RUNTIME, "--runc", runc, "--qemu", need_tool("qemu-system-x86_64"),
                 "--accel", self._accel, *bios, "--vm", self.vm, "--"]
        script.write_text(f"#!/bin/sh\nexec {' '.join(map(str, words))} \"$@\"\n")
        script.chmod(0o755)
        for directory in ("cni", "nri-plugins", "nri-conf"):
            (self.top / directory).mkdir()
        handlers = "".join(_HANDLER.format(name=name, binary=binary)
                           for name, binary in (("runc", need_tool(self._runtime)), (VM, script)))
        (self.top / "config.toml").write_text(_CONFIG.format(
            top=self.top, image=busybox_image.NAME, handlers=handlers, nri_off=_toml(not self._nri),
            refuse=_toml(self._refuse), patience=_PATIENCE if self._patient else ""))


def _toml(value: bool) -> str:
    return "true" if value else "false"


def remove_cgroups(name: str) -> None:
    """With those below, in every hierarchy. A process that has just been killed is in its cgroup for a moment."""
    root = Path("/sys/fs/cgroup")
    deadline = time.monotonic() + _START
    while found := [path for path in (root / name, *root.glob(f"*/{name}")) if path.is_dir()]:
        for top in found:
            for path, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        assert time.monotonic() < deadline, f"{found} cannot be removed"
        time.sleep(0.02)
