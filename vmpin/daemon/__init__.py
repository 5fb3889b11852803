"""The watcher: its tasks, feeds, control socket, exporter, run directory and systemd's notifications.

What stays out: what a pass does (reconcile). Imported by cli.
"""
