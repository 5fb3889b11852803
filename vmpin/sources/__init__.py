"""Sources of containers and their CPUs: hook messages and their spool, NRI, the kubelet's checkpoint, PodResources,
the files of Kata and cgroups; the CRI call that changes a container's CPUs; and the kubelet's configuration.

Each turns what it receives into events of the domain. What stays out: what follows from an event
(domain.desired_state, reconcile), and files' formats (runtime). Imported by reconcile, daemon, doctor and cli.
"""
