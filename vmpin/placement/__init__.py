"""Placement: which CPUs each thread of a VM sandbox may run on.

ownership: who owns each CPU of the node. policy: the operator's rules. rules: the sandbox mask, and every thread but
the vCPUs, of a VM or of a sandbox without one yet. vcpus, matching: the vCPUs.

Pure: the same input gives the same placement, and the previous placement is part of the input.
"""
