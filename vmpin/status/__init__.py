"""What the watcher shows: the status document, explanations, health, counts, metrics.

What stays out: files and sockets it goes through (daemon, cli), longer reports (reports).
"""
