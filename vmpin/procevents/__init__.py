"""Threads at their birth: the feed of the proc connector's events, placing newborn threads, and how long they
waited.

What stays out: the events' bytes (wire) and socket (host). Imported by daemon.
"""
