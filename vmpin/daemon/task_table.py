"""The watcher's tasks, by the names that metrics and logs have."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vmpin.daemon import sd_notify
from vmpin.daemon.control import MAX_REQUEST, Control
from vmpin.daemon.feeds import poll_pod_resources
from vmpin.daemon.run_directory import Listener, RunDirectory
from vmpin.daemon.supervision import Source, notify_watchdog
from vmpin.host.sockets import Admission, Handler, Rationed, is_member, serve
from vmpin.runtime.oci import MAX_STATE

if TYPE_CHECKING:
    from vmpin.daemon.watcher import Watcher

MAX_HOOK_HEAD = 4096  #: Bytes that a hook sends before the container's state.


def tasks_of(watcher: Watcher, directory: RunDirectory) -> dict[str, Source]:
    """The tasks by name; each is started again when it ends. :param directory: open; its listeners are served."""
    def listening(listener: Listener, limit: int, answer: Handler, line: bool,
                  admitted: Admission | None = None) -> Source:
        return directory.restarted(
            lambda: serve(listener.dup(), limit, answer, line, watcher.timeouts.unix_peer, admitted))

    config = watcher.view.config
    sources: dict[str, Source] = {
        "hook": listening(directory.hook, MAX_STATE + MAX_HOOK_HEAD, watcher.hooks.receive, line=False),
        "control": listening(directory.control, MAX_REQUEST, Control(watcher).answer, line=True),
        "status": listening(directory.status, MAX_REQUEST, Rationed(Control(watcher, reading=True).answer), True,
                            lambda peer: is_member(peer, watcher.view.config.watch.status_group)),
        "resync": partial(watcher.resync_regularly, directory), "recheck": watcher.passes.recheck,
        "state": watcher.saving.run, "files": watcher.files.run, "guests": watcher.guests.run}
    if config.watch.kubelet:
        sources["podresources"] = partial(poll_pod_resources, config, watcher.node_state.take_pod_resources,
                                          watcher.timeouts)
    for part in watcher.parts.values():
        sources.update(part.tasks)
        sources.update((name, directory.restarted(task)) for name, task in part.listening.items())
    if watcher.nri is not None:
        sources["nri"] = watcher.nri.run
    if watcher.proc_events is not None:
        sources["new_threads"] = watcher.proc_events.run
    if sd_notify.watchdog_seconds() is not None:
        sources["watchdog"] = notify_watchdog
    return sources
