"""The least a watcher could be: asyncio, and every `seconds` a look at the mask of each thread of each pid on standard
input. Run by `atrest`, as a process of its own.
"""

import asyncio
import os
import sys


async def main(seconds: float, pids: list[str]) -> None:
    while True:
        await asyncio.sleep(seconds)
        for pid in pids:
            for tid in os.listdir(f"/proc/{pid}/task"):
                os.sched_getaffinity(int(tid))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), sys.stdin.read().split()))
