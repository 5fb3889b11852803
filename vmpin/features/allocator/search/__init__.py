"""Which CPUs are the best ones for a request: the machine's cores, caches, nodes and packages, the cost of a set of
CPUs, the exact search for the best set and its runner-up, and the reason where there is no legal set.
docs/allocation.md defines cost and legality.

Of its parent package it imports `cpu_request` alone.
"""
