"""The kernel's interfaces: affinity, /proc, /sys, cgroups, the proc connector, inotify, locks, sockets.

Adapters: each takes its root path or socket as a parameter, and translates errno once. `affinity` alone sets masks.
"""
