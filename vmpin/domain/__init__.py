"""The domain as values: sandboxes, containers, threads, CPUs, events, and what follows from events alone.

model, topology, events: the nouns. desired_state: what the sources reported. kubelet_cpus: what the kubelet assigned.
drift, proof, counters, facts, guest_report, pod_names: values that are measured or shown. runtime_call: a container
as a call of the runtime shows it, and what the answer can change. terminal: text from outside made safe for one.

Pure: no system call, no clock, no log.
"""
