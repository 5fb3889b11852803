"""A container whose CPUs the runtime cannot change: its cgroup's file is read-only for the runtime.

    made_read_only(containerd, container)       # an update of its cpuset fails now
    made_writable(containerd, container)
"""

from __future__ import annotations

import subprocess

from real_containerd import Container, Containerd


def made_read_only(containerd: Containerd, container: Container) -> None:
    """For containerd, its shims and the watcher, whose mounts these are, and for no other process."""
    file = str(container.cgroup / "cpuset.cpus")
    _inside(containerd, "mount", "--bind", file, file)
    _inside(containerd, "mount", "-o", "remount,bind,ro", file)


def made_writable(containerd: Containerd, container: Container) -> None:
    _inside(containerd, "umount", str(container.cgroup / "cpuset.cpus"))


def _inside(containerd: Containerd, *words: str) -> None:
    with containerd.enclosure.inside():  # umount reads /proc/self
        subprocess.run([*containerd.enclosure.enter, *words], check=True)
