"""What wakes the watcher, and what containers are known by: hook messages and their spool, NRI, the kubelet's
checkpoint, PodResources, the files of Kata and cgroups.

Each turns what it receives into events of the domain. What stays out: what follows from an event
(domain.desired_state, reconcile). Imported by reconcile and daemon.
"""
