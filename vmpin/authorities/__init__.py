"""Authorities: what decides which container of the node owns which CPUs.

authority: what each can be asked, and those of this node with the rulings that follow. kubelet_authority: the
kubelet's static policy. dra_authority: claims of dra-driver-cpu. observed_authority: the cpusets of all containers.
rivals: two that decide on the same CPUs. `Rank` and the assignments are in domain.assignments, their effect on
containers is in placement.rulings; a feature brings its own authority.
"""
