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

#: Seconds for a boot and its tests, until it is ended: the longest takes some seven minutes on two idle cores.
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
        return REPOSITORY / "build/lab" / str(self)

    def argv(self) -> list[str]:
        """Of `lab run`, which ends with the process that starts it."""
        env = [word for name, value in self.environment.items() for word in ("--env", f"{name}={value}")]
        return ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "lab", "run",
                "--kernel", self.variant.kernel, "--cgroup", self.variant.cgroup, "--topology", self.variant.topology,
                "--timeout", str(TIMEOUT), "--results", str(self.results), *env, "--", *self.arguments]


def _files(*names: str) -> list[str]:
    return [f"tests/lab/node_tests/test_{name}.py" for name in names]


#: In CI: one node, with everything on the newer kernel and a story that has each kind of step.
IN_CI = (
    Boot(Variant(Kernel.V6_12), "", ["--ignore", *_files("guest")], {"VMPIN_MIXED_STEPS": "0"}),
)
#: Before a release, too: the long story on both kernels, and the older one, whose vhost workers and KVM helpers are
#: kernel threads, which forgets a mask that a cpuset cuts, and whose proc connector needs CAP_NET_ADMIN; a guest that
#: boots Linux without a real containerd; the older cgroups, and few CPUs without SMT, with what they change.
BEFORE_A_RELEASE = (
    Boot(Variant(Kernel.V6_12), "-story", _files("mixed", "guest")),
    Boot(Variant(Kernel.V6_1)),
    Boot(Variant(Kernel.V6_1, Cgroup.V1), "", _files("node", "vms", "changes")),
    Boot(Variant(Kernel.V6_1, Cgroup.HYBRID, Topology.NOSMT), "",
         _files("node", "vms", "few_cpus", "doctor_node")),
)


class Background:
    """Nodes that boot one after the other while this process does something else.

    :param directory: an empty one, for what they say.
    """

    def __init__(self, boots: Sequence[Boot], directory: Path) -> None:
        self._directory = directory
        lines = [f"{shlex.join(boot.argv())} >{shlex.quote(str(self._said(boot)))} 2>&1; "
                 f"echo $? >{shlex.quote(str(self._code(boot)))}.new; "
                 f"mv {shlex.quote(str(self._code(boot)))}.new {shlex.quote(str(self._code(boot)))}" for boot in boots]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", "\n".join(lines)], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")}, cwd=REPOSITORY)

    def _said(self, boot: Boot) -> Path:
        return self._directory / f"{boot}.log"

    def _code(self, boot: Boot) -> Path:
        return self._directory / f"{boot}.code"

    def wait(self, boot: Boot, show: Callable[[str], object]) -> int:
        """Until its tests are through, with what is said meanwhile; the exit code of `lab run`, or 2 when the
        background has ended before it came to that."""
        shown = 0
        while True:
            ended = self._code(boot).exists() or self._process.poll() is not None
            if self._said(boot).exists():
                with self._said(boot).open("rb") as file:
                    file.seek(shown)
                    part = file.read()
                shown += len(part)
                show(part.decode(errors="replace"))
            if ended:
                return int(self._code(boot).read_text()) if self._code(boot).exists() else 2
            time.sleep(0.2)

    def end(self) -> None:
        """End what still runs: `lab run` ends its node with itself, and itself with its parent."""
        self._process.terminate()
        self._process.wait()
