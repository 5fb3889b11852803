"""Which nodes the suite boots, and booting them in the background of a session: other tests run meanwhile.

A node takes minutes and about one CPU of the build machine; the other tests take one CPU, too. So the nodes of a
session are started when its tests are collected, one after the other by a process of their own, and test_lab.py waits
for each.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.node import REPOSITORY
from lab.variant import Cgroup, Kernel, Topology, Variant

#: Where the nodes' results lie, and what a session locks until it has read its own: another may run in this checkout.
RESULTS = REPOSITORY / "build/lab"
LOCK = RESULTS / ".lock"
#: Seconds for a boot and its tests, until it is ended: the longest (a hundred containers, both versions of
#: containerd) took 26 minutes beside other work.
TIMEOUT = 2400


@dataclass(frozen=True)
class Boot:
    """A node, and what is run in it.

    :param what: put behind the node's name.
    :param arguments: for pytest in the node.
    :param environment: for the tests in the node.
    """

    variant: Variant
    what: str = ""
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.variant}{self.what}"

    @property
    def results(self) -> Path:
        return RESULTS / str(self)

    def argv(self) -> list[str]:
        """Of `lab run`, which ends with the process that starts it."""
        env = [word for name, value in self.environment.items() for word in ("--env", f"{name}={value}")]
        return ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "lab", "run",
                "--kernel", self.variant.kernel, "--cgroup", self.variant.cgroup, "--topology", self.variant.topology,
                "--timeout", str(TIMEOUT), "--results", str(self.results), *env, "--", *self.arguments]


#: The files of the allocator, each of which takes a node of its own many minutes: with both versions of containerd.
ALLOCATING = ("allocate", "allocate_churn", "allocate_crowd", "allocate_failures")


def _files(*names: str) -> list[str]:
    return [f"tests/lab/node_tests/test_{name}.py" for name in names]


def _without(*names: str) -> list[str]:
    return [word for name in _files(*names) for word in ("--ignore", name)]


#: Those all of whose tests have the mark `release`: to import them alone takes the emulated CPUs seconds.
LONG = ("clock", "doctor_node", "drift_causes", "guest_chain", "no_leak", "nri", "proved", "scheduling", "vm_network")

#: In CI: one node, with what its kernel and its CPUs alone can show.
IN_CI = (
    Boot(Variant(Kernel.V6_12), "", [*_without("guest", "soak", *ALLOCATING, *LONG), "-m", "not release"]),
)
#: Before a release, too: a long soak on both kernels; the long tests on the newer one, most of which resemble another
#: in CI; the allocator with both versions of containerd; the older kernel, whose vhost workers and KVM helpers are
#: kernel threads, which forgets a mask that a cpuset cuts, and whose proc connector needs CAP_NET_ADMIN; a guest that
#: boots Linux without a real containerd; a passed-through device; the older cgroups, and few CPUs without SMT, with
#: what they change.
BEFORE_A_RELEASE = (
    Boot(Variant(Kernel.V6_12), "-soak", _files("soak", "guest", "requests"),
         {"VMPIN_LAB_SOAK_STEPS": "120", "VMPIN_LAB_ROUNDS": "50"}),
    Boot(Variant(Kernel.V6_12), "-long", [*_without(*ALLOCATING), "-m", "release"]),
    *(Boot(Variant(Kernel.V6_12), f"-{name}", _files(name)) for name in ALLOCATING),
    Boot(Variant(Kernel.V6_12, topology=Topology.IOMMU), "", _files("passed_through")),
    Boot(Variant(Kernel.V6_1), environment={"VMPIN_LAB_SOAK_STEPS": "60", "VMPIN_LAB_ROUNDS": "50"}),
    Boot(Variant(Kernel.V6_1, Cgroup.V1), "", _files("node", "vms", "changes")),
    Boot(Variant(Kernel.V6_1, Cgroup.HYBRID, Topology.NOSMT), "",
         _files("node", "vms", "few_cpus", "doctor_node")),
)


class Nodes:
    """Nodes that boot in the background, as any process of the session sees them: by what is in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def log(self, boot: Boot) -> Path:
        return self.directory / f"{boot}.log"

    def code(self, boot: Boot) -> Path:
        return self.directory / f"{boot}.code"

    def wait(self, boot: Boot, show: Callable[[str], object]) -> int:
        """Wait until its tests are through, and show what it prints meanwhile; the exit code of `lab run`, or 2 when
        the background has ended before it came to that."""
        shown = 0
        while True:
            ended = self.code(boot).exists() or not self._alive()
            if self.log(boot).exists():
                with self.log(boot).open("rb") as file:
                    file.seek(shown)
                    part = file.read()
                shown += len(part)
                show(part.decode(errors="replace"))
            if ended:
                return int(self.code(boot).read_text()) if self.code(boot).exists() else 2
            time.sleep(0.2)

    def _alive(self) -> bool:
        try:
            stat = Path("/proc", (self.directory / "pid").read_text(), "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.rpartition(") ")[2][0] != "Z"


class Background(Nodes):
    """Boots nodes one after the other while the session does something else.

    :param directory: an empty one, for what they print.
    :param lock: the file that is locked until `end`: no other's nodes are booted meanwhile.
    """

    def __init__(self, boots: Sequence[Boot], directory: Path, lock: Path | None = None) -> None:
        super().__init__(directory)
        lock = lock or directory / "lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        self._lock = lock.open("w")
        # Ahead of the tests beside it: a node takes the longest, and none of them waits for less than a minute.
        lines = [f"nice -n -5 {shlex.join(boot.argv())} >{shlex.quote(str(self.log(boot)))} 2>&1; "
                 f"echo $? >{shlex.quote(str(self.code(boot)))}.new; "
                 f"mv {shlex.quote(str(self.code(boot)))}.new {shlex.quote(str(self.code(boot)))}" for boot in boots]
        fd = self._lock.fileno()
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", "\n".join([f"flock {fd}", *lines])], pass_fds=[fd],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")}, cwd=REPOSITORY)
        (directory / "pid").write_text(str(self._process.pid))

    def end(self) -> None:
        """End what still runs: `lab run` ends its node with itself, and itself with its parent."""
        self._process.terminate()
        self._process.wait()
        self._lock.close()
