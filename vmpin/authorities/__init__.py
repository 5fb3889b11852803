"""Authorities: what decides which container of the node owns which CPUs.

authority: one authority, and the rulings that follow from several. node_authorities: those of this node.
kubelet_authority: the kubelet's static policy. dra_authority: claims of dra-driver-cpu. observed_authority: the
cpusets of all containers. rivals: two that decide on the same CPUs. `Rank` and the assignments are in
domain.assignments, their effect on containers is in placement.rulings; a feature brings its own authority.
"""
