"""Placement: which CPUs each thread of a VM sandbox may use.

rulings: containers as the authorities' rulings have them. ownership: the owner of each CPU of the node. rules: the
sandbox mask, and all threads except the vCPUs. vcpus: the vCPUs. The operator's policy is in domain.policy.

Pure: the same input gives the same placement; the previous placement is part of the input.

The shared pool P, from its source to the rules:

Assignments.pool   as one authority reports it; None if it has none, EMPTY if every CPU is exclusive
Rulings.pool       of the strongest authority that has one
Node.shared_pool   the same
Ownership.pool     P: the online CPUs of it; if it is None, or completely offline, all online CPUs that are not
                   exclusive; if it is EMPTY, EMPTY (ownership.ownership)
CandidateCpus.pool P without exclusive CPUs, and without those that had an owner recently
"""
