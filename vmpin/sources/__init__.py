"""Sources of containers and their CPUs: hook messages and their spool, NRI, PodResources, the files of Kata and
cgroups; the CRI call that changes a container's CPUs; and the kubelet's configuration.

Each turns what it receives into events of the domain.
"""
