"""The NRI plugin: connection, session, messages into events, and reports of cpusets.

What stays out: ttRPC's bytes (wire). Imported by reconcile and daemon.
"""
