"""The watcher's deadlines, pauses and periods, in one frozen value that is passed to the parts that wait.

Operators set none of them: what they set is in `settings`. Tests pass another value instead of patching modules. A
feature's times are in its folder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """All in seconds."""

    unix_peer: float = 2.0  #: A client of the hook and control sockets that neither sends nor reads is dropped then.
    #: From the start to loading what samples and the first guest need: the runtime's list comes before that.
    settling: float = 0.5
    #: From the first change of the state to the write of the state file, as events come in bursts: from the first on
    #: with other work of the loop, after the second in any case.
    save: tuple[float, float] = (0.2, 0.5)
    file_calm: float = 0.02  #: From the first inotify event to reading the files: files change in bursts.
    nri_sync: float = 2.0  #: Within this time a runtime synchronizes an NRI plugin that it started itself.
    nri_lost: float = 30.0  #: Between two lists that are requested for events that could not be applied.
    pod_resources: float = 2.0  #: For an answer of the kubelet's PodResources API.
    pod_resources_pause: float = 5.0  #: Between two requests to it, at the least.
    cri_call: float = 5.0  #: For a CRI call; a runtime takes some 10 ms.
    #: From a report on a sandbox to its rechecks: each the pause after the one before. A settled VM has two of them
    #: (daemon.recheck_schedule.OF_SETTLED).
    rechecks: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
    #: The proc connector is read only this often while more events come and none is of a followed process: a wake-up
    #: of the loop costs ten times what an event does. A new thread may be placed so much later then.
    events_calm: float = 0.002
    #: The same on a node without VMs and shims, where only executed programs are reported: QEMU creates its second
    #: thread 20 ms after its exec.
    events_lull: float = 0.01
    events_turn: float = 0.002  #: For this long the loop's other work waits for events; the rest come after it.
    events_rest: float = 1.0  #: Of the time that events of no followed process took, the pause before the next.
    events_lost: float = 1.0  #: Between two full passes where events are lost again and again.
    kernel_named: float = 0.01  #: From a kernel thread's creation until it has its name, which no event reports.
    #: From placing a thread ahead of a pass to the pass that confirms it: no vCPU waits for the pass over another.
    confirm_placed: float = 0.002
    connector_retry: float = 300.0  #: Between attempts to open the proc connector, for which memory may be short.
    #: Between attempts to reach a guest's agent: the first pause, doubled each time, and the longest. Most images have
    #: no agent: 200 guests without one cost an attempt every second or two between them.
    agent_first: float = 0.1
    agent_last: float = 300.0
    agent_early: float = 1.0  #: From an attempt to one that is asked for early (a new map, `vmpin repin`).
    #: For vmpin's agent to answer; with 1,000 threads it takes some 20 ms. A silent connection is probed after the
    #: second; after a connection that lasted for the third, the next attempt follows at once.
    agent_answer: float = 5.0
    agent_idle: float = 60.0
    agent_lasted: float = 60.0
    kata_answer: float = 2.0  #: For Kata's agent to answer: milliseconds. It serves the runtime first of all.
    #: From a change to sending everything to Kata's agent again, and then between repetitions, varied at random. (A
    #: change of the vCPUs is also a change of the map, so the agent seldom needs to be reminded.)
    kata_again: float = 10.0
    kata_resend: float = 300.0
    #: The first pause before a container or CPU that the guest does not have yet is tried again; doubled each time.
    kata_pending: float = 0.25
    guest_unpin: float = 3.0  #: For a guest to take everything back before its sessions end.
    guest_restart: float = 30.0  #: Before a guest's sessions are started again after a defect.
    #: Pause before a failed task of the watcher is started again, doubled at each failure up to the second.
    restart: float = 0.5
    restart_most: float = 30.0


TIMEOUTS = Timeouts()  #: What a daemon runs with.
