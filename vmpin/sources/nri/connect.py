"""Connecting to NRI: over the runtime's socket, or over the connection with which the runtime starts the programs in
its directory of plugins."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, MutableMapping
from pathlib import Path

from vmpin.bounded import MAX_FD, parse_whole
from vmpin.errors import ConfigError

_DEADLINE = 2.0


def connect_to(path: Path) -> Callable[[], socket.socket]:
    """A function that connects to the runtime's socket, for NriPlugin. It raises OSErrors that name the path; one
    attempt has two seconds, and the plugin makes the next one."""
    def connect() -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            made.settimeout(_DEADLINE)
            made.connect(os.fspath(path))
        except OSError as err:
            made.close()
            raise OSError(err.errno or 0, err.strerror or str(err), os.fspath(path)) from err
        return made
    return connect


def inherited(environ: MutableMapping[str, str]) -> tuple[socket.socket, str, str] | None:
    """The connection that this process was started with as a plugin, and the plugin's name and index (from its file's
    name); None when it was not. Removes NRI's variables from `environ`, and keeps the descriptor from child processes.
    :raises ConfigError: when the descriptor is no socket."""
    number = environ.pop("NRI_PLUGIN_SOCKET", "")
    name, index = environ.pop("NRI_PLUGIN_NAME", "vmpin"), environ.pop("NRI_PLUGIN_IDX", "90")
    if not number:
        return None
    try:
        fd = parse_whole(number, MAX_FD)
        if fd is None or not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise ValueError
        os.set_inheritable(fd, False)
        return socket.socket(fileno=fd), name, index
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"NRI_PLUGIN_SOCKET={number[:40]!r} in the environment is no open socket", "a container "
                          "runtime sets it when it starts vmpin as its plugin; unset it otherwise") from None


def explained(err: OSError) -> str:
    """Why there is no connection, and what to do about it for a missing socket."""
    text = f"{err.filename}: {err.strerror}" if err.filename else f"{err.strerror or err}"
    if isinstance(err, FileNotFoundError):
        text += (": no container runtime with NRI listens there (containerd 1.7 has it off: disable = false under "
                 "plugins.'io.containerd.nri.v1.nri'; CRI-O: enable_nri under crio.nri)")
    return text
