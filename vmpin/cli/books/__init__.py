"""Verbs about what the watcher has kept over time: `vmpin isolation`."""
