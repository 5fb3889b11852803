"""A guest for the agent: a PID namespace that holds it, containers' processes and one of the guest's own, and no
process of the machine's. Run as its process 1; ends with its parent, and all in it with it.

    guest_inside.py STAND-IN THREADS CGROUP... -- AGENT...
"""

import os
import subprocess
import sys


def main(stand_in: str, threads: int, cgroups: list[str], agent: list[str]) -> int:
    def start() -> subprocess.Popen[bytes]:
        # It makes seven threads besides, and is one itself; says one byte when all are there.
        made = subprocess.Popen([stand_in, "-smp", str(threads - 8)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert made.stdout is not None
        made.stdout.read(1)
        return made

    processes = [start()]  # the one of the guest's own
    for cgroup in cgroups:
        processes.append(start())
        fd = os.open(f"{cgroup}/cgroup.procs", os.O_WRONLY)
        os.write(fd, str(processes[-1].pid).encode())
        os.close(fd)
    return subprocess.Popen(agent, stdin=subprocess.DEVNULL).wait()


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:at], sys.argv[at + 1 :]))
