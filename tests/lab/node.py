"""Booting the node: its root over virtiofs, QEMU, the console, the end.

The root is layers: what changes with every run (the repository's files, the job), the kernel's modules, what guests
boot, the root file system of the cache; and above them a tmpfs that takes every write and is gone afterwards. They
are put together in a mount namespace of virtiofsd's own. /results is a second, empty directory, which comes back.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import selectors
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from lab import cache
from lab.cache import say
from lab.errors import LabError
from lab.kernel import Built
from lab.rootfs import emulator
from lab.variant import Topology, Variant

REPOSITORY = Path(__file__).resolve().parents[2]
MEMORY = 3072  # MiB
#: What a run may take until the node is ended.
DEADLINE = 600.0
#: Until its init says that it is up, which takes some 15 seconds, and how often it is tried: an emulated CPU has lost
#: its clock while the node booted on a busy machine (one of some twenty boots), or the node's clock runs too fast.
#: Then it never comes up, or its init finds that and powers it off.
BOOT_DEADLINE, BOOTS = 240.0, 3
_UP = b"init: up after"
#: On the console of a kernel that panicked. The emulated one does so once in dozens of boots; one that a test brings
#: down does so at every boot, and fails.
_PANIC = b"Kernel panic - not syncing"
#: virtiofsd, the C one of Debian 12's QEMU or the Rust one.
VIRTIOFSD = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/bin/virtiofsd")
#: An EPYC as far as TCG has it, with SVM for KVM. topoext, which older kernels need to see SMT on an AMD, is only
#: CPUID leaves, and QEMU fills them, but believes that TCG lacks it: so it is forced, and what TCG does lack is off.
_CPU = ("EPYC,+svm,+topoext,x-force-features=on,-rdseed,-sha-ni,-fxsr-opt,-misalignsse,-3dnowprefetch,-osvw,"
        "-nrip-save,-xsavec")
_TIED = ("setpriv", "--pdeathsig", "KILL", "--")
#: $1 a directory, $2 the lower layers, then virtiofsd's command.
_SERVE_ROOT = """\
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
# What the emulated CPUs would take seconds for.
chroot "$1/root" /bin/sh -c 'cd /repo
    timeout 120 python3 -m compileall -q vmpin tests/soak
    unset PYTHONDONTWRITEBYTECODE
    VMPIN_LAB_NODE=1 PYTHONPATH=/repo:/repo/tests:/repo/tests/integration timeout 120 python3 -m pytest \\
        --collect-only -q -p no:cacheprovider tests/lab/node_tests' >/dev/null 2>&1 || true
shift 2
exec "$@"
"""
#: A few failed tests are made once more (lab/results.py); the first run's results stay beside.
_JOB = """\
{first} </dev/null
status=$?
if [ $status = 1 ] && python3 -m lab.results /results/junit.xml >/tmp/once-more; then
    echo "lab: RERUN of what has failed:"; cat /tmp/once-more
    mv /results/junit.xml /results/junit-1.xml
    xargs -d '\\n' {again} </tmp/once-more
    status=$?
fi
"""
_VMPIN = """\
#!/bin/sh
exec /usr/bin/python3 -m vmpin.cli.main "$@"
"""


#: As `_run`.
BootsOnce = Callable[[Variant, Path, Built, Path, int, Path, float], bool]


def run_tests(variant: Variant, root: Path, kernel: Built, results: Path, arguments: Sequence[str],
              deadline: float = DEADLINE, environment: Mapping[str, str] | None = None,
              boot_once: BootsOnce | None = None) -> int:
    """Run pytest in the node. `results` is emptied first.

    :param environment: variables for the tests.
    :param boot_once: boots the node and follows it to its end, in place of QEMU.
    :returns: pytest's exit status.
    :raises LabError: when the node does not come to an end; its console is in results/console.log. And when
        `results` has files that are not of a run before.
    """
    pytest = ["python3", "-m", "pytest", "-v", "-p", "no:cacheprovider", "--basetemp=/tmp/pytest",
              "--junitxml=/results/junit.xml", "-o", "testpaths=tests/lab/node_tests", "-o",
              "faulthandler_timeout=240", f"--color={'yes' if sys.stdout.isatty() else 'no'}"]
    job = _JOB.format(first=shlex.join([*pytest, *arguments]), again=shlex.join(pytest))
    return run_job(variant, root, kernel, results, lambda layer: write_job(layer, variant, job, environment or {}),
                   deadline, boot_once)


def run_job(variant: Variant, root: Path, kernel: Built, results: Path, write_layer: Callable[[Path], None],
            deadline: float, boot_once: BootsOnce | None = None) -> int:
    """Boot the node, and follow it to its end. `results` is emptied first.

    :param write_layer: makes the topmost layer of the root, with /lab/init; it leaves its status in /results/status.
    :raises LabError: as `run_tests`.
    """
    empty(results)
    with _place() as place:
        write_layer(place / "job")
        for boot in range(1, BOOTS + 1):
            in_time = (boot_once or _run)(variant, root, kernel, place, boot, results, deadline)
            console = (results / "console.log").read_bytes()
            panicked = _PANIC in console and not (results / "status").exists()
            if (_UP in console and not panicked) or boot == BOOTS or deadline <= BOOT_DEADLINE:
                break
            what = "the node's kernel panicked" if panicked else "the node has not come up"
            say(f"{what}: it is started again ({boot} of {BOOTS - 1}); see console-{boot}.log")
            (results / "console.log").rename(results / f"console-{boot}.log")
    status = results / "status"
    if status.exists():
        return int(status.read_text())
    tail = (results / "console.log").read_text(errors="replace").splitlines()[-30:]
    what = "ended without saying how the tests went" if in_time else f"was not done after {deadline:.0f} s"
    complaints = [line for line in (results / "qemu.log").read_text(errors="replace").splitlines()
                  if "doesn't support requested feature" not in line]
    raise LabError("\n".join([f"the node {what}; the end of {results}/console.log:", *tail, *complaints[-10:]]))


def empty(results: Path) -> None:
    """An empty directory, of nothing or of what a run before has left."""
    if results.exists():
        if any(results.iterdir()) and not any(results.glob("console*.log")):
            raise LabError(f"{results} is not empty and has no console.log, so it is none of the lab's: not emptied")
        shutil.rmtree(results)
    results.mkdir(parents=True)


def _run(variant: Variant, root: Path, kernel: Built, place: Path, boot: int, results: Path, deadline: float) -> bool:
    """From power on to power off; False when it is not off by the deadline, or not even up by its own."""
    with _served(place, root, kernel, results, boot) as sockets, (results / "qemu.log").open("wb") as log:
        argv = [*_TIED, *_qemu(variant, root, kernel, sockets, "stdio")]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                   start_new_session=True)
        with _ended(process), (results / "console.log").open("wb") as console:
            return follow(process, console, deadline)


def shell(variant: Variant, root: Path, kernel: Built, results: Path) -> None:
    """A shell in the node, on this terminal."""
    if not sys.stdin.isatty():
        raise LabError("a shell needs a terminal")
    results.mkdir(parents=True, exist_ok=True)
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))
    job = (f"stty rows {rows or 24} cols {columns or 80} </dev/ttyS0\nexport TERM={os.environ.get('TERM', 'vt100')}\n"
           "setsid --ctty --wait bash </dev/ttyS0 >/dev/ttyS0 2>&1\nstatus=$?\n")
    say("a shell in the node, as root; exit ends it, and so does Ctrl-A x at once")
    say(f"tests: python3 -m pytest tests/lab/node_tests; what is left in /results comes to {results}")
    with _place() as place:
        write_job(place / "job", variant, job, {})
        before = termios.tcgetattr(0)
        with _served(place, root, kernel, results, 1) as sockets, (results / "qemu.log").open("wb") as log:
            process = subprocess.Popen([*_TIED, *_qemu(variant, root, kernel, sockets, "mon:stdio")], stderr=log)
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is meant for the node
            try:
                with _ended(process):
                    process.wait()
            finally:
                signal.signal(signal.SIGINT, handler)
                termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    """A directory for one run, short: a socket's path may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="vmpin-lab-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def write_job(layer: Path, variant: Variant, job: str, environment: Mapping[str, str]) -> None:
    """The topmost layer of the root: the files under test, the init and what it runs."""
    layer.mkdir(mode=0o755)
    (layer / "lab").mkdir()
    init = layer / "lab/init"
    shutil.copy(Path(__file__).with_name("init"), init)
    init.chmod(0o755)
    variables = {
        **{key: value for key, value in os.environ.items()
           if key.startswith("VMPIN_LAB_") and key != "VMPIN_LAB_CACHE"},
        "PYTHONPATH": "/repo:/repo/tests:/repo/tests/integration", "CI": "true", "VMPIN_LAB_NODE": "1",
        "VMPIN_LAB_KERNEL": variant.kernel, "VMPIN_LAB_CGROUP": variant.cgroup, "VMPIN_LAB_TOPOLOGY": variant.topology,
        **environment,
    }
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
    (layer / "lab/run").write_text(exports + job)
    # The node has no compiler, and another C library.
    cache.need("gcc")
    subprocess.run(["gcc", "-static", "-O2", "-pthread", "-o", layer / "lab/soak-vmm",
                    REPOSITORY / "tests/soak/vmm.c"], check=True)
    # This directory lies over /usr/local of the root file system, not in its place.
    command = layer / "usr/local/bin/vmpin"
    command.parent.mkdir(parents=True)
    command.write_text(_VMPIN)
    command.chmod(0o755)
    for name in repository_files():
        target = layer / "repo" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target, follow_symlinks=False)


def repository_files() -> list[str]:
    """Every file that git has or would take."""
    try:
        listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as err:
        raise LabError(f"{REPOSITORY}: git does not list its files: {err}") from err
    names = sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
    return [name for name in names if os.path.lexists(REPOSITORY / name)]


@contextlib.contextmanager
def _served(place: Path, root: Path, kernel: Built, results: Path, boot: int) -> Iterator[Mapping[str, Path]]:
    """virtiofsd for the root and for the results; their sockets by tag."""
    virtiofsd = next((path for path in VIRTIOFSD if os.access(path, os.X_OK)), None)
    if virtiofsd is None:
        raise LabError("virtiofsd is not installed (Debian 12: qemu-system-common, later ones: virtiofsd)")
    scratch = place / f"boot{boot}"
    scratch.mkdir()
    sockets = {tag: place / f"{tag}{boot}.sock" for tag in ("root", "results")}
    layers = ":".join(map(str, (place / "job", *kernel.layers, root)))
    serve_root = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _SERVE_ROOT, "sh", str(scratch),
                  layers]
    with contextlib.ExitStack() as stack:
        for tag, before, source, caching in (("root", serve_root, scratch / "root", "always"),
                                             ("results", [], results.absolute(), "auto")):
            log = stack.enter_context((place / f"{tag}.log").open("wb"))
            command = [virtiofsd, f"--socket-path={sockets[tag]}", "-o", f"source={source}", "-o",
                       f"cache={caching}", "-o", "sandbox=chroot"]
            process = subprocess.Popen([*_TIED, *before, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       start_new_session=True)
            stack.enter_context(_ended(process))
            deadline = time.monotonic() + 120
            while not sockets[tag].exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"virtiofsd does not serve the {tag}:\n{(place / f'{tag}.log').read_text()}")
                time.sleep(0.02)
        yield sockets


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """This very process ends with the `with`."""
    try:
        yield
    finally:
        process.kill()
        process.wait()
        for pipe in process.stdin, process.stdout:
            if pipe is not None:
                pipe.close()


def _qemu(variant: Variant, root: Path, kernel: Built, sockets: Mapping[str, Path], serial: str) -> list[str]:
    line = ["rootfstype=virtiofs", "root=root", "rw", "init=/lab/init", *emulated(), f"vmpin.cgroup={variant.cgroup}"]
    if variant.topology is Topology.NOSMT:
        line += ["nosmt", "vmpin.offline=6"]
    elif variant.topology is Topology.IOMMU:
        line += ["intel_iommu=on"]
    argv = [*emulator(kernel.emulator or root), "-name", "vmpin-lab", "-machine", "q35", "-accel", "tcg,thread=multi",
            "-cpu", _CPU, "-smp", "8,sockets=2,cores=2,threads=2", "-m", f"{MEMORY}M"]
    for node, cpus in enumerate(("0-3", "4-7")):
        argv += ["-object", f"memory-backend-memfd,id=m{node},size={MEMORY // 2}M,share=on",
                 "-numa", f"node,nodeid={node},cpus={cpus},memdev=m{node}"]
    for tag, socket in sockets.items():
        argv += ["-chardev", f"socket,id={tag},path={socket}", "-device",
                 f"vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024"]
    if variant.topology is Topology.IOMMU:
        argv += ["-device", "intel-iommu,intremap=off"]
    for node in (0, 1):  # a NIC on each node, both on one wire; the kernel names that of the last bus first
        argv += ["-device", f"pxb-pcie,id=pxb{node},bus_nr={64 * (node + 1)},numa_node={node},bus=pcie.0", "-device",
                 f"pcie-root-port,id=port{node},bus=pxb{node},chassis={node + 1}", "-device",
                 f"virtio-net-pci,bus=port{node},netdev=wire{node},romfile=", "-netdev",
                 f"hubport,id=wire{node},hubid=0"]
    argv += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", serial,
             "-kernel", str(kernel.image), "-append", " ".join(line)]
    if kernel.initrd is not None:
        argv += ["-initrd", str(kernel.initrd)]
    return argv


def emulated() -> list[str]:
    """Of the command line of a kernel on emulated CPUs: what makes it fast, and what a busy machine would upset (that
    the timer's interrupts come in time, and how fast the time stamp counter is)."""
    return ["console=ttyS0", "quiet", "oops=panic", "panic=-1", "mitigations=off", "init_on_alloc=0",
            "hardened_usercopy=off", "apparmor=0", "audit=0", "no_timer_check", "tsc=reliable",
            f"tsc_early_khz={host_tsc_khz()}"]


@functools.cache
def host_tsc_khz(seconds: float = 0.2) -> int:
    """The frequency of this machine's time stamp counter, which is that of the emulated CPUs. Against the emulated PIT
    the node's kernel measures it wrongly on a busy machine, and its clock then runs many times too fast."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl $32, %rdx; or %rdx, %rax; ret
        first = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(first))

        def sample() -> tuple[int, int]:
            """Time (ns) and counter, as near as a busy machine lets them be read."""
            samples = []
            for _ in range(20):
                before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
                samples.append((after - before, before, ticks))
            _, at, ticks = min(samples)
            return at, ticks

        begin = sample()
        time.sleep(seconds)
        end = sample()
        del first
    return round((end[1] - begin[1]) * 1_000_000 / (end[0] - begin[0]))


def follow(process: subprocess.Popen[bytes], console: BinaryIO, deadline: float,
           boot_deadline: float = BOOT_DEADLINE) -> bool:
    """Show the console until the node has powered off; False when it has not within `deadline` seconds, or has not
    come up within `boot_deadline`."""
    assert process.stdout is not None
    started, booting = time.monotonic(), b""
    until = started + min(deadline, boot_deadline)
    left = until - started
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while left > 0:
            if not selector.select(left):
                break
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                process.wait()
                return True
            console.write(part)
            console.flush()
            if until < started + deadline and _UP in (booting := booting[-len(_UP):] + part):
                until = started + deadline
            sys.stdout.write(part.decode(errors="replace").replace("\r\n", "\n"))
            sys.stdout.flush()
            left = until - time.monotonic()
    return False
