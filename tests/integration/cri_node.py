"""A `Node` whose pods are a real containerd's, which the watcher is a plugin of.

    with Containerd() as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": "0"})
        node.start()
        vm = containerd.pod("vm", VM, vcpus=2)
        node.wait_for_vcpus(vm.pid, {0: "0", 1: "0"})

The watcher and the commands run in containerd's enclosure: the sandboxes' ids are containerd's to choose, so it is by
that, and not by their ids, that the machine's other ones stay out of it. Pids in what vmpin says are the enclosure's.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from documents import checked_output
from process_masks import seen
from real_containerd import Containerd, Pod
from real_node import COMMAND, Node, talk
from waiting import wait

#: Seconds in which something that must not happen would have.
MOMENT = 0.5


class CriNode(Node):
    def __init__(self, containerd: Containerd) -> None:
        self.containerd = containerd
        super().__init__()
        self.wrap = containerd.enclosure.enter
        self.kubelet = self.top / "kubelet"
        self.kubelet.mkdir()
        # Long enough that what comes true within a test does not because of a resync.
        self.configure(paths={"nri": str(containerd.nri_socket), "kubelet": str(self.kubelet)},
                       watch={"only": "*", "resync_seconds": 600})

    def start(self, wait_until_ready: bool = True, *args: str) -> None:
        with self.containerd.enclosure.inside():
            super().start(wait_until_ready, *args)

    def cli(self, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        with self.containerd.enclosure.inside():
            done = subprocess.run([*self.wrap, *COMMAND, "--config", str(self.config), *args], env=self.environment,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, **more)
        checked_output(args, done.stdout)
        return done

    def status(self) -> Any:
        """By the watcher's own answer: for the command a Python has to start, which takes seconds in the node."""
        try:
            return json.loads(talk(self.run / "vmpin.sock", b'{"op":"status"}\n'))
        except (FileNotFoundError, ConnectionRefusedError):
            return super().status()

    # NRI

    def connect(self, syncs: int = 1) -> None:
        """Start the watcher, and wait until containerd reported every container to it."""
        self.start()
        self.wait_for_sync(syncs)

    def nri(self) -> dict[str, Any]:
        """How the connection is, by status."""
        return dict(self.status()["sources"]["nri"])

    def wait_for_sync(self, count: int) -> None:
        wait(lambda: self.nri().get("syncs", 0) >= count, lambda: f"NRI: {self.nri()}\n{self.log()}")

    # What the kubelet says

    def checkpoint(self, default: str, entries: Mapping[str, Mapping[str, str]] | None = None,
                   policy: str = "static") -> None:
        """Write the CPU manager's checkpoint as the kubelet does. `entries`: CPUs by pod uid and container name."""
        content = {"policyName": policy, "defaultCpuSet": default, "checksum": 0}
        self.place_checkpoint(json.dumps(content | ({"entries": entries} if entries else {})))

    def place_checkpoint(self, text: str) -> None:
        """Any text in its place."""
        new = self.kubelet / ".cpu_manager_state1"
        new.write_text(text)
        new.rename(self.kubelet / "cpu_manager_state")


def stays(pod: Pod, *what: str) -> None:
    """Every thread keeps to one of these CPU lists for a moment."""
    until = time.monotonic() + MOMENT
    while time.monotonic() < until:
        assert seen(pod.pid).all() <= set(what)
        time.sleep(0.02)


def drifted(node: CriNode, cpus: tuple[str, str]) -> Callable[[], str]:
    """A runc container that the kubelet gave the second CPU, and whose cgroup got the first from another program."""
    first, second = cpus
    node.configure(node={"shared_pool": None}, watch={"resync_seconds": 0.3})
    node.checkpoint(first, {"uid-1": {"main": second}})
    node.connect()
    main = node.containerd.pod("web", uid="uid-1").container("main", cpus=second)
    wait(lambda: node.status()["node"]["owners"], lambda: f"no container owns a CPU: {node.status()}")
    (main.cgroup / "cpuset.cpus").write_text(first)
    return main.cgroup_cpus
