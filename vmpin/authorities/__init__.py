"""Authorities: what decides which container of the node owns which CPUs, and their order.

authority: what each has to answer, their table, and the rulings in force. kubelet_authority, kubelet_checkpoint: the
kubelet's static policy. The values are in domain.assignments, what they mean for a container
in placement.rulings; a feature brings its own authority.
"""
