"""`vmpin-agent.pyz`: options, lock, start in the background. A unit or a hook in the guest runs it."""

import argparse
import fcntl
import os
import signal
import sys
import time
from typing import List, Optional

from vmpin.protocol.parsing import PORT
from vmpin_agent import VERSION, file_io
from vmpin_agent.agent import Agent
from vmpin_agent.guest_cgroups import GuestCgroups
from vmpin_agent.server import Server

#: How long to wait until an init has mounted the cgroups (seconds); after that there are none.
_MOUNTED = 10.0


def main(argv: Optional[List[str]] = None) -> int:
    args = _parser().parse_args(argv)
    agent_trees = {"proc": args.proc, "cgroup": args.cgroup, "sys": args.sys, "run": args.run}
    if args.detach:
        if not _detach():
            return 0
        _wait_for(args.cgroup)
    lock = _lock(f"{args.run}/agent.lock")
    if lock is None:
        file_io.log("another agent is running")
        return 0 if args.detach else 1
    server = Server(Agent(**agent_trees), args.vsock_port, args.serial, args.unix, args.sys)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.run()
    except KeyboardInterrupt:
        return 0  # the last map stays in effect
    finally:
        server.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("vmpin-agent", description="Keeps each container of this guest on the vCPUs that "
                                     "vmpin on the host assigned to it.")
    parser.add_argument("--version", action="version", version=f"vmpin-agent {VERSION}")
    channels = parser.add_argument_group("how the host reaches it (all of them, as far as there are such devices)")
    channels.add_argument("--vsock-port", type=_port, default=PORT, metavar="N",
                          help="AF_VSOCK, from the host alone (default %(default)s; 0: not)")
    channels.add_argument("--serial", default="auto", metavar="PATH",
                          help="a virtio-serial port's device; auto: the one named org.vmpin.agent.0; empty: none")
    channels.add_argument("--unix", default="", metavar="PATH",
                          help="a unix socket, peers are not checked (for tests)")
    trees = parser.add_argument_group("where things are")
    for name, default in (("proc", "/proc"), ("cgroup", "/sys/fs/cgroup"), ("sys", "/sys"), ("run", "/run/vmpin")):
        trees.add_argument(f"--{name}", default=default, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--detach", action="store_true",
                        help="continue in the background, for a hook or an init; nothing if an agent runs")
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 0xFFFFFFFF:
        raise ValueError(text)
    return number


def _detach() -> bool:
    """Fork into the background. :returns: True in the background process, False in the caller's."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    try:  # a runtime waits until a hook's output is closed
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:
        return True  # started by an init, before /dev is mounted
    for fd in 0, 1, 2:
        os.dup2(null, fd)
    return True


def _wait_for(cgroup: str) -> None:
    """Wait for the cgroup mounts. Where Kata's agent is the init it mounts /proc, /sys, /dev, /run and then the
    cgroups (src/agent/src/main.rs: init_agent_as_init). Files written to /run before that are lost, as the lock."""
    deadline = time.monotonic() + _MOUNTED
    while not GuestCgroups(cgroup).hierarchies and time.monotonic() < deadline:
        time.sleep(0.1)


def _lock(path: str) -> Optional[int]:
    """Take the lock for good. :returns: its descriptor, -1 without a lock file, None if another agent holds it."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as err:
        file_io.log(f"{path}: {err.strerror}: no lock file; continuing without a lock")
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


if __name__ == "__main__":
    sys.exit(main())
