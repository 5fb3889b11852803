"""The daemon's time constants, in one frozen value that is passed to whatever waits: deadlines, pauses and periods.

Operators do not set them: what they set stands in `settings`. Tests pass another value instead of patching modules.
What stays out: time constants of the placement and of drift, which are rules and not waits. Imported by daemon,
procevents, guests and host.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """All in seconds."""

    #: A client of the hook and control sockets that neither sends nor reads is dropped after this long.
    unix_peer: float = 2.0
    #: For the head of an HTTP request to arrive, and for the whole request to be answered and read.
    http_head: float = 2.0
    http_request: float = 10.0
    #: Between two HTTP connections that are accepted. A scrape or a probe comes every few seconds.
    http_pace: float = 0.01
    #: Pause while the process has no descriptor left for a connection.
    no_descriptors: float = 0.5
    #: For this long a scrape's page is given to the next client, too.
    scrape_age: float = 1.0
    #: Work of a scrape after which the loop's other work has its turn.
    scrape_turn: float = 0.001
    #: Between two measurements of the loop's lag.
    loop_lag: float = 0.5
    #: From the first change of the state to the write of the state file: events come in bursts.
    save: float = 0.2
    #: From the first inotify event to reading the files: files change in bursts (a write, a rename).
    file_calm: float = 0.02
    #: Within this time a runtime synchronizes an NRI plugin that it started itself.
    nri_sync: float = 2.0
    #: For an answer of the kubelet's PodResources API.
    pod_resources: float = 2.0
    #: Between two requests to it, at the least.
    pod_resources_pause: float = 5.0
    #: For a CRI call; a runtime takes some 10 ms.
    cri_call: float = 5.0
    #: From a report on a sandbox to its rechecks: each the pause after the one before.
    rechecks: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
    #: While the proc connector's events come more often than this and none is of a followed process, its socket is
    #: read only this often: a wake-up of the loop costs ten times what an event does. A new thread of a followed
    #: process may be placed so much later then.
    events_calm: float = 0.002
    #: For this long the loop's other work (a hook's message, a request) waits for events; the rest are handled after
    #: it.
    events_turn: float = 0.002
    #: Between two full passes where events are lost again and again.
    events_lost: float = 1.0
    #: From the creation of a kernel thread until it has its name: that takes microseconds, and no event reports it.
    kernel_named: float = 0.01
    #: From placing a thread ahead of a pass to the pass that confirms it: a VMM names its vCPUs one after the other,
    #: and none of them is to wait for the pass over the one before.
    confirm_placed: float = 0.002
    #: Between attempts to open the proc connector: it may be for want of memory that it cannot be.
    connector_retry: float = 300.0
    #: Pause before a failed task of the watcher is started again, doubled at each failure up to the second.
    restart: float = 0.5
    restart_most: float = 30.0


#: What a daemon runs with.
TIMEOUTS = Timeouts()
