"""The least that could read what `vmpin top` reads: every `seconds` the watcher's status, the run time of each
process, the schedstat of each thread of those that ran, and the stat of each thread that ran. Nothing is added up or
shown but a dot a round. Run by `topping`, as a process of its own, with the path of the watcher's socket.
"""

from __future__ import annotations

import os
import socket
import sys
import time


def main(seconds: float, path: str) -> None:
    clocks: dict[str, int] = {}
    ran: dict[str, bytes] = {}
    due = time.monotonic()
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            connection.sendall(b'{"op":"status","wide":false,"pods":true}\n')
            while connection.recv(1 << 20):
                pass
        read("/proc/stat")
        for pid in os.listdir("/proc"):
            if pid[0] in "123456789":
                try:
                    look(pid, clocks, ran)
                except (FileNotFoundError, ProcessLookupError):
                    continue
        os.write(1, b".")
        due += seconds
        time.sleep(max(0.0, due - time.monotonic()))


def look(pid: str, clocks: dict[str, int], ran: dict[str, bytes]) -> None:
    try:
        clock = time.clock_gettime_ns(~int(pid) << 3 | 2)
    except OSError:
        clock = -1
    if clocks.get(pid) == clock:
        return
    clocks[pid] = clock
    for tid in os.listdir(f"/proc/{pid}/task"):
        found = read(f"/proc/{pid}/task/{tid}/schedstat")
        if ran.get(tid) != found:
            ran[tid] = found
            read(f"/proc/{pid}/task/{tid}/stat")


def read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
