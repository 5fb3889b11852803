"""Placement: which CPUs each thread of a VM sandbox may use.

rulings: containers as the authorities' rulings have them. ownership: the owner of each CPU of the node. policy: the
operator's rules. rules: the sandbox mask, and all threads except the vCPUs. vcpus: the vCPUs.

Pure: the same input gives the same placement; the previous placement is part of the input.
"""
