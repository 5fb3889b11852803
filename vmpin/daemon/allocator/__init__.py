"""The allocator's tasks in the watcher that only some nodes need: changed annotations.

What stays out: the allocator and its CRI calls (daemon.allocating, daemon.pool_updates). Imported by
daemon.allocating.
"""
