"""The lines of the watcher's log about a pod, from systemd's journal or a file."""
