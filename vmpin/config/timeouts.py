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
    #: Between attempts to reach a guest's agent: the first pause, doubled each time, and the longest. Most images have
    #: no agent: 200 guests without one cost an attempt every second or two between them.
    agent_first: float = 0.1
    agent_last: float = 300.0
    #: An attempt that is asked for early (a new map, `vmpin reconcile`) comes no sooner than this after the last.
    agent_early: float = 1.0
    #: For vmpin's agent to answer; with 1,000 threads it takes some 20 ms. A silent connection is probed after the
    #: second; after a connection that lasted for the third, the next attempt follows at once.
    agent_answer: float = 5.0
    agent_idle: float = 60.0
    agent_lasted: float = 60.0
    #: For Kata's agent to answer, which takes milliseconds. It serves the runtime first of all.
    kata_answer: float = 2.0
    #: From a change to sending everything to Kata's agent again, and then between repetitions, varied at random. (A
    #: change of the vCPUs is also a change of the map, so the agent seldom needs to be reminded.)
    kata_again: float = 10.0
    kata_resend: float = 300.0
    #: The first pause before a container that Kata's agent does not have yet, or a CPU that is not online yet, is
    #: tried again; doubled each time.
    kata_pending: float = 0.25
    #: For a guest to take everything back before its sessions end.
    guest_unpin: float = 3.0
    #: Before a guest's sessions are started again after a defect. They retry connections themselves.
    guest_restart: float = 30.0
    #: Pause before a failed task of the watcher is started again, doubled at each failure up to the second.
    restart: float = 0.5
    restart_most: float = 30.0


#: What a daemon runs with.
TIMEOUTS = Timeouts()
