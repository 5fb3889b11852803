"""The least that could place threads at their birth: the kernel's proc connector in a loop, and a system call for each
thread of the process `pid`. Run by `newborns`, as a process of its own: `birth_floor.py PID CPU`. With PID 0 it has
no other process to wait for: it reads every 2 ms what has come since, and the kernel spares it what it
spares vmpin.

Prints "ready" when it listens, and ends at SIGTERM.
"""

import array
import os
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress

from vmpin.wire.proc_events import socket_filter

FORK, EXEC, COMM = 0x1, 0x2, 0x200


def message(operation: int) -> bytes:
    """To the connector: nlmsghdr, cn_msg, proc_input of Linux 6.6 (older ones take the first word of it alone)."""
    filters = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 6)
    body = struct.pack("=II", operation, FORK | EXEC | COMM) if filters else struct.pack("=I", operation)
    return struct.pack("=IHHIIIIIIHH", 36 + len(body), 3, 0, 0, 0, 1, 1, 0, 0, len(body), 0) + body


def main(pid: int, cpu: int) -> None:
    mask = frozenset((cpu,))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11) as events:
        program = array.array("B", socket_filter())
        events.setsockopt(socket.SOL_SOCKET, 26, struct.pack("@HP", len(program) // 8, program.buffer_info()[0]))
        events.bind((0, 1))
        events.send(message(1))
        try:
            threading.Thread(target=os.getpid).start()  # its birth is the first event
            events.recv(256)
            print("ready", flush=True)
            while not pid:
                time.sleep(0.002)
                with suppress(OSError):
                    while True:
                        struct.unpack_from("=IIQIIII", events.recv(256, socket.MSG_DONTWAIT), 36)
            while True:
                with suppress(OSError):
                    raw = events.recv(256)
                    what, _, _, _, _, child, process = struct.unpack_from("=IIQIIII", raw, 36)
                    if what == FORK and process == pid != child:
                        os.sched_setaffinity(child, mask)
        finally:
            events.send(message(2))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    main(int(sys.argv[1]), int(sys.argv[2]))
