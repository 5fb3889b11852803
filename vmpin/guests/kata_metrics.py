"""How many CPUs are online in a guest, from the metrics of Kata's agent. Pure; called by kata_session.

The metrics are Prometheus's text (kata-containers src/agent/src/metrics.rs) and repeat the lines of the guest's
/proc/stat by position among the online CPUs. A position that was there once keeps its line when its CPU goes offline.
The metrics show nothing of any one container, so no container's state is derived from them.
"""

from __future__ import annotations

import re

#: A line of one CPU with a value that is a number.
_CPU_TIME = re.compile(r'kata_guest_cpu_time\{cpu="([0-9]{1,4})",item="[a-z]+"\} [0-9.e+]{1,32}', re.ASCII)


def online_cpus(text: str) -> int:
    """The number of CPUs that have a line, of at most 1024; 0 if there is none.

    >>> online_cpus('kata_guest_cpu_time{cpu="0",item="user"} 120\\nkata_guest_cpu_time{cpu="total",item="user"} 120')
    1
    """
    found = (_CPU_TIME.fullmatch(line) for line in text.splitlines())
    return len({int(match[1]) for match in found if match is not None and int(match[1]) < 1024})
