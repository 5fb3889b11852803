"""The lines of the watcher's log about a pod, from systemd's journal or a file."""

from vmpin.feature import Feature

FEATURE = Feature(name="logs", verbs={"logs": "verbs.logs"})
