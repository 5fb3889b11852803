"""Authorities: what decides which container of the node owns which CPUs.

authority: the kinds of authorities, and those of this node with the rulings that follow. kubelet_authority: the
kubelet's static policy. `Rank` and the assignments are in domain.assignments, their effect on containers is in
placement.rulings; a feature brings its own authority.
"""
