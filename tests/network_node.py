"""A node's network of a test's own: a namespace that stands for the node's, and others for sandboxes, made of real
interfaces with ip and tc. The machine's own network is not touched::

    with NetworkNode(tmp_path) as node:
        pod = node.sandbox()                          # a namespace with a process in it
        pod("ip link add eth0 type veth peer name veth1 netns", node.holder.pid)
        node("ip link add br0 type bridge")
        read_namespaces(node.proc, [pod.main])

Everything ends with its processes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from types import TracebackType

from need import need_root, need_tool
from waiting import wait

from vmpin.domain.model import ThreadId
from vmpin.host.procfs import Procfs


class NetworkSpace:
    """A network namespace, and the process that keeps it."""

    def __init__(self) -> None:
        need_root()
        need_tool("ip")
        self.holder = subprocess.Popen([need_tool("unshare"), "--net", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        wait(lambda: self.link() != own and Path(f"/proc/{self.pid}/comm").read_text() == "sleep\n",
             "unshare makes no namespace")

    @property
    def pid(self) -> int:
        return self.holder.pid

    @property
    def main(self) -> ThreadId:
        stat = Procfs().thread_stat(self.pid, self.pid)
        assert stat is not None
        return ThreadId(self.pid, stat.starttime)

    def link(self) -> str:
        return os.readlink(f"/proc/{self.pid}/ns/net")

    def argv(self, *argv: str) -> list[str]:
        """A command line that runs in it."""
        return [need_tool("nsenter"), f"--net=/proc/{self.pid}/ns/net", *argv]

    def __call__(self, command: str, *more: object) -> str:
        """Run a command in it. :returns: its output."""
        done = subprocess.run(self.argv(*command.split(), *map(str, more)), capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def as_kata(self, peer: str, node: int) -> None:
        """Interfaces as Kata's tcfilter model has them: eth0, a veth whose `peer` is in the namespace of the process
        `node`, and tap0_kata; tc redirects what one of them receives to the other."""
        self(f"ip link add eth0 type veth peer name {peer} netns {node}")
        self("ip tuntap add mode tap multi_queue name tap0_kata")
        for here, there in (("eth0", "tap0_kata"), ("tap0_kata", "eth0")):
            self(f"ip link set {here} up")
            self(f"tc qdisc add dev {here} handle ffff: ingress")
            self(f"tc filter add dev {here} parent ffff: protocol all u32 match u32 0 0 "
                 f"action mirred egress redirect dev {there}")

    def end(self) -> None:
        self.holder.kill()
        self.holder.wait()


class NetworkNode(NetworkSpace):
    """The namespace of the node, with its sandboxes. `proc` is the machine's, with the holder as process 1
    and no other process than those of sandboxes.
    :param directory: for `proc`."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._sandboxes: list[NetworkSpace] = []
        self._root = directory / "network-proc"
        self._root.mkdir()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                (self._root / entry).symlink_to(f"/proc/{entry}")
        (self._root / "1").symlink_to(f"/proc/{self.pid}")
        self.proc = Procfs(self._root)

    def __enter__(self) -> NetworkNode:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        for space in (*self._sandboxes, self):
            space.end()

    def show(self, pid: int) -> None:
        """Have `proc` show a process of the machine."""
        with contextlib.suppress(FileExistsError):
            (self._root / str(pid)).symlink_to(f"/proc/{pid}")

    def sandbox(self) -> NetworkSpace:
        made = NetworkSpace()
        self._sandboxes.append(made)
        self.show(made.pid)
        return made

    def kata(self, bridge: str = "") -> NetworkSpace:
        """A sandbox as Kata's, whose veth's peer on the node is vethPID (in `bridge`)."""
        made = self.sandbox()
        peer = f"veth{made.pid}"
        made.as_kata(peer, self.pid)
        if bridge:
            self(f"ip link set {peer} master {bridge}")
        return made
