"""The watcher's samples: the task that takes them, and what it answers of isolation.

What stays out: a sample, and what is booked of it (reports). Imported by the rest of daemon.
"""
