"""The VMs of the node: processes that are VMMs and their helpers, their command lines, QMP, KVM, the role of each
thread.

What stays out: which CPUs a thread gets (placement). Imports host and domain, and not runtime.
"""
