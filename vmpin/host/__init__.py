"""Adapters to the kernel: each takes its root path, makes the system calls, and decides nothing."""
